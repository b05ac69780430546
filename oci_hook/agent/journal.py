"""Lines for the journal, by its native protocol, so that a container's can be asked for by its id.

    journalctl -t gpu-hook-agent GPU_HOOK_CONTAINER=ID
Where standard error is not the journal's (systemd.exec(5), $JOURNAL_STREAM), they go there as text.
"""

import os
import socket
import sys

SOCKET = "/run/systemd/journal/socket"
ERROR, WARNING, NOTICE, INFO = 3, 4, 5, 6  # syslog(3)


def write(message: str, priority: int = INFO, **fields: str) -> None:
    """One entry; fields become GPU_HOOK_<NAME>. Never fails, never waits."""
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
    """systemd's "Native Journal Protocol": a value with a newline in it is preceded by its length."""
    data = value.encode("utf-8", "replace")[:4096]
    if b"\n" in data:
        return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
    return name.encode() + b"=" + data + b"\n"
