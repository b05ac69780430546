"""Who a process is, for a person who reads a finding: its user, age, parent and command.

By psutil, which is loaded with the first finding: it costs 6 MB, and four times what the agent's own reading of /proc
takes, which is therefore what the looks at the GPUs use. The command line is not read by it: that is memory of the
process, which can be of any length, and of a file system that never answers who reads it.
"""

import threading
import time

from oci_hook.linux.proc import read_file

COMMAND_MAX = 120
CMDLINE = "/proc/{}/cmdline"
CMDLINE_MAX = 4096  # bytes that are read
PATIENCE = 0.2  # seconds for them

_reader: threading.Thread | None = None


def describe(pid: int) -> str:
    """In words; "" where it has ended, or psutil is not installed."""
    try:
        import psutil  # type: ignore[import-untyped]
    except ImportError:
        return ""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            age = max(0, time.time() - process.create_time())
            words = f"user {process.uids().effective}, {age:.0f} s old, parent {process.ppid()}"
        # Not its name: psutil completes a long one by the command line.
        data = _command(pid) or read_file(f"/proc/{pid}/comm", 64)
    except (psutil.Error, OSError, ValueError):
        return ""
    command = data.replace(b"\0", b" ").strip().decode("utf-8", "replace")[:COMMAND_MAX]
    return f"{words}: {''.join(c if c.isprintable() else '?' for c in command)}"


def _command(pid: int) -> bytes:
    """b"" where there is none, or does not come; whoever waits for one that does not is left to wait, alone."""
    global _reader
    if _reader is not None and _reader.is_alive():
        return b""
    found: list[bytes] = []

    def read() -> None:
        try:
            found.append(read_file(CMDLINE.format(pid), CMDLINE_MAX))
        except OSError:
            pass

    _reader = threading.Thread(target=read, name="command", daemon=True)
    _reader.start()
    _reader.join(PATIENCE)
    return b"".join(found)
