"""nvtop beside a process that holds 300 MiB: what its screen shows after some seconds, on a terminal of its own."""

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time

from held import hold
from steps import said

ROWS, COLUMNS = 40, 160
SECONDS = 60


def screen(done: str) -> tuple[str, str]:
    """Run nvtop until its output matches `done`, quit it with `q`; (how it ended, all that it wrote)."""
    pid, terminal = pty.fork()
    if not pid:
        os.execv("/usr/bin/nvtop", ["nvtop", "--no-color", "--delay", "5"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    text, end, asked = b"", time.monotonic() + SECONDS, False
    while time.monotonic() < end:
        try:
            if select.select([terminal], [], [], 0.2)[0]:
                text += os.read(terminal, 65536)
        except OSError:  # it has ended
            break
        if not asked and re.search(done, plain(text)):
            os.write(terminal, b"q")
            asked = True
    if not asked or time.monotonic() >= end:
        os.kill(pid, 9)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return str(status or "ok"), plain(text)


def plain(text: bytes) -> str:
    """Without the terminal's commands; each of them is a blank."""
    return re.sub(r"\x1b(\[[0-9;?]*[a-zA-Z]|[()][A-Z0-9]|[=>78M])|[\r\n\x0f\x0e]", " ", text.decode(errors="replace"))


hold()
status, text = screen(r"(?s)MEM.*Gi.*python")
said("ended", status)
for name, pattern in (
    ("device", r"Device \d+ +\[([^\]]*)\]"),
    ("memory", r"MEM\[[| ]* *([\d.]+[MGK]i/[\d.]+[MGK]i)\]"),
    ("GPU", r"GPU\[[| ]* *(\d+%)\]"),
    ("memory of the process", r"(\d+MiB +\d+%)"),
    ("its kind", r"\b(Compute|Graphic)\b"),
):
    found = re.search(pattern, text)
    said(name, " ".join(found[1].split()) if found else "failed: not on the screen")
print(text[:4000])
