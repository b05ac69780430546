"""The agent's side of the reporter (kube/reporter/): it runs it where the setting `cluster` is not off, and takes its word for
what is wrong there."""

import json
import os
import selectors
import subprocess
from collections.abc import Mapping
from typing import Any

from oci_hook.agent import child
from oci_hook.agent.node import Node
from oci_hook.agent.view import Watched
from oci_hook.config.settings import OFF

RETRY_SECONDS = 2.0  # doubled with each failure
RETRY_MAX = 60.0
STEADY = 120.0  # seconds that it must run before the next failure counts as the first again
MAX_LINE = 64 << 10
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}  # mallopt(3): its threads mostly wait, and a heap for each takes memory


def busy(watched: Mapping[str, Watched]) -> dict[str, tuple[float, float]]:
    """By grant's key: per cent of a GPU's time since the last look, and for how many milliseconds it kept the GPU once others wanted
    it; on the GPU where each is most. By the gate; where that counts nothing, by what the driver reports."""
    found = {}
    for key, one in watched.items():
        uuids = {*one.meters, *one.uses, *one.gates}
        duties = [_duty(one, uuid) for uuid in uuids]
        bursts = [1e3 * gate.preempt_bound for gate in one.gates.values()]
        if uuids:
            found[key] = round(max(duties), 1), round(max(bursts, default=0.0), 2)
    return found


def _duty(one: Watched, uuid: str) -> float:
    meter, use = one.meters.get(uuid), one.uses.get(uuid)
    counted = meter.used if meter is not None else None
    return counted if counted is not None else max(0.0, float(use.busy)) if use is not None else 0.0


class Reporter:
    """`tick` regularly. pid: 0 where it does not run. said: its last word: problem, writes, failures, last. starts: how often it
    was started."""

    def __init__(self, node: Node, selector: selectors.BaseSelector) -> None:
        self.pid = 0
        self.starts = 0
        self.said: dict[str, Any] = {}
        self._node = node
        self._selector = selector
        self._process: subprocess.Popen[bytes] | None = None
        self._since = 0.0
        self._retry_at, self._retry = 0.0, RETRY_SECONDS
        self._text = b""
        self._silent = True  # it has said nothing since it started

    def tick(self, now: float) -> None:
        wanted = self._node.settings.cluster != OFF
        if self._process is not None and not wanted:
            self.stop()
        if self._process is not None and self._process.poll() is not None:
            self._ended(now)
        if wanted and self._process is None and now >= self._retry_at:
            self._start(now)
        self._node.problem("cluster", self._problem() if wanted else "")
        if self._process is not None and self._node.options.interference:
            self._tell(busy(self._node.watched))

    def _tell(self, figures: dict[str, tuple[float, float]]) -> None:
        """One that does not read gets nothing: the pipe is full. What of a line did not fit makes the next one readable by its
        newline."""
        assert self._process is not None and self._process.stdin is not None
        line = json.dumps({"busy": figures}, separators=(",", ":")).encode()
        try:
            os.set_blocking(self._process.stdin.fileno(), False)
            self._process.stdin.write(b"\n" + line + b"\n")
        except OSError:
            pass  # `poll` finds out that it has ended

    def view(self) -> dict[str, Any] | None:
        """None where the node is in no cluster."""
        if self._node.settings.cluster == OFF:
            return None
        return {"up": self._process is not None, "starts": self.starts, **self.said}

    def stop(self) -> None:
        process, self._process = self._process, None
        self.pid = 0
        if process is None:
            return
        assert process.stdout
        self._selector.unregister(process.stdout)
        child.kill(process)

    def _start(self, now: float) -> None:
        try:
            self._process = child.start("oci_hook.kube.reporter", self._node.prefix, environment=ONE_HEAP)
        except OSError as e:
            self.said["problem"] = f"the reporter does not start: {e.strerror}"
            self._retry_at = now + self._retry
            return
        assert self._process.stdout
        self._selector.register(self._process.stdout, selectors.EVENT_READ, self._read)
        self.pid, self._since, self._text = self._process.pid, now, b""
        self._silent = True
        self.starts += 1

    def _read(self, now: float) -> None:
        assert self._process and self._process.stdout
        data = self._process.stdout.read(MAX_LINE)
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
        if now - self._since > STEADY:
            self._retry = RETRY_SECONDS
        self._retry_at = now + self._retry
        self._retry = min(2 * self._retry, RETRY_MAX)
        self.stop()

    def _problem(self) -> str:
        if self._process is None:
            return str(self.said.get("problem") or "the reporter ended; it is started again")
        if self._silent:
            return self._node.problems.get("cluster", "")
        return str(self.said.get("problem") or "")
