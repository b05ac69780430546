"""Tells systemd that the agent is ready and alive (sd_notify(3): one datagram per message to $NOTIFY_SOCKET)."""

import math
import os
import socket


class Notifier:
    """Does nothing if systemd did not start the agent. watchdog: seconds within which systemd expects a sign of life; 0:
    it expects none."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environment.get("WATCHDOG_USEC", "")
        self.watchdog = int(usec) / 1e6 if ours and usec.isdigit() else 0.0
        self._alive_at = 0.0

    def alive(self, now: float) -> float:
        """Send a sign of life if one is due; when the next one is due, in monotonic seconds."""
        if not self.watchdog:
            return math.inf
        if now >= self._alive_at:
            self._alive_at = now + self.watchdog / 3
            self.say("WATCHDOG=1")
        return self._alive_at

    def say(self, *lines: str) -> None:
        if self._address[:1] not in ("/", "@"):
            return
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as s:
                s.sendto("\n".join(lines).encode(), address)
        except OSError:
            pass
