"""What a program's file says of where it finds its libraries. The file is an image's: nothing in it is believed."""

import os
from struct import Struct, error

from oci_hook.linux.walk import LOOK, MAX_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_HEADER = Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = Struct("<IIQQQQQQ")
_DYNAMIC = Struct("<qQ")
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 5, 15, 29
MAX_SEGMENTS = 64
MAX_DYNAMIC = 1 << 16
MAX_TEXT = 4 * MAX_PATH


def interpreter(head: bytes) -> list[str]:
    """The program that runs the script which begins so, as PATH or a path has it; with `env` also what that starts."""
    if not head.startswith(b"#!"):
        return []
    words = os.fsdecode(head[2:].partition(b"\n")[0]).split()
    found = words[:1]
    if found and found[0].rpartition("/")[2] == "env":
        found += [word for word in words[1:] if not word.startswith("-") and "=" not in word][:1]
    return found


def run_path(fd: int, spend: "Callable[[int], None]") -> str:
    """DT_RPATH and DT_RUNPATH of an open file, joined by a colon; "" where it is no 64-bit program or library. The loader
    ignores the first where there is the second; both are taken. spend: is told the work. Raises OSError."""
    spend(LOOK)
    head = os.pread(fd, _HEADER.size, 0)
    if head[:6] != b"\x7fELF\x02\x01" or len(head) < _HEADER.size:
        return ""
    try:
        return _run_path(fd, head, spend)
    except (error, ValueError, OverflowError):  # cut off, or with offsets beyond any file
        return ""


def _run_path(fd: int, head: bytes, spend: "Callable[[int], None]") -> str:
    fields = _HEADER.unpack(head)
    offset, width, count = fields[5], fields[9], fields[10]
    if width != _SEGMENT.size or count > MAX_SEGMENTS:
        return ""
    spend(3 * LOOK)
    segments = list(_SEGMENT.iter_unpack(os.pread(fd, width * count, offset)))
    dynamic = next((s for s in segments if s[0] == _PT_DYNAMIC), None)
    if dynamic is None:
        return ""
    table = os.pread(fd, min(dynamic[5], MAX_DYNAMIC) & ~15, dynamic[2])
    spend(len(table) >> 6)
    entries = list(_DYNAMIC.iter_unpack(table))
    wanted = [value for tag, value in entries if tag in (_DT_RPATH, _DT_RUNPATH)][:2]
    strings = next((value for tag, value in entries if tag == _DT_STRTAB), 0)
    found = []
    for value in wanted:
        address = strings + value
        for kind, _, at, start, _, size, _, _ in segments:
            if kind == _PT_LOAD and start <= address < start + size:
                spend(LOOK + (MAX_TEXT >> 6))
                found.append(os.fsdecode(os.pread(fd, MAX_TEXT, at + address - start).partition(b"\0")[0]))
                break
    return ":".join(found)
