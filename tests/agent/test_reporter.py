"""The agent's side of the reporter: it runs where the node is in a cluster, its word is the agent's problem, and it comes back."""

import os
import selectors
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from oci_hook.agent.audit import Use
from oci_hook.agent.node import Node
from oci_hook.agent.options import Options
from oci_hook.agent.reporter import Reporter, busy
from oci_hook.agent.view import Watched
from oci_hook.core.slot_page import Gate
from tests.conftest import Install

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


def test_it_runs_tells_and_comes_back(prefix: Install, tmp_path: Path) -> None:
    """Without an API server in reach the reporter stays, with a problem; with settings that cannot do it ends, with its reason."""
    with selectors.DefaultSelector() as selector:
        node = Node(str(prefix.prefix), Options())
        reporter = Reporter(node, selector)

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
        last = reporter.pid
        prefix.set(cluster="off")
        until(lambda: reporter.pid == 0)
        assert not node.problems and not os.path.exists(f"/proc/{last}/exe")
        reporter.stop()


def test_it_tells_how_busy_containers_are_and_never_waits_for_the_reporter(prefix: Install, tmp_path: Path) -> None:
    """A reporter that is stopped reads nothing: its pipe fills, and the agent goes on. It reads on when it continues."""
    with selectors.DefaultSelector() as selector:
        node = Node(str(prefix.prefix), Options(interference=True))
        for n in range(40):
            node.watched[f"{n:064x}"] = watched = Watched()
            watched.set_use("GPU-0", Use(0, 50, ()))
        reporter = Reporter(node, selector)
        (tmp_path / "conf").write_text(
            "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n"
            "clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1', certificate-authority: ca}}]\n"
            "users: [{name: u, user: {token: x}}]\n"
        )
        (tmp_path / "ca").write_text("")
        prefix.set(
            cluster="local",
            **{"agent.kubeconfig": str(tmp_path / "conf"), "agent.node": "n1", "agent.interference": True},
        )
        node.load_settings()
        try:
            reporter.tick(time.monotonic())
            pid = reporter.pid
            assert pid
            os.kill(pid, signal.SIGSTOP)
            for _ in range(100):  # 300 kB, more than a pipe holds
                reporter.tick(time.monotonic())
            assert reporter.pid == pid and reporter.starts == 1
            os.kill(pid, signal.SIGCONT)
            end = time.monotonic() + 120
            while "cannot be watched" not in node.problems.get("cluster", ""):
                assert time.monotonic() < end, node.problems
                reporter.tick(time.monotonic())
                for key, _ in selector.select(0.05):
                    key.data(time.monotonic())
            assert reporter.pid == pid, "half a line does not end it"
        finally:
            reporter.stop()


def test_the_busiest_gpu_counts_and_the_drivers_figure_where_the_gate_has_none() -> None:
    gated, alone, idle = Watched(), Watched(), Watched()
    for now, charged in ((1.0, 0.0), (2.0, 0.4)):
        gated.meter("GPU-0").step(now, Gate(charged=charged, wanted=charged))
    gated.set_gate("GPU-0", Gate(preempt_bound=0.004))
    gated.set_gate("GPU-1", Gate(preempt_bound=0.001))
    gated.set_use("GPU-0", Use(0, 90, ()))
    gated.set_use("GPU-1", Use(0, 20, ()))
    alone.set_use("GPU-0", Use(0, 70, ()))
    idle.set_use("GPU-0", Use(0, -1, ()))
    assert busy({"g": gated, "a": alone, "i": idle, "n": Watched()}) == {
        "g": (40.0, 4.0),
        "a": (70.0, 0.0),
        "i": (0.0, 0.0),
    }
