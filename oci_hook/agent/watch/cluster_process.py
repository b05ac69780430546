"""The agent's side of the node's process in a cluster: the reporter (kube/reporter/), or the driver of ResourceClaims (kube/dra/),
as the setting `cluster` says. The agent runs it, and takes its word for what is wrong there."""

import json
import selectors
from typing import Any

from oci_hook.agent.node_state import NodeState
from oci_hook.agent.watch import child
from oci_hook.config.settings import DRA, OFF

RETRY_SECONDS = 2.0  # doubled with each failure
MAX_LINE = 64 << 10
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}  # mallopt(3): its threads mostly wait, and a heap for each takes memory


REPORTER, DRIVER = "oci_hook.kube.reporter", "oci_hook.kube.dra"
NAMES = {REPORTER: "the reporter", DRIVER: "the driver of ResourceClaims"}
RETRY_MAX = {REPORTER: 60.0, DRIVER: 15.0}  # while the driver is away no pod with a claim starts or ends
STEADY = 2  # times RETRY_MAX that it must run before the next failure counts as the first again


class ClusterProcess:
    """`tick` regularly. pid: 0 where it does not run. said: its last word: problem, writes, failures, last. starts: how often it
    was started."""

    def __init__(self, node: NodeState, selector: selectors.BaseSelector) -> None:
        self.said: dict[str, Any] = {}
        self._node = node
        self._selector = selector
        self._use(REPORTER)
        self._text = b""
        self._silent = True  # it has said nothing since it started

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def starts(self) -> int:
        return self._child.starts

    def tick(self, now: float) -> None:
        wanted = self._node.settings.cluster != OFF
        module = DRIVER if self._node.settings.cluster == DRA else REPORTER
        if not wanted or module != self._module:
            self.stop()
        if wanted and module != self._module:
            self._use(module)
        if self._child.status() is not None:
            self._ended(now)
        if wanted and self._child.due(now):
            self._start(now)
        self._node.problem("cluster", self._problem() if wanted else "")

    def view(self) -> dict[str, Any] | None:
        """None where the node is in no cluster."""
        if self._node.settings.cluster == OFF:
            return None
        return {"up": self.pid != 0, "starts": self.starts, **self.said}

    def stop(self) -> None:
        self._child.stop()

    def _use(self, module: str) -> None:
        self._module = module
        self._child = child.Child(module, RETRY_SECONDS, RETRY_MAX[module], self._selector, self._read)
        self.said = {}

    def _start(self, now: float) -> None:
        if why := self._child.start(now, self._node.prefix, environment=ONE_HEAP):
            self.said["problem"] = f"{NAMES[self._module]} {why}"
            return
        self._text, self._silent = b"", True

    def _read(self, now: float) -> None:
        data = self._child.read(MAX_LINE)
        if data is None:
            return
        *lines, self._text = (self._text + data).split(b"\n")
        self._text = self._text[:MAX_LINE]
        for line in lines:
            try:
                self.said = dict(json.loads(line))
                self._silent = False
            except (ValueError, TypeError):
                pass
        if not data:
            self._ended(now)
        self._node.problem("cluster", self._problem())

    def _ended(self, now: float) -> None:
        if now - self._child.since > STEADY * RETRY_MAX[self._module]:
            self._child.worked()
        self._child.failed(now)

    def _problem(self) -> str:
        if not self.pid:
            return str(self.said.get("problem") or f"{NAMES[self._module]} ended; it is started again")
        if self._silent:
            return self._node.problems.get("cluster", "")
        return str(self.said.get("problem") or "")
