"""Writes to the journal by its native protocol, so that the lines of one container can be queried by its id.

    journalctl -t gpu-hook-agent GPU_HOOK_CONTAINER=ID
If standard error is not the journal's (systemd.exec(5), $JOURNAL_STREAM), the lines go there as plain text.
"""

import contextlib
import os
import socket
import sys
import time

SOCKET = "/run/systemd/journal/socket"
ERROR, WARNING, NOTICE, INFO = 3, 4, 5, 6  # syslog(3)


def write(message: str, priority: int = INFO, **fields: str) -> None:
    """Write one entry; fields become GPU_HOOK_<NAME>. Never fails and never waits."""
    message = "; ".join(filter(None, message.splitlines()))  # one line for each entry, whatever names it quotes
    message = "".join(c if c.isprintable() else "?" for c in message)[:4000]
    entry = [("MESSAGE", message), ("PRIORITY", str(priority)), ("SYSLOG_IDENTIFIER", "gpu-hook-agent")]
    entry += [(f"GPU_HOOK_{name.upper()}", value) for name, value in fields.items() if value]
    prefix = ""
    with contextlib.suppress(OSError):
        if to_journal():
            prefix = f"<{priority}>"  # sd-daemon(3)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as s:
                s.sendto(b"".join(field(name, value) for name, value in entry), SOCKET)
            return
    with contextlib.suppress(OSError):
        at = "" if prefix else time.strftime("%Y-%m-%d %H:%M:%S ")  # where the journal does not say when
        os.write(sys.stderr.fileno(), f"{prefix}{at}{message}\n".encode("utf-8", "replace"))


def to_journal() -> bool:
    """True if standard error is the journal's, and not a file or terminal that a later command put there. Raises OSError."""
    st = os.fstat(sys.stderr.fileno())
    return os.environ.get("JOURNAL_STREAM") == f"{st.st_dev}:{st.st_ino}"


def field(name: str, value: str) -> bytes:
    """One field of systemd's "Native Journal Protocol": a value that contains a newline is preceded by its length."""
    data = value.encode("utf-8", "replace")[:4096]
    if b"\n" in data:
        return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
    return name.encode() + b"=" + data + b"\n"
