"""`gpu-hook bundle` and plain runc: the container has its share, and none once the hooks are taken out again."""

import json
import os
import subprocess
import sys

import pytest

from testbed import REPO
from testbed.containers import Bundle, Runc
from testbed.installs import UUIDS, Install

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
ASK = {"gpu-hook.io/memory": "4Gi", "gpu-hook.io/devices": "1"}


def gpu_hook(install: Install, *args: str) -> str:
    command = [sys.executable, "-m", "oci_hook", *args, "--prefix", str(install.prefix)]
    return subprocess.run(command, cwd=REPO, check=True, capture_output=True, text=True).stdout


def test_with_plain_runc(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    folder = bundle(ASK)
    gpu_hook(prefix, "bundle", str(folder))
    hooks = json.loads((folder / "config.json").read_text())["hooks"]
    assert set(hooks) == {
        "prestart",
        "createRuntime",
        "poststop",
    }  # a runtime without one of the first two has the other
    done = runc.create(folder)
    assert done.returncode == 0, done.stderr
    (grant,) = prefix.grants()
    assert (grant.who.id, [share.uuid for share in grant.shares]) == (runc.ids[-1], [UUIDS[1]])
    assert runc("start", runc.ids[-1]).returncode == 0
    assert "policy" in runc.exec(runc.ids[-1], "ls", "/run/gpu-hook").stdout
    assert "GPU_HOOK" not in runc.exec(runc.ids[-1], "env").stdout  # as the command says
    assert runc("delete", "--force", runc.ids[-1]).returncode == 0
    assert not list((prefix.state / "ledger").glob("*.json"))  # poststop has released it

    gpu_hook(prefix, "bundle", "--remove", str(folder))
    assert runc.create(folder).returncode == 0
    assert prefix.grants() == ()


@pytest.mark.parametrize("left_out", ["prestart", "createRuntime"])
def test_a_runtime_that_calls_one_of_the_two_stages(prefix: Install, bundle: Bundle, runc: Runc, left_out: str) -> None:
    folder = bundle(ASK)
    gpu_hook(prefix, "bundle", str(folder))
    config = json.loads((folder / "config.json").read_text())
    del config["hooks"][left_out]
    (folder / "config.json").write_text(json.dumps(config))
    done = runc.create(folder)
    assert done.returncode == 0, done.stderr
    assert [share.uuid for grant in prefix.grants() for share in grant.shares] == [UUIDS[1]]


def test_a_refusal(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    folder = bundle({"gpu-hook.io/memory": "99Gi"})
    gpu_hook(prefix, "bundle", str(folder))
    done = runc.create(folder)
    assert done.returncode != 0 and "GH-201" in done.stderr
    assert prefix.grants() == ()


@pytest.mark.parametrize("edits", ["left", "of a fresh file"])
@pytest.mark.parametrize("end", ["by itself", "deleted", "deleted while it runs"])
def test_a_bundle_that_the_wrapper_has_run(prefix: Install, bundle: Bundle, runc: Runc, edits: str, end: str) -> None:
    """README's way, then runc.md's, with the same id: the edits of the wrapper go, and its grant is no other container's."""
    folder = bundle(ASK, args=["sleep", "300"] if end == "deleted while it runs" else ["true"])
    config = folder / "config.json"
    fresh = config.read_text()
    how = ("--detach",) if end == "deleted while it runs" else ()
    same = runc.new_id()
    done = runc("run", *how, "--bundle", str(folder), same, program=prefix.program)
    assert done.returncode == 0, done.stderr
    if end.startswith("deleted"):
        runc("delete", "--force", same, program=prefix.program)
    if edits == "of a fresh file":
        config.write_text(fresh)
    gpu_hook(prefix, "bundle", str(folder))
    for _ in range(2):
        done = runc("run", *how, "--bundle", str(folder), same)
        assert done.returncode == 0, done.stderr
        assert len(prefix.grants()) == len(how)  # never one for each of the two containers
        if how:
            runc("delete", "--force", same)
    gpu_hook(prefix, "bundle", "--remove", str(folder))
    left = json.loads(config.read_text())
    assert left["linux"].pop("devices", []) == [] and left == json.loads(fresh)
