"""The agent's side of the boundary's server (boundary/server.py): it runs it, and asks without waiting for answers.

The server sets the driver's memory limits of containers that are being made; without it, each of them starts NVML anew.
States: "off" (no GPU here can have such limits), "starting", "ok", "down" (it will be started again).
"""

import json
import selectors
import socket
import subprocess
from collections.abc import Callable
from typing import Any

from oci_hook.agent import child
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
        self.pid = 0
        self.failures = 0
        self.starts = 0
        self._selector = selector
        self._process: subprocess.Popen[bytes] | None = None
        self._used: tuple[str, object] = ("", None)
        self._retry_at, self._retry = 0.0, RETRY_SECONDS
        self._since = 0.0
        self._state_dir = ""
        self._queue: list[tuple[Answer, Taker]] = []
        self._open: tuple[socket.socket, Taker, float] | None = None

    def use(self, prefix: str, state_dir: str, inventory: Inventory | None, now: float) -> None:
        """Run the server if a GPU of this inventory can have limits."""
        able = inventory is not None and any(not gpu.no_limits for gpu in inventory.gpus)
        used = (prefix + "\0" + state_dir, inventory.stamp if inventory else None)
        if self._process is not None and (not able or used != self._used):
            self.stop("the driver changed")
            self._retry_at = 0.0
        self._used, self._state_dir = used, state_dir
        if not able:
            self.state, self.error = "off", ""
        elif self._process is None and now >= self._retry_at:
            self._start(prefix, now)

    def check(self, now: float) -> None:
        """Notice that the server ended or hangs; go on with the queue."""
        process = self._process
        if process is not None and process.poll() is not None:
            self._fail(now, f"its process ended with status {process.returncode}")
        elif self.state == "starting" and now - self._since > START_SECONDS:
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
        """Kill the process. One that hangs inside the driver ends only when the driver returns."""
        self.state, self.error, self.pid = "down", why, 0
        self._queue = []
        if self._open:
            self._selector.unregister(self._open[0])
            self._open[0].close()
            self._open = None
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdout
        if self._ready:
            self._selector.unregister(process.stdout)
            self._ready = False
        child.kill(process)

    _ready = False  # the selector has its standard output

    def _start(self, prefix: str, now: float) -> None:
        try:
            self._process = child.start("oci_hook.boundary.server", prefix)
        except OSError as e:
            self._fail(now, f"its process does not start: {e.strerror}")
            return
        assert self._process.stdout
        self._selector.register(self._process.stdout, selectors.EVENT_READ, self._said)
        self._ready = True
        self.state, self.error, self.pid, self._since = "starting", "", self._process.pid, now
        self.starts += 1

    def _said(self, now: float) -> None:
        assert self._process and self._process.stdout
        data = self._process.stdout.read(4096)
        if data is None:
            return
        if not data:
            self._fail(now, "its process ended")
        elif b"ready" in data:
            self.state, self._retry = "ok", RETRY_SECONDS

    def _fail(self, now: float, why: str) -> None:
        self.stop(why)
        self._retry_at = now + self._retry
        self._retry = min(2 * self._retry, RETRY_MAX)

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
        assert self._open
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
