"""Writes to the journal by its native protocol, so that the lines of one container can be queried by its id.

    journalctl -t gpu-hook-agent GPU_HOOK_CONTAINER=ID
If standard error does not belong to the journal (systemd.exec(5), $JOURNAL_STREAM), the lines go there as text.
"""

import os
import socket
import sys

SOCKET = "/run/systemd/journal/socket"
ERROR, WARNING, NOTICE, INFO = 3, 4, 5, 6  # syslog(3)


def write(message: str, priority: int = INFO, **fields: str) -> None:
    """Write one entry; fields become GPU_HOOK_<NAME>. Never fails and never waits."""
    message = "".join(c if c.isprintable() else "?" for c in message)[:4000]
    entry = [("MESSAGE", message), ("PRIORITY", str(priority)), ("SYSLOG_IDENTIFIER", "gpu-hook-agent")]
    entry += [(f"GPU_HOOK_{name.upper()}", value) for name, value in fields.items() if value]
    try:
        if "JOURNAL_STREAM" not in os.environ:
            raise FileNotFoundError(SOCKET)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as s:
            s.sendto(b"".join(field(name, value) for name, value in entry), SOCKET)
    except OSError:
        try:
            os.write(sys.stderr.fileno(), f"<{priority}>{message}\n".encode("utf-8", "replace"))
        except OSError:
            pass


def field(name: str, value: str) -> bytes:
    """One field of systemd's "Native Journal Protocol": a value that contains a newline is preceded by its length."""
    data = value.encode("utf-8", "replace")[:4096]
    if b"\n" in data:
        return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
    return name.encode() + b"=" + data + b"\n"
