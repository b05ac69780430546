"""Describes a process for a person who reads a finding: its user, age, parent and command.

psutil is loaded with the first finding. It costs 6 MB and four times the time of the agent's own reading of /proc, so
the regular looks at the GPUs do not use it. The command line is not read by psutil: it is memory of the process, which
can be of any length, or on a file system that never answers.
"""

import threading
import time

from oci_hook.linux.proc import read_file

COMMAND_MAX = 120
CMDLINE = "/proc/{}/cmdline"
CMDLINE_MAX = 4096  # bytes that are read
PATIENCE = 0.2  # seconds to read them

_reader: threading.Thread | None = None


def describe(pid: int) -> str:
    """The process in words; "" if it has ended, or psutil is not installed."""
    try:
        import psutil  # type: ignore[import-untyped]
    except ImportError:
        return ""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            age = max(0, time.time() - process.create_time())
            words = f"user {process.uids().effective}, {age:.0f} s old, parent {process.ppid()}"
        # psutil's name() is not used: it completes a long name from the command line.
        data = _command(pid) or read_file(f"/proc/{pid}/comm", 64)
    except (psutil.Error, OSError, ValueError):
        return ""
    command = data.replace(b"\0", b" ").strip().decode("utf-8", "replace")[:COMMAND_MAX]
    return f"{words}: {''.join(c if c.isprintable() else '?' for c in command)}"


def _command(pid: int) -> bytes:
    """The command line; b"" if there is none, or if it is not read in time. The thread that reads it is left behind
    then, and no other one is started while it waits."""
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
