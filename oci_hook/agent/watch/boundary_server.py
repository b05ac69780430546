"""The agent's side of the boundary's server (boundary/server.py): it runs it, and asks without waiting for answers.

The server sets the driver's memory limits of containers that are being made; without it, each of them starts NVML anew.
States: "off" (no GPU here can have such limits), "starting", "ok", "down" (it will be started again).
"""

import json
import selectors
import socket
from collections.abc import Callable
from typing import Any

from oci_hook.agent.watch import child
from oci_hook.boundary import protocol
from oci_hook.core.inventory import Inventory

Answer = dict[str, Any]
Taker = Callable[[Answer], None]
START_SECONDS = 60.0  # NVML takes long on nodes with many GPUs
ANSWER_SECONDS = 10.0  # the server ends by itself after 8 s in one operation
RETRY_SECONDS = 2.0  # doubled with each failure
RETRY_MAX = 120.0
QUEUE_MAX = 4096


class BoundaryServer:
    """`use` an inventory at each tick, `ask`, `check` between; times are monotonic seconds. failures: of requests that
    got no answer. starts: how often the server was started."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.state, self.error = "off", ""
        self.failures = 0
        self._selector = selector
        self._child = child.Child("oci_hook.boundary.server", RETRY_SECONDS, RETRY_MAX, selector, self._said)
        self._used: tuple[str, object] = ("", None)
        self._state_dir = ""
        self._queue: list[tuple[Answer, Taker]] = []
        self._open: tuple[socket.socket, Taker, float] | None = None

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def exists(self) -> bool:
        return self._child.exists

    @property
    def starts(self) -> int:
        return self._child.starts

    def use(self, prefix: str, state_dir: str, inventory: Inventory | None, now: float) -> None:
        """Run the server if a GPU of this inventory can have limits."""
        able = inventory is not None and any(not gpu.no_limits for gpu in inventory.gpus)
        used = (prefix + "\0" + state_dir, inventory.stamp if inventory else None)
        if self.pid and (not able or used != self._used):
            self.stop("the driver changed")
        self._used, self._state_dir = used, state_dir
        if not able:
            self.state, self.error = "off", ""
        elif self._child.due(now):
            why = self._child.start(now, prefix)
            self.state, self.error = ("down", f"its process {why}") if why else ("starting", "")

    def check(self, now: float) -> None:
        """Notice that the server ended or hangs; go on with the queue."""
        status = self._child.status()
        if status is not None:
            self._fail(now, f"its process ended with status {status}")
        elif self.state == "starting" and now - self._child.since > START_SECONDS:
            self._fail(now, f"its process did not start within {START_SECONDS:.0f} s")
        if self._open and now >= self._open[2]:
            self._end({"ok": False, "error": "the server gave no answer in time"}, failed=True)
            self._fail(now, f"its process gave no answer within {ANSWER_SECONDS:.0f} s")
        self._next(now)

    def ask(self, request: Answer, taker: Taker, now: float) -> None:
        """Ask the server; `taker` gets its answer, at once or later, unless it runs no more. One at a time."""
        if self.state == "ok" and len(self._queue) < QUEUE_MAX:
            self._queue.append((request, taker))
            self._next(now)

    @property
    def idle(self) -> bool:
        return self.state == "ok" and not self._queue and self._open is None

    def stop(self, why: str = "") -> None:
        self.state, self.error = "down", why
        self._queue = []
        if self._open:
            self._selector.unregister(self._open[0])
            self._open[0].close()
            self._open = None
        self._child.stop()

    def _said(self, now: float) -> None:
        data = self._child.read(4096)
        if data is None:
            return
        if not data:
            self._fail(now, "its process ended")
        elif b"ready" in data:
            self.state = "ok"
            self._child.worked()

    def _fail(self, now: float, why: str) -> None:
        self.stop(why)
        self._child.failed(now)

    def _next(self, now: float) -> None:
        """Send the next request of the queue, if none is under way."""
        while self._queue and self._open is None and self.state == "ok":
            request, taker = self._queue.pop(0)
            client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            try:
                client.connect(protocol.path(self._state_dir))
                client.send(protocol.encode(request))
            except OSError as e:  # its queue of clients is full, or it has just ended
                client.close()
                self.failures += 1
                taker({"ok": False, "error": f"the server cannot be asked: {e.strerror}"})
                continue
            self._open = client, taker, now + ANSWER_SECONDS
            self._selector.register(client, selectors.EVENT_READ, self._answered)

    def _answered(self, now: float) -> None:
        if self._open is None:  # stopped since the selector saw it
            return
        try:
            data = self._open[0].recv(protocol.ANSWER_MAX)
            answer = dict(json.loads(data)) if data else {"ok": False, "error": "the server left without an answer"}
        except BlockingIOError:
            return
        except (OSError, ValueError, TypeError) as e:
            data, answer = b"", {"ok": False, "error": f"an answer that cannot be read: {type(e).__name__}"}
        self._end(answer, failed=not data)
        self._next(now)

    def _end(self, answer: Answer, failed: bool) -> None:
        assert self._open
        client, taker, _ = self._open
        self._open = None
        self.failures += failed
        self._selector.unregister(client)
        client.close()
        taker(answer)
