"""The agent's helper processes, each a Python module with pipes for its standard input and output."""

import contextlib
import fcntl
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import oci_hook
from oci_hook.core.backoff import Backoff

PIPE = 1 << 20  # bytes that its standard input holds: the cgroups of 4000 containers; a new pipe has 64 KiB
PACKAGE = str(Path(oci_hook.__file__).resolve().parents[1])  # the folder that holds it


class Child:
    """`python -m MODULE` from this install; times are monotonic seconds. pid: 0 where none runs. fd: of its standard output, -1
    where none runs; where a selector is given, `hear` is called when it can be read. starts: how often it was started, and
    since: when last. It is to be started again `first` seconds after a failure, twice as late after each further one."""

    def __init__(
        self,
        module: str,
        first: float,
        most: float,
        selector: selectors.BaseSelector | None = None,
        hear: Callable[[float], None] | None = None,
    ) -> None:
        self.pid, self.fd, self.starts, self.since = 0, -1, 0, 0.0
        self._module = module
        self._selector, self._hear = selector, hear
        self._process: subprocess.Popen[bytes] | None = None
        self._hang: list[subprocess.Popen[bytes]] = []  # were killed, and have not ended when last looked at
        self._backoff = Backoff(first, most)
        self._again_at = 0.0

    @property
    def exists(self) -> bool:
        """True while it runs, or one that was killed hangs in the driver."""
        self._hang = [process for process in self._hang if process.poll() is None]
        return self._process is not None or bool(self._hang)

    def due(self, now: float) -> bool:
        """True if it is to be started now."""
        return self._process is None and now >= self._again_at

    def start(self, now: float, *arguments: str, environment: dict[str, str] | None = None) -> str:
        """Returns why it does not start, which is a failure, or "". It does not get systemd's variables, which are for the agent
        alone."""
        inherited = {k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "WATCHDOG_USEC")}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**inherited, "PYTHONPATH": PACKAGE, "PYTHONSAFEPATH": "1", **(environment or {})},
                cwd="/",
                bufsize=0,
            )
        except OSError as e:
            self.failed(now)
            return f"does not start: {e.strerror}"
        assert self._process.stdin and self._process.stdout
        self.pid, self.fd = self._process.pid, self._process.stdout.fileno()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._process.stdin.fileno(), False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._process.stdin, fcntl.F_SETPIPE_SZ, PIPE)
        if self._selector is not None:
            self._selector.register(self.fd, selectors.EVENT_READ, self._hear)
        self.starts, self.since = self.starts + 1, now
        return ""

    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll() if self._process is not None else None

    def read(self, size: int) -> bytes | None:
        """b"" once it has ended; None where it has said nothing."""
        if self._process is None:  # stopped since the selector saw it
            return None
        assert self._process.stdout
        return self._process.stdout.read(size)

    def write(self, line: bytes) -> bool:
        """False where it has ended, or hangs and its pipe is full: it may have a part of the line, and is to be stopped."""
        assert self._process and self._process.stdin
        try:
            return self._process.stdin.write(line) == len(line)
        except OSError:
            return False

    def worked(self) -> None:
        """The next failure is the first again."""
        self._backoff.worked()

    def failed(self, now: float) -> None:
        self.stop()
        self._again_at = now + self._backoff.failed()

    def stop(self) -> None:
        """Kill it and close its pipes. One that hangs inside the driver ends only when the driver returns."""
        process, self._process = self._process, None
        self._again_at = 0.0
        if process is None:
            return
        if self._selector is not None:
            self._selector.unregister(self.fd)
        self.pid, self.fd = 0, -1
        process.send_signal(signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass
        try:
            process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            self._hang.append(process)
