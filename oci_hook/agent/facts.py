"""Who a process is, for a person who reads a finding: its user, age, parent and command.

By psutil, which is loaded with the first finding: it costs 6 MB, and four times what the agent's own reading of /proc
takes, which is therefore what the looks at the cards use.
"""

import time

COMMAND_MAX = 120


def describe(pid: int) -> str:
    """In words; "" where it has ended, or psutil is not installed."""
    try:
        import psutil  # type: ignore[import-untyped]
    except ImportError:
        return ""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            command = " ".join(process.cmdline())[:COMMAND_MAX] or process.name()
            age = max(0, time.time() - process.create_time())
            children = len(process.children())
            words = f"user {process.uids().effective}, {age:.0f} s old, parent {process.ppid()}"
    except (psutil.Error, OSError, ValueError):
        return ""
    command = "".join(c if c.isprintable() else "?" for c in command)
    return words + (f", {children} children" if children else "") + f": {command}"
