"""The driver's limit at a container's start and end, with real runc: by the server, and by the helper without it."""

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from oci_hook.boundary import limit_records
from oci_hook.oci import cgroup_mounts
from testbed.boundary import ASK, DRIVER, Node, Stub
from testbed.containers import Bundle

pytestmark = pytest.mark.root
BOTH = pytest.mark.parametrize("node", [{"limits": "dmem"}, {"limits": "misc"}], indirect=True, ids=["dmem", "misc"])
MISC = pytest.mark.parametrize("node", [{"limits": "misc"}], indirect=True, ids=["misc"])
OLD = pytest.mark.parametrize("node", [{"driver": "550"}], indirect=True, ids=["550"])


@BOTH
@pytest.mark.parametrize("served", [True, False], ids=["server", "helper"])
def test_a_share_has_the_drivers_limit_while_it_runs(node: Node, bundle: Bundle, served: bool) -> None:
    if served:
        node.serve()
    id = node.start(bundle(ASK))
    cgroup = node.cgroup(id)
    assert node.limits(cgroup) == [1024]
    [record] = node.records()
    assert record.state == "set" and record.id == id
    assert node.delete(id).returncode == 0
    assert node.limits(cgroup) == [-2], "neither limit nor cgroup is left"
    assert node.records() == [] and node.grants() == ()
    assert node.events("boundary-fallback") == []


def test_the_setting_adds_to_the_limit(node: Node, bundle: Bundle) -> None:
    node.set(driver_limit_extra="300Mi")
    assert node.limits(node.cgroup(node.start(bundle(ASK)))) == [1324]


def test_several_gpus_have_limits_of_their_own(node: Node, bundle: Bundle) -> None:
    request = {"gpu-hook.io/request": json.dumps([{"memory": "1Gi"}, {"memory": "3Gi"}])}
    id = node.start(bundle(request))
    [grant] = node.grants()
    shares = [share.uuid for share in grant.shares]
    assert node.limits(node.cgroup(id), *shares) == [1024, 3072]
    other = node.start(bundle({**ASK, "gpu-hook.io/memory": "512Mi"}))
    assert node.limits(node.cgroup(other), *node.uuids) == [512, -1]
    assert node.limits(node.cgroup(id), *shares) == [1024, 3072]


def test_the_limit_is_there_before_the_program(node: Node, bundle: Bundle) -> None:
    """`create` alone: the container's program has not started."""
    assert node.create(bundle(DRIVER)).returncode == 0
    assert node.limits(node.cgroup(node.runc.ids[-1])) == [1024]


@OLD
def test_an_older_driver(node: Node, bundle: Bundle) -> None:
    """auto is as if there were no such thing, driver is refused with the reason."""
    folder = bundle(ASK)
    before = json.loads((folder / "config.json").read_text())
    id = node.start(folder)
    edited = json.loads((folder / "config.json").read_text())
    assert edited.get("hooks") == before.get("hooks")
    assert node.records() == [] and not (node.state / "boundary").exists()
    node.delete(id)
    refused = node.create(bundle(DRIVER))
    assert refused.returncode == 1 and "GH-204" in refused.stderr and "is older than 615" in refused.stderr, refused
    node.set(boundary="driver")
    assert "GH-204" in node.create(bundle(ASK)).stderr
    assert node.create(bundle({"gpu-hook.io/gpus": "1"})).returncode == 0, "a whole GPU has no limit"


def test_without_cgroup_v2(node: Node, bundle: Bundle) -> None:
    """The GPUs are listed where version 1 is at /sys/fs/cgroup."""
    command = ["gpus", "--refresh", "--prefix", str(node.prefix)]
    done = subprocess.run([*node.python, *command], cwd=node.cwd, capture_output=True, text=True)
    assert done.returncode == 0, done
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        pytest.skip("cgroup v2 is at /sys/fs/cgroup of this machine")
    refused = node.create(bundle(DRIVER))
    assert "GH-204" in refused.stderr and "cgroup v2 at /sys/fs/cgroup" in refused.stderr, refused
    folder = bundle(ASK)
    node.start(folder)
    assert "hooks" not in json.loads((folder / "config.json").read_text())


