"""Messages where the caller of a runtime or hook looks for them: the file of --log in runc's two formats, standard
error, the journal.

containerd shows its user the message of the last error line in the JSON log. podman passes no --log and prints the
`level=error msg="..."` line of standard error.
"""

import os
import time

from oci_hook.errors import Problem
from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

JOURNAL = "/dev/log"
FACILITY_ERROR = b"<27>"  # syslog(3): daemon.err


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _line(message: str, log_format: str, level: str) -> str:
    if log_format == "json":
        return fastjson.dumps({"level": level, "msg": message, "time": _now()})
    quoted = message.replace("\\", "\\\\").replace('"', '\\"')
    return f'time="{_now()}" level={level} msg="{quoted}"'


def _append(path: str, lines: "Sequence[str]") -> bool:
    try:
        # O_NONBLOCK: opening a FIFO that nobody reads fails at once, and the lines go to standard error alone.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        fd = os.open(path, flags, 0o644)
    except OSError:
        return False
    try:
        os.write(fd, "".join(line + "\n" for line in lines).encode())
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _messages(problems: "Sequence[Problem]") -> list[str]:
    """A message per problem. The last one, which is all that some engines show, names the codes of the others."""
    messages = [str(p) for p in problems]
    if len(messages) > 1:
        messages[-1] += f" (and {', '.join(dict.fromkeys(p.code for p in problems[:-1]))} in the log)"
    return messages


def report(problems: "Sequence[Problem]", log_path: str, log_format: str, level: str = "error") -> None:
    """One line per problem to the runtime's log and to standard error. Never fails."""
    messages = _messages(problems)
    logged = log_path and _append(log_path, [_line(m, log_format, level) for m in messages])
    lines = messages if logged else [_line(m, "text", level) for m in messages]
    try:
        os.write(2, "".join(line + "\n" for line in lines).encode())
    except OSError:
        pass


def report_hook(container: str, problems: "Sequence[Problem]") -> None:
    """One line per problem to the journal and to standard error: for hooks, which do not know of --log. Never fails."""
    lines = "\n".join(map(str, problems))
    journal(f"container {container!r:.100}: {lines}")
    try:
        os.write(2, (lines + "\n").encode("utf-8", "replace"))
    except OSError:
        pass


def journal(text: str) -> None:
    """Details for the node's administrator, such as a traceback, to /dev/log. Never fails and never waits."""
    import _socket

    try:
        s = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC)
        try:
            s.connect(JOURNAL)
            s.send(FACILITY_ERROR + b"gpu-hook: " + text.encode("utf-8", "replace")[:8000])
        finally:
            s.close()
    except OSError:
        pass
