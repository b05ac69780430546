"""The agent's side of the reporter: it runs where the node is in a cluster, its word is the agent's problem, and it comes back."""

import os
import selectors
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oci_hook.agent.node_state import NodeState
from oci_hook.agent.options import AgentOptions
from oci_hook.agent.watch.cluster_process import ClusterProcess
from testbed.installs import Install

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@pytest.fixture
def kubelet() -> Iterator[Path]:
    """A folder with a path so short that a socket below it has one of 107 bytes at most (unix(7))."""
    with tempfile.TemporaryDirectory(prefix="gh-kubelet-", dir="/tmp") as folder:
        yield Path(folder)


def test_it_runs_tells_and_comes_back(prefix: Install, tmp_path: Path, kubelet: Path) -> None:
    """Without an API server in reach the reporter stays, with a problem; with settings that cannot do it ends, with its reason."""
    with selectors.DefaultSelector() as selector:
        node = NodeState(str(prefix.prefix), AgentOptions())
        reporter = ClusterProcess(node, selector)

        def until(done: Callable[[], object]) -> None:
            end = time.monotonic() + 120
            while not done():
                assert time.monotonic() < end, (node.problems, reporter.view())
                node.load_settings()
                reporter.tick(time.monotonic())
                for key, _ in selector.select(0.05):
                    key.data(time.monotonic())

        reporter.tick(time.monotonic())
        assert reporter.view() is None and reporter.pid == 0 and not node.problems
        prefix.set(cluster="local", **{"agent.kubeconfig": str(tmp_path / "none")})
        until(lambda: "GH-608" in node.problems.get("cluster", "") and reporter.starts > 1)

        (tmp_path / "ca").write_text("")
        (tmp_path / "conf").write_text(
            "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n"
            "clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1', certificate-authority: ca}}]\n"
            "users: [{name: u, user: {token: x}}]\n"
        )
        prefix.set(**{"agent.kubeconfig": str(tmp_path / "conf"), "agent.node": "n1"})
        until(lambda: "cannot be watched" in node.problems.get("cluster", ""))
        first, starts = reporter.pid, reporter.starts
        view = reporter.view()
        assert first and view is not None and view["up"] and view["writes"] == 0
        os.kill(first, 9)
        until(lambda: reporter.starts > starts and reporter.pid not in (0, first))
        prefix.set(
            cluster="dra", **{"agent.device_plugins": f"{kubelet}/device-plugins"}
        )  # another process in its place
        until(lambda: (kubelet / "plugins/gpu-hook.io/dra.sock").exists())
        until(lambda: "ResourceSlices cannot be watched" in node.problems.get("cluster", ""))
        last = reporter.pid
        assert b"oci_hook.kube.dra" in Path(f"/proc/{last}/cmdline").read_bytes()
        prefix.set(cluster="off")
        until(lambda: reporter.pid == 0)
        assert not node.problems and not os.path.exists(f"/proc/{last}/exe")
        reporter.stop()


@pytest.mark.parametrize(("cluster", "most"), [("local", 60), ("dra", 15)])
def test_it_comes_back_soon_and_sooner_after_it_ran_well(prefix: Install, cluster: str, most: int) -> None:
    """The clock is the test's own: killed at once, it comes back after 2, 4, 8, ... seconds, at most `most`; after 2 x `most` seconds
    of running and no fewer, after 2 again. Pods with claims start and end only while the driver is there."""
    prefix.set(cluster=cluster)
    now = 0.0
    with selectors.DefaultSelector() as selector:
        node = NodeState(str(prefix.prefix), AgentOptions())
        node.load_settings()
        reporter = ClusterProcess(node, selector)
        reporter.tick(now)

        def back(after: float) -> float:
            """Kills it when it has run for so many seconds. The seconds until it runs again."""
            nonlocal now
            now += after
            pid, starts = reporter.pid, reporter.starts
            os.kill(pid, 9)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            ended = now
            reporter.tick(now)
            while reporter.starts == starts:
                now += 0.5
                reporter.tick(now)
            return now - ended

        try:
            waits = [back(0.0) for _ in range(8)]
            assert waits == [min(most, 2.0 * 2**i) for i in range(8)]
            assert back(2.0 * most) == most
            assert back(2.0 * most + 1) == 2 and back(0.0) == 4
        finally:
            reporter.stop()