def test_the_setting_shim_asks_nobody(node: Node, bundle: Bundle) -> None:
    node.set(boundary="shim")
    folder = bundle(ASK)
    id = node.start(folder)
    assert "hooks" not in json.loads((folder / "config.json").read_text())
    assert node.limits(node.cgroup(id)) == [-1] and node.records() == []
    stronger = node.start(bundle(DRIVER))
    assert node.limits(node.cgroup(stronger)) == [1024]


def test_a_weaker_boundary_than_the_nodes_is_refused(node: Node, bundle: Bundle) -> None:
    refused = node.create(bundle({**ASK, "gpu-hook.io/boundary": "shim"}))
    assert refused.returncode == 1 and "GH-103" in refused.stderr, refused


@MISC
@pytest.mark.parametrize("ask", [ASK, {"gpu-hook.io/gpus": "1", "gpu-hook.io/devices": "0"}], ids=["share", "whole"])
def test_an_old_limit_of_the_same_path_is_not_inherited(node: Node, bundle: Bundle, ask: dict[str, str]) -> None:
    id = node.runc.new_id()
    cgroup = f"/sys/fs/cgroup/{id}"
    code = (
        "import os, sys; from oci_hook.boundary.nvml_limits import NvmlLimits; from oci_hook.core.boundary import Limit;"
        "os.mkdir(sys.argv[3]); n = NvmlLimits(sys.argv[1], (('GPU_HOOK_SIM_GPUS', sys.argv[2]),));"
        "n.set(Limit(sys.argv[4], 0, 77 << 20), sys.argv[3]); os.rmdir(sys.argv[3])"
    )
    files = str(node.state / "sim/gpus")
    done = node.run(*node.python[:1], "-c", code, str(node.library), files, cgroup, node.uuids[0], cwd=node.cwd)
    assert done.returncode == 0, done
    assert node.limits(cgroup) == [77], "the driver keeps it without a cgroup"
    node.start(bundle(ask), id)
    assert node.cgroup(id) == cgroup
    assert node.limits(cgroup) == [1024 if ask == ASK else -1]


@pytest.mark.parametrize("served", [True, False], ids=["server", "helper"])
@pytest.mark.parametrize("fault", ["fail init", "fail handle", "fail set 2", "wrong set", "crash set 2"])
def test_a_driver_that_fails(node: Node, bundle: Bundle, fault: str, served: bool) -> None:
    """auto: the container runs with the shim alone, and an event says so. driver: nothing of it is left."""
    stub = Stub(node)
    stub.fault(fault)
    if served:
        node.serve()
    asked = {"gpu-hook.io/memory": "1Gi", "gpu-hook.io/gpus": "2"}
    refused = node.create(bundle({**asked, "gpu-hook.io/boundary": "driver"}))
    assert refused.returncode != 0 and "GH-414" in refused.stderr, refused
    assert node.grants() == () and node.runc.living() == set()
    if fault != "crash set 2":
        assert node.records() == [] and stub.limits() == []
    if served:
        node.stop_server()
        node.serve()
    id = node.start(bundle(asked))
    [event] = node.events("boundary-fallback")
    assert event["id"] == id
    stub.fault("")
    if fault != "crash set 2":
        assert stub.limits() == []
    node.delete(id)
    last = node.start(bundle(asked))  # clears what is left of the others
    assert len(stub.limits()) == 2 and [record.id for record in node.records()] == [last]


@pytest.mark.parametrize("served", [True, False], ids=["server", "helper"])
def test_a_driver_that_hangs(node: Node, bundle: Bundle, served: bool) -> None:
    stub = Stub(node)
    if served:
        node.serve()
    stub.fault("hang set")
    refused = node.create(bundle(DRIVER))
    assert refused.returncode != 0 and "GH-414" in refused.stderr, refused
    assert node.grants() == () and node.runc.living() == set()
    id = node.start(bundle(ASK))  # it does not wait for the driver again
    (event,) = node.events("boundary-fallback")
    assert event["id"] == id and "did not answer a container before" in event["why"]
    stub.fault("")
    os.utime(node.state / "boundary/hung", (0, 0))
    last = node.start(bundle(ASK))
    assert last in {record.id for record in node.records() if record.state == "set"}


