"""scripts/cluster itself: clusters side by side, nothing left behind, and what it says where it cannot run."""

import os
import subprocess
from pathlib import Path

import pytest

from testbed import REPO
from testbed.cluster import lab, machine, programs

SCRIPT = str(REPO / "scripts/cluster")


def test_a_second_cluster_beside_it_leaves_nothing(cluster: lab.Cluster, tmp_path: Path) -> None:
    state = tmp_path / "a second one"
    second = lab.Cluster(state)
    second.up([lab.Gpus(1, "8Gi")])
    names = [n.name for n in cluster.nodes]
    try:
        assert second.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}") == "n1"
        assert cluster.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").split() == names
        processes = [p for p in os.listdir("/proc") if p.isdigit() and in_cluster(p, second.id)]
        assert len(processes) > 5
    finally:
        second.down()
    assert not state.exists() and os.listdir(tmp_path) == []
    assert not [h for h in machine.hierarchies() if list(h.glob(f"*{second.id}*"))]
    assert not {"n1", "kube0"} & set(os.listdir("/sys/class/net"))
    assert str(state) not in Path("/proc/self/mountinfo").read_text()
    lab.wait(30, "its processes are gone, zombies too", lambda: not any(in_cluster(p, second.id) for p in processes))


def in_cluster(pid: str, cluster: str) -> bool:
    try:
        return f"gpu-hook-cluster-{cluster}-" in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def test_a_machine_cannot_change_the_computer(cluster: lab.Cluster) -> None:
    node = cluster.node(1)
    for path in ("/usr/gpu-hook-test", "/root/gpu-hook-test", f"{REPO}/gpu-hook-test"):
        if not path.startswith("/tmp/"):  # a machine has its own /tmp, where this checkout may be
            assert node.machine.run("touch", path, check=False).returncode, path
    overcommit = Path("/proc/sys/vm/overcommit_memory").read_text()
    node.machine.write("/proc/sys/vm/overcommit_memory", "2\n")
    boot = "/proc/sys/kernel/random/boot_id"  # by which a ledger knows that its node started anew
    assert node.machine.run("cat", boot).stdout != Path(boot).read_text()
    node.machine.write("/etc/gpu-hook-test", "mine\n")
    node.machine.write("/tmp/gpu-hook-test", "mine\n")
    assert Path("/proc/sys/vm/overcommit_memory").read_text() == overcommit
    assert not os.path.exists("/etc/gpu-hook-test") and not os.path.exists("/tmp/gpu-hook-test")
    node.machine.run("rm", "/etc/gpu-hook-test", "/tmp/gpu-hook-test")


def test_the_command_line(cluster: lab.Cluster) -> None:
    def say(*arguments: str) -> str:
        state = ["--state", str(cluster.state)]
        return subprocess.run([SCRIPT, *state, *arguments], capture_output=True, text=True, check=True).stdout

    assert say("kubectl", "get", "nodes", "-o", "name").split() == [f"node/{n.name}" for n in cluster.nodes]
    assert say("node", "n3", "run", "hostname") == "n3\n"
    assert say("node", "3", "gpu-hook", "gpus").count("Simulated GPU 24 GiB") == 4
    assert say("control", "run", "hostname") == "control\n"
    assert say("status").splitlines()[:2] == ["control    on", "n1         on, 2 GPUs of 16Gi"]


def test_what_it_says_where_there_is_no_cluster(tmp_path: Path) -> None:
    done = subprocess.run(
        [SCRIPT, "--state", str(tmp_path / "none"), "kubectl", "get", "nodes"], capture_output=True, text=True
    )
    assert done.returncode == 2 and "scripts/cluster up N makes one" in done.stderr


def test_what_it_says_before_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(lab.CannotRun, match="scripts/cluster build"):
        lab.check()
    assert not programs.ready()


@pytest.mark.parametrize("text", ["", "x16Gi", "2", "-1x16Gi", "2x"])
def test_gpus_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="2x16Gi"):
        lab.Gpus.parse(text)
