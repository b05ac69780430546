"""The agent looks after the driver's limits of real containers: its server, what it sets again and clears, what it shows."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from oci_hook.agent.act import driver_limits
from oci_hook.core.boundary import Boundary
from oci_hook.core.grant import Grant, Identity, Life
from oci_hook.linux.proc import read_file
from testbed import REPO
from testbed import agent as box
from testbed.boundary import ASK, DRIVER, Node, Stub
from testbed.containers import Bundle
from testbed.until import until
from tests.boundary.test_attacks import with_cgroups

pytestmark = pytest.mark.root
SET_LIMIT = """
import sys
from oci_hook.boundary.nvml_limits import NvmlLimits
from oci_hook.core.boundary import Limit
library, files, path, uuid, size = sys.argv[1:]
NvmlLimits(library, (("GPU_HOOK_SIM_GPUS", files),)).set(Limit(uuid, 0, int(size)), path)
"""
BACKENDS = pytest.mark.parametrize(
    "node", [{"limits": "dmem"}, {"limits": "misc"}], indirect=True, ids=["dmem", "misc"]
)


class Agent:
    """A running one, on the node. Its metrics are written to a file, since the node has a network of its own."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.file = node.folder / "metrics.prom"
        self.log = node.folder / f"agent{time.monotonic_ns()}.log"
        flags = ("--interval", "0.2", "--address", "none", "--textfile", str(self.file))
        # With no more rights than its unit gives it.
        rights = ("setpriv", "--no-new-privs", "--bounding-set", ",".join(("-all", *box.capabilities())))
        run = (sys.executable, "-m", "oci_hook", "agent", "--prefix", str(node.prefix), *flags)
        command = node.place.enter(*rights, *run)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=REPO, stderr=log, stdin=subprocess.DEVNULL)

    def metrics(self) -> dict[str, float]:
        """By name and labels; fresh ones, since the file is of any age."""
        before = self.file.stat().st_mtime_ns if self.file.exists() else 0
        until(lambda: self.file.exists() and self.file.stat().st_mtime_ns != before)
        lines = [line for line in self.file.read_text().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def metric(self, *parts: str) -> float:
        """The one metric whose name and labels have all these parts."""
        found = [value for name, value in self.metrics().items() if all(part in name for part in parts)]
        return found[0] if len(found) == 1 else float("nan")

    def served(self) -> None:
        until(lambda: self.metric("gpu_hook_boundary_server_up") == 1)

    def server(self) -> int:
        """The pid of its server, 0: there is none."""
        children = psutil.Process(self.process.pid).children()
        return next((child.pid for child in children if b"oci_hook.boundary.server" in cmdline(child.pid)), 0)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(120) == 0, self.log.read_text()


def cmdline(pid: int) -> bytes:
    try:
        return read_file(f"/proc/{pid}/cmdline", 4096)
    except OSError:
        return b""


@pytest.fixture
def agent(node: Node) -> Iterator[Agent]:
    made = Agent(node)
    yield made
    if made.process.poll() is None:
        made.process.kill()
        made.process.wait()


def set_limit(node: Node, cgroup: str, size: int) -> None:
    """As nvidia-smi does it beside us."""
    files = str(node.state / "sim/gpus")
    words = (str(node.library), files, cgroup, node.uuids[0], str(size))
    done = node.run(sys.executable, "-c", SET_LIMIT, *words, cwd=REPO)
    assert done.returncode == 0, done


@pytest.mark.parametrize("year", [1971, 2099])
def test_a_wrong_clock_changes_nothing(year: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container without a record, whose limits the agent may set once its start does not any more."""
    monkeypatch.setattr(driver_limits, "expected", lambda *_: Boundary("driver"))

    def wanted(seconds: int) -> bool:
        ticks = int((time.clock_gettime(time.CLOCK_BOOTTIME) - seconds) * os.sysconf("SC_CLK_TCK"))
        who = Identity("/run/runc", "c1", "/b")
        grant = Grant("k", who, Life("boot", init=(1, ticks)), (), created=(year - 1970) * 31_557_600)
        watch = driver_limits.DriverLimits(SimpleNamespace(grants={"k": grant}, inventory=object()), None)  # type: ignore[arg-type]
        return watch._wants_check("k", None)

    assert not wanted(20) and wanted(60)


@BACKENDS
def test_a_limit_that_somebody_changed_is_set_again(node: Node, agent: Agent, bundle: Bundle, monkeypatch: Any) -> None:
    id = node.start(bundle(ASK))
    cgroup = node.cgroup(id)
    assert node.limits(cgroup) == [1024]
    for size in (4 << 30, (1 << 64) - 1):
        repaired = len(node.events("boundary-repaired"))
        set_limit(node, cgroup, size)
        until(lambda: node.limits(cgroup) == [1024])
        until(lambda before=repaired: len(node.events("boundary-repaired")) > before)
    assert agent.metric("gpu_hook_boundary_repaired_total") == 2
    assert agent.metric("container_boundary{", 'boundary="driver"') == 1
    assert agent.metric("container_memory_driver_limit_bytes") == 1 << 30
    assert node.delete(id).returncode == 0


@pytest.mark.parametrize("fault", ["fail init", "fail set", "hang init"])
def test_a_container_that_fell_back_gets_its_limit_later(node: Node, bundle: Bundle, fault: str) -> None:
    """As soon as the driver works again."""
    stub = Stub(node)
    stub.fault(fault)
    id = node.start(bundle(ASK))
    assert [e["id"] for e in node.events("boundary-fallback")] == [id] and stub.limits() == []
    [why] = [record.why for record in node.records()]
    assert why and f"held by the shim alone: {why}" in node.cli("ps")
    agent = Agent(node)
    try:
        if "fail" in fault:
            agent.served()
            assert stub.limits() == []
        stub.fault("")
        until(lambda: stub.limits() == [f"{node.uuids[0]} 1024"])
        until(lambda: [e["id"] for e in node.events("boundary-repaired")] == [id])
        assert [record.state for record in node.records()] == ["set"]
    finally:
        agent.stop()


def test_a_limit_goes_to_the_containers_cgroup_and_not_where_it_went(node: Node, bundle: Bundle) -> None:
    """The container fell back and moved itself into its neighbour's cgroup."""
    stub = Stub(node)
    neighbour = node.start(bundle({**ASK, "gpu-hook.io/memory": "3Gi"}))
    stub.fault("fail set")
    id = node.start(bundle(ASK))
    stub.fault("")
    Path(f"/proc/{node.place.keeper.pid}/root{node.cgroup(neighbour)}/cgroup.procs").write_text(str(node.pid(id)))
    said = node.cli("set", id, "--memory", "512Mi")
    assert "the shim alone" not in said
    assert sorted(stub.limits()) == [f"{node.uuids[0]} 3072", f"{node.uuids[0]} 512"]


@pytest.mark.parametrize("ask", [ASK, DRIVER], ids=["auto", "driver"])
def test_a_limit_whose_record_is_lost_is_set_again(
    node: Node, agent: Agent, bundle: Bundle, ask: dict[str, str]
) -> None:
    agent.served()
    id = node.start(bundle(ask))
    [grant] = node.grants()
    (node.state / "boundary" / grant.key).unlink()
    set_limit(node, node.cgroup(id), (1 << 64) - 1)
    # Twice, where it looked between the two lines.
    until(lambda: node.limits(node.cgroup(id)) == [1024])
    until(lambda: {e["id"] for e in node.events("boundary-repaired")} == {id})


def test_an_agent_that_starts_anew_goes_on(node: Node, bundle: Bundle) -> None:
    """Also with a container from before that ended while no agent ran, and whose poststop was not called."""
    first = Agent(node)
    first.served()
    kept, ended = node.start(bundle(ASK)), node.start(bundle({**ASK, "gpu-hook.io/devices": "1"}))
    assert len(node.records()) == 2
    cgroup = node.cgroup(ended)
    server = first.server()
    first.process.kill()
    first.process.wait()
    until(lambda: not server or not os.path.exists(f"/proc/{server}"))
    os.kill(node.pid(ended), signal.SIGKILL)
    set_limit(node, node.cgroup(kept), 2 << 30)
    second = Agent(node)
    try:
        until(lambda: [record.id for record in node.records()] == [kept])
        until(lambda: node.limits(node.cgroup(kept)) == [1024])
        assert node.limits(cgroup, node.uuids[1]) in ([-1], [-2])
    finally:
        second.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
def test_a_server_that_fails_is_started_again(node: Node, agent: Agent, bundle: Bundle, number: signal.Signals) -> None:
    """Meanwhile a container gets its limit all the same."""
    agent.served()
    server = until(agent.server)
    running = node.start(bundle(DRIVER))
    os.kill(server, number)
    id = node.start(bundle({**DRIVER, "gpu-hook.io/devices": "1"}))
    assert node.limits(node.cgroup(id), node.uuids[1]) == [1024]
    another = until(lambda: (pid := agent.server()) and pid != server and pid)
    until(lambda: agent.metric("gpu_hook_boundary_server_up") == 1)
    set_limit(node, node.cgroup(running), 2 << 30)
    until(lambda: node.limits(node.cgroup(running)) == [1024])
    assert agent.server() == another


def test_nothing_is_set_for_who_has_the_shim_alone(node: Node, agent: Agent, bundle: Bundle) -> None:
    node.set(boundary="shim")
    agent.served()
    id = node.start(bundle(ASK))
    cgroup = node.cgroup(id)
    until(lambda: agent.metric("container_boundary{", 'boundary="shim"') == 1)
    set_limit(node, cgroup, 4 << 30)  # somebody else's
    for _ in range(5):
        agent.metrics()
    assert node.limits(cgroup) == [4096] and node.records() == []
    assert agent.metric("gpu_hook_boundary_repaired_total") == 0
    assert node.delete(id).returncode == 0
    assert node.events("boundary-repaired") == []


@pytest.mark.parametrize("node", [{"driver": "550"}], indirect=True)
def test_before_615_there_is_no_server(node: Node, agent: Agent, bundle: Bundle) -> None:
    assert agent.metric("gpu_hook_gpu_driver_limits{", 'gpu="0"') == 0
    assert agent.metric("gpu_hook_boundary_server_up") == 0 and agent.server() == 0
    id = node.start(bundle(ASK))
    assert until(lambda: agent.metric("container_boundary{", 'boundary="shim"') == 1)
    [container] = json.loads(node.cli("ps", "--json"))["containers"]
    assert container["id"] == id and "is older than 615" in container["boundary_why"]
    assert not container["boundary_failed"]


# --- the driver's figure of a cgroup


@pytest.fixture(scope="module")
def image(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = box.image(tmp_path_factory.mktemp("image"))
    (root / "real").mkdir()
    (root / "real/libcuda.so.1").symlink_to("/run/gpu-hook/driver/cuda")
    return root


def probe(node: Node, bundle: Bundle, image: Path, memory: str, script: str) -> str:
    """A container that runs the script; its id. Its output is in no pipe."""
    ask = {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": memory}
    return node.start(bundle(ask, (), ("/bin/sh", "-c", f"export PATH=/bin; {script}; sleep 300"), image))


PAST_THE_SHIM = "LD_LIBRARY_PATH=/real "


def test_what_a_forked_child_holds_is_found_and_its_neighbour_protected(
    node: Node, agent: Agent, bundle: Bundle, image: Path
) -> None:
    """NVML lists no process for it, no page has it, and both containers could have it: the driver's figure tells whose it
    is. The shim alone holds the limits, else there would be no excess."""
    node.set(boundary="shim")
    agent.served()
    neighbour = probe(node, bundle, image, "6Gi", "gpu-probe alloc 500 hold 300")
    thief = probe(node, bundle, image, "1Gi", f"{PAST_THE_SHIM} gpu-probe alloc 4000 fork hold 300")
    found = until(lambda: [e for e in node.events("finding") if e["action"] == "killed"])
    assert [(e["id"], e["kind"]) for e in found] == [(thief, "over-memory")]
    until(lambda: [grant.who.id for grant in node.grants()] == [neighbour])


@pytest.mark.parametrize("node", [{"limits": "misc"}], indirect=True)
def test_who_leaves_its_cgroup_is_found(node: Node, agent: Agent, bundle: Bundle, image: Path) -> None:
    """With the back-end misc a limit does not hold below its cgroup."""

    def edit(spec: dict[str, Any]) -> None:
        with_cgroups(spec)
        leave = "busybox mkdir /sys/fs/cgroup/mine && echo $$ > /sys/fs/cgroup/mine/cgroup.procs"
        script = f"export PATH=/bin; {leave}; {PAST_THE_SHIM} gpu-probe alloc 3000 hold 300"
        spec["process"]["args"] = ["/bin/sh", "-c", script]

    agent.served()
    id = node.start(bundle(ASK, (), (), image, edit))
    assert node.limits(node.cgroup(id).removesuffix("/mine")) == [1024]
    kinds = {"over-memory", "no-shim", "charged-elsewhere"}
    until(lambda: {e["kind"] for e in node.events("finding") if e["id"] == id} >= kinds)
    elsewhere = next(e for e in node.events("finding") if e["kind"] == "charged-elsewhere")
    assert elsewhere["action"] == "reported"


@BACKENDS
def test_the_three_figures_of_an_honest_container_agree(node: Node, agent: Agent, bundle: Bundle, image: Path) -> None:
    agent.served()
    probe(node, bundle, image, "1Gi", "gpu-probe alloc 500 fork hold 300 & gpu-probe alloc 100 hold 300")
    until(lambda: agent.metric("container_memory_charged_bytes") == (500 + 100 + 2 * 64) << 20)
    assert agent.metric("container_memory_used_bytes") == (500 + 100 + 2 * 64) << 20
    for _ in range(6):
        agent.metrics()
    assert node.events("finding") == []
    assert agent.metric("container_memory_surcharge_bytes") == 0