def test_many_at_once_without_the_server(node: Node, bundle: Bundle) -> None:
    """NVML's start takes a second; nobody waits for the others' ones."""
    stub = Stub(node)
    stub.fault("slow init")
    node.set(default_policy="best-effort")
    folders = [bundle({**DRIVER, "gpu-hook.io/memory": f"{64 + n}Mi"}) for n in range(12)]
    ids = [node.runc.new_id() for _ in folders]
    with ThreadPoolExecutor(len(ids)) as pool:
        done = list(pool.map(node.create, folders, ids))
    assert [d.stderr for d in done if d.returncode] == []
    assert {record.id for record in node.records() if record.state == "set"} == set(ids)


def test_nobody_is_told_to_end_a_helper(node: Node, bundle: Bundle) -> None:
    """A lock that is held for longer than the helper may take."""
    (node.state / "boundary").mkdir(mode=0o700)
    lock = limit_records.lock(str(node.state))
    try:
        done = node.create(bundle(DRIVER))
    finally:
        os.close(lock)
    assert (
        done.returncode != 0 and "is locked for" in done.stderr and "other containers' limits: try again" in done.stderr
    ), done
    assert "end it" not in done.stderr and node.grants() == ()


def test_a_helper_that_is_killed_leaves_a_record(node: Node, bundle: Bundle) -> None:
    """Killed between record and limit, and its container with it: the next start clears what it began."""
    stub = Stub(node)
    stub.fault("hang set 2")
    folder = bundle({"gpu-hook.io/memory": "1Gi", "gpu-hook.io/gpus": "2"})
    command = node.place.enter(node.program, "--root", str(node.runc.root), "create", "--bundle", str(folder))
    with open(node.folder / "said", "w") as said:
        child = subprocess.Popen([*command, node.runc.new_id()], stdout=said, stderr=said, stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(stub.limits()) < 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    [record] = node.records()
    assert record.state == "setting" and len(record.limits) == 2 and record.cgroups
    child.kill()  # the runtime, so that it runs no poststop hook
    child.wait(120)
    kill_helpers(record.key)
    stub.fault("")
    assert len(stub.limits()) == 1, "nobody has cleared it yet"
    node.start(bundle(ASK))
    assert [record.state for record in node.records()] == ["set"]
    assert stub.limits() == [f"{node.uuids[0]} 1024"]


def kill_helpers(key: str) -> None:
    """The helper that sets the limits of this grant, and its child."""
    words = f"boundary\0set\0{key}\0"
    all = psutil.process_iter(["cmdline"])
    found = [process for process in all if words in "\0".join((*(process.info["cmdline"] or ()), ""))]
    assert len(found) == 2, found
    for process in found:
        process.kill()


def test_the_hook_alone(node: Node, bundle: Bundle) -> None:
    """oci-gpu-hook with plain runc, without the wrapper."""

    def edit(spec: dict[str, Any]) -> None:
        env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        spec["hooks"] = {
            stage: [{"path": node.hook, "args": ["oci-gpu-hook", stage], "env": env}]
            for stage in ("createRuntime", "poststop")
        }

    id = node.runc.new_id()
    done = node.runtime("run", "--detach", "--bundle", str(bundle(DRIVER, edit=edit)), id, program="runc")
    assert done.returncode == 0, done
    cgroup = node.cgroup(id)
    assert node.limits(cgroup) == [1024]
    assert node.runtime("delete", "--force", id, program="runc").returncode == 0
    assert node.records() == [] and node.limits(cgroup) == [-2]


def test_the_hook_alone_where_the_driver_fails(node: Node, bundle: Bundle) -> None:
    stub = Stub(node)
    stub.fault("fail set")

    def edit(spec: dict[str, Any]) -> None:
        env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        spec["hooks"] = {"createRuntime": [{"path": node.hook, "args": ["oci-gpu-hook", "createRuntime"], "env": env}]}

    done = node.runtime("create", "--bundle", str(bundle(DRIVER, edit=edit)), node.runc.new_id(), program="runc")
    assert done.returncode != 0 and "GH-414" in done.stderr, done
    assert node.grants() == ()


def test_a_spec_that_is_made_anew_has_the_hooks_once(node: Node, bundle: Bundle) -> None:
    folder = bundle(ASK)
    node.delete(node.start(folder))
    id = node.start(folder)
    spec = json.loads((folder / "config.json").read_text())
    [grant] = node.grants()
    for stage in ("createRuntime", "poststop"):
        [entry] = spec["hooks"][stage]
        assert entry["args"][-1] == grant.key
    assert node.limits(node.cgroup(id)) == [1024]


@pytest.mark.parametrize(
    ("source", "options", "place"),
    [
        ("/sys/fs/cgroup", "rbind", "/a"),
        ("/sys/fs/cgroup/x", "bind rw", "/a"),
        ("//sys/fs/cgroup", "bind", "/a"),
        ("/sys/fs/./cgroup/", "bind", "/a"),
        ("/proc/self/root/sys/fs/cgroup", "bind", "/a"),
        ("/sys", "rbind", "/a/fs/cgroup"),
        ("/sys/fs", "rbind rw", "/a/cgroup"),
        ("/", "rbind", "/a/sys/fs/cgroup"),
        ("/", "rbind ro", "/a/sys/fs/cgroup"),  # of a tree, `ro` is for the topmost mount
        ("/", "rbind ro rrw", "/a/sys/fs/cgroup"),
        ("/sys/fs/cgroup", "rbind ro rrw", "/a"),
        ("/", "rbind rro", ""),
        ("/sys/fs/cgroup", "rbind rro", ""),
        ("/sys/fs/cgroup", "rbind rw ro", ""),
        ("/sys", "bind", ""),  # without what is mounted below
        ("/sys/fs/cgroups", "rbind", ""),
        ("sysfs", "rbind", ""),
    ],
)
def test_binds_that_bring_cgroups_to_write_to(source: str, options: str, place: str) -> None:
    bind: Any = {"destination": "/a", "type": "bind", "source": source, "options": options.split()}
    assert cgroup_mounts.writable({"mounts": [bind]}) == place
    cover: Any = {"destination": place, "type": "bind", "source": "/sys/fs/cgroup", "options": ["rbind", "ro"]}
    assert not place or cgroup_mounts.writable({"mounts": [bind, cover]}) == ""
    assert cgroup_mounts.writable({"mounts": [cover, bind]}) == place


@pytest.mark.parametrize("how", ["cgroup", "cgroup2", "bind", "tree"])
def test_who_may_write_to_its_cgroups_gets_no_boundary_driver(node: Node, bundle: Bundle, how: str) -> None:
    """It could make cgroups below its own, for which the limit may not hold. With auto it runs, as before."""
    binds = {"bind": ("/sys/fs/cgroup", "/sys/fs/cgroup", ["rbind", "rw"]), "tree": ("/sys", "/host", ["rbind", "ro"])}
    kind = "none" if how in binds else how
    source, destination, options = binds.get(how, ("cgroup", "/sys/fs/cgroup", ["nosuid"]))

    def edit(spec: dict[str, Any]) -> None:
        spec["mounts"] = [m for m in spec["mounts"] if m["destination"] != "/sys/fs/cgroup"]
        spec["mounts"].append({"destination": destination, "type": kind, "source": source, "options": options})

    refused = node.create(bundle(DRIVER, edit=edit))
    assert refused.returncode == 1 and "GH-414" in refused.stderr and "write to its cgroups" in refused.stderr, refused
    assert node.grants() == () and node.records() == []
    assert node.create(bundle(ASK, edit=edit)).returncode == 0
