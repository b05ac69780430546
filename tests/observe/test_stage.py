"""Whether a container starts, runs or is paused; whether the agent stopped it."""

import os
import time
from pathlib import Path

import pytest

from oci_hook.core.grant import Grant, Identity, Life
from oci_hook.linux import cgroup_tree
from oci_hook.observe.stage import in_words, stage
from oci_hook.observe.stopped import by_agent


def grant(root: str, **life: object) -> Grant:
    return Grant("k" * 32, Identity(root, "c1", "/b"), Life("boot", **life), ())  # type: ignore[arg-type]


def test_before_it_runs(tmp_path: Path) -> None:
    assert stage(grant(str(tmp_path), creator=(1, 2))) == ("starting", None)
    waiting = grant(str(tmp_path), deadline=int(time.monotonic()) + 30)
    assert in_words(waiting).startswith("starting, waits ") and in_words(waiting).endswith(" s more for its container")
    (tmp_path / "c1").mkdir()
    os.mkfifo(tmp_path / "c1/exec.fifo")
    assert stage(grant(str(tmp_path), init=(1, 2))) == ("starting", None)


@pytest.mark.parametrize(
    ("file", "cgroup", "text", "expected"),
    [
        ("freezer/c1/freezer.state", "devices/c1", "THAWED\n", "running"),
        ("freezer/c1/freezer.state", "devices/c1", "FROZEN\n", "paused"),
        ("c1/cgroup.events", "c1", "populated 1\nfrozen 0\n", "running"),
        ("c1/cgroup.events", "c1", "populated 1\nfrozen 1\n", "paused"),
        ("devices/c1/cgroup.events", "devices/c1", "populated 1\nfrozen 1\n", "paused"),  # version 2, with such a name
        ("other", "c1", "", "running"),
    ],
)
def test_paused_by_its_cgroup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, cgroup: str, text: str, expected: str
) -> None:
    monkeypatch.setattr(cgroup_tree, "MOUNTED", str(tmp_path))
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    (tmp_path / cgroup).mkdir(parents=True, exist_ok=True)
    if file.endswith("cgroup.events"):
        (tmp_path / "cgroup.procs").touch()
    assert stage(grant(str(tmp_path), init=(1, 2), cgroup=f"{tmp_path}/{cgroup}")) == (expected, None)
    assert stage(grant(str(tmp_path), init=(1, 2))) == ("running", None), "no cgroup is known"


def test_what_the_agent_did() -> None:
    told = {"event": "finding", "id": "c1", "kind": "over-memory", "uuid": "GPU-0", "evidence": "9 MiB", "action": ""}
    log = [{"event": "granted", "id": "c1"}, {**told, "action": "reported"}, {**told, "id": "c2", "action": "killed"}]
    assert by_agent(log, "c1") == ""
    log.append({**told, "action": "killed"})
    assert by_agent(log, "c1") == "the agent killed it: over-memory on GPU-0: 9 MiB"
    assert by_agent([*log, {"event": "granted", "id": "c1"}], "c1") == "", "a later container of this id"
    log = [{**told, "action": "frozen"}]
    assert by_agent(log, "c1").startswith("the agent froze it: ")
    assert by_agent([*log, {**told, "action": "resumed"}], "c1") == ""
