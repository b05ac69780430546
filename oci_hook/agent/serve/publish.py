"""Publishes the node as data for the web page and `top`, the agent's status, and the metrics."""

import os
import resource
import time
from typing import Any

from oci_hook import __version__
from oci_hook.agent.act.auditing import Auditing
from oci_hook.agent.act.driver_limits import DriverLimits
from oci_hook.agent.act.no_leases import NoLeases
from oci_hook.agent.act.protection import Protection
from oci_hook.agent.act.sampling import Sampling
from oci_hook.agent.node_state import NodeState
from oci_hook.agent.serve import textfile
from oci_hook.agent.serve.metrics import exposition
from oci_hook.agent.serve.process_view import processes
from oci_hook.agent.serve.recent import Recent
from oci_hook.agent.serve.view import view
from oci_hook.agent.watch.boundary_server import BoundaryServer
from oci_hook.agent.watch.cluster_process import ClusterProcess
from oci_hook.agent.watch.ledger_watch import LedgerWatch
from oci_hook.agent.watch.sampler import Sampler
from oci_hook.linux import proc


class Publisher:
    """`view` (view.view() with the agent's status), `history`, `processes`, `events` and `metrics`, each as of now."""

    def __init__(
        self,
        node: NodeState,
        ledger: LedgerWatch,
        sampler: Sampler,
        gpus: Sampling,
        auditing: Auditing,
        protection: Protection,
        leases: NoLeases,
        boundary: DriverLimits,
        boundary_server: BoundaryServer,
        reporter: ClusterProcess,
    ) -> None:
        self._node = node
        self._ledger = ledger
        self._sampler = sampler
        self._gpus = gpus
        self._auditing = auditing
        self._protection = protection
        self._leases = leases
        self._recent = Recent(node.state_dir)
        self._boundary = boundary
        self._boundary_server = boundary_server
        self._reporter = reporter
        self._started = time.time()
        self._view: dict[str, Any] = {}

    def status(self) -> dict[str, Any]:
        node = self._node
        return {
            "state": "degraded" if node.problems else "ok",
            "problems": dict(node.problems),
            "version": __version__,
            "page": node.page,
            "nvml": self._sampler.state,
            "state_dir": node.state_dir,
            "policy": node.options.policy,
            "interval": node.options.interval,
            "started": round(self._started, 1),
            "findings": node.counters.findings_total(),
            "ledger_read": self._ledger.read_at,
            "nvml_read": self._gpus.read_at,
            "boundary": {
                "server": self._boundary_server.state,
                "starts": self._boundary_server.starts,
                "repaired": self._boundary.repaired,
                "failed": self._boundary.failed + self._boundary_server.failures,
            },
            "cluster": self._reporter.view(),
            "processes": usage(
                {
                    "agent": os.getpid(),
                    "nvml": self._sampler.pid,
                    "boundary": self._boundary_server.pid,
                    "reporter": self._reporter.pid,
                }
            ),
        }

    def view(self) -> dict[str, Any]:
        node, verdict = self._node, self._auditing.verdict
        if not node.shown:
            self._view = view(
                node.inventory,
                node.grants,
                node.gpus,
                node.watched,
                (*verdict.findings, *self._leases.findings),
                verdict.unknown,
                self.status(),
                self._protection.guard.unlisted,
                self._boundary.found,
            )
            node.shown = True
        return {**self._view, "agent": self.status()}

    def history(self) -> dict[str, Any]:
        return {key: watched.history for key, watched in self._node.watched.items()}

    def processes(self) -> list[dict[str, Any]]:
        return processes(self._node.gpus, self._auditing.processes)

    def events(self) -> dict[str, Any]:
        if self._recent.state_dir != self._node.state_dir:
            self._recent = Recent(self._node.state_dir)
        return self._recent.read(grant.who for grant in self._node.grants.values())

    def healthy(self) -> bool:
        return not self._node.problems

    def metrics(self) -> bytes:
        self._node.counters.follow(self._node.state_dir)
        return exposition(self.view(), self._node.counters)

    def write_textfile(self) -> None:
        path = self._node.options.textfile
        if path != "none":
            self._node.problem("textfile", textfile.write(path, self.metrics()))


def usage(processes: dict[str, int]) -> dict[str, dict[str, float]]:
    """Processor seconds and resident bytes of these processes, by name, without those that have ended."""
    found = {}
    for name, pid in processes.items():
        try:
            fields = proc.stat(pid)
        except (OSError, ValueError):
            continue
        ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21])
        found[name] = {"cpu_seconds": ticks / os.sysconf("SC_CLK_TCK"), "memory": pages * resource.getpagesize()}
    return found
