"""explain, ps and release beside real containers: what create will do, what is held, what is given back."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oci_hook.cli.main import cli
from oci_hook.core.layout import MARKER
from testbed.containers import Bundle, Runc
from testbed.installs import UUIDS, Install

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

ASK = {"NVIDIA_VISIBLE_DEVICES": "1", "T9K_GPU_PERCENT": "25", "gpu-hook.io/compute": "20"}


def answer(install: Install, *args: str, status: int = 0) -> Any:
    result = CliRunner().invoke(cli, [*args, "--json", "--prefix", str(install.prefix)], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


def config(folder: Path) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return spec


def as_steps(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """What was added to a config.json, in the words of a plan."""
    steps = set()
    for mount in after["mounts"][len(before["mounts"]) :]:
        if mount["type"] == "tmpfs":
            steps.add(f"tmpfs {mount['destination']}")
        else:
            options = ",".join(o for o in mount["options"] if o not in ("bind", "rprivate"))
            steps.add(f"bind {mount['source']} -> {mount['destination']} ({options})")
    old_rules = before["linux"]["resources"]["devices"]
    for rule in after["linux"]["resources"]["devices"][len(old_rules) :]:
        steps.add(f"allow c {rule['major']}:{rule['minor']} {rule['access']}")
    for node in after["linux"].get("devices") or ():
        steps.add(f"node {node['path']} (c {node['major']}:{node['minor']})")
    for entry in set(after["process"]["env"]) - set(before["process"]["env"]):
        steps.add(f"env {entry}")
    return steps


def test_explain_tells_what_create_does(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    folder = bundle(ASK)
    before = config(folder)
    told = answer(prefix, "explain", "--spec", str(folder / "config.json"))
    assert config(folder) == before and prefix.grants() == ()
    assert runc.create(folder, prefix).returncode == 0
    (grant,) = prefix.grants()
    plan = {step.replace("/KEY/", f"/{grant.key}/") for step in told["plan"] if not step.startswith("env -")}
    plan = {step.split(" (")[0] if step.startswith("tmpfs") else step for step in plan}
    assert as_steps(before, config(folder)) == plan
    assert [gpu["share"] for gpu in told["gpus"] if gpu["share"]] == [share.fields() for share in grant.shares]
    # Told again, of the edited bundle: the same, but for the room and the slot that are taken.
    again = answer(prefix, "explain", "--spec", str(folder / "config.json"))
    assert [step.replace("/slot/01 ", "/slot/00 ") for step in again["plan"]] == told["plan"] and MARKER in config(
        folder
    )["annotations"]


def test_ps_and_release_through_a_containers_life(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    folder = bundle(ASK)
    assert runc.create(folder, prefix).returncode == 0
    id = runc.ids[-1]
    assert runc("start", id).returncode == 0
    (grant,) = answer(prefix, "ps")["containers"]
    assert (grant["id"], grant["bundle"], grant["pid"]) == (id, str(folder), runc.pid(id))
    (gpu,) = grant["gpus"]
    assert (gpu["index"], gpu["uuid"], gpu["memory_mib"], gpu["compute"]) == (1, UUIDS[1], 6144, 20)

    (error,) = answer(prefix, "release", id, status=1)["errors"]
    assert error["code"] == "GH-407" and id in error["message"]
    assert len(answer(prefix, "ps")["containers"]) == 1

    runc("kill", id, "KILL")
    for _ in range(100):
        if id not in runc.living():
            break
        time.sleep(0.05)
    assert answer(prefix, "ps") == {"containers": []}
    assert answer(prefix, "release", id) == {"released": [grant["key"]]}
    (error,) = answer(prefix, "release", id, status=1)["errors"]
    assert error["code"] == "GH-410"


def test_a_second_container_is_refused_in_the_words_of_explain(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    big = {"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_PERCENT": "80"}
    assert runc.create(bundle(big), prefix).returncode == 0
    second = bundle(big)
    (error,) = answer(prefix, "explain", "--spec", str(second / "config.json"), status=1)["errors"]
    done = runc.create(second, prefix, flags=["--log", str(second / "log")])
    assert done.returncode == 1
    assert done.stderr == f"{error['code']}: {error['message']}\n"
    assert error["code"] == "GH-201"
