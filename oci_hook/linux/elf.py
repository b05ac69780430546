"""ELF files (elf(5)), by a few reads of bounded size: the file may be an image's, and nothing in it is believed."""

import os
from _struct import Struct, error  # type: ignore[attr-defined]  # `struct` is one more file to read

from oci_hook.linux.walk import LOOK, MAX_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MACHINES = {"x86_64": 62, "aarch64": 183}  # EM_X86_64, EM_AARCH64 (elf.h)
SONAME, RPATH, RUNPATH = 14, 15, 29  # DT_...
MAX_SEGMENTS = 64
MAX_DYNAMIC = 1 << 16
MAX_TEXT = 4 * MAX_PATH
_HEADER = Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = Struct("<IIQQQQQQ")
_DYNAMIC = Struct("<qQ")
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NULL, _DT_STRTAB = 0, 5


class Elf:
    """A program or library. bits: 32, of which no more is known than the machine, or 64. machine: e_machine. end: the
    least size of the whole file. interpreted: whether it needs a dynamic loader. texts: of the tags asked for."""

    def __init__(
        self, bits: int, machine: int, end: int = 0, interpreted: bool = False, texts: "dict[int, str] | None" = None
    ) -> None:
        self.bits, self.machine, self.end, self.interpreted, self.texts = bits, machine, end, interpreted, texts or {}


def read(fd: int, *tags: int, spend: "Callable[[int], object]" = int) -> Elf | None:
    """The facts of an open file, with the texts that these tags of its dynamic section name; None if it is no
    little-endian ELF file, or cut off before its tables. spend: is told the work. Raises OSError."""
    spend(LOOK)
    head = os.pread(fd, _HEADER.size, 0)
    if len(head) < 20 or head[:4] != b"\x7fELF" or head[5] != 1:
        return None
    if head[4] != 2:
        return Elf(32, int.from_bytes(head[18:20], "little"))
    try:
        return _read(fd, head, tags, spend)
    except (error, ValueError, OverflowError):  # cut off, or with offsets beyond any file
        return None


def _read(fd: int, head: bytes, tags: "tuple[int, ...]", spend: "Callable[[int], object]") -> Elf:
    _, _, machine, _, _, offset, sections, _, _, width, count, section_width, section_count, _ = _HEADER.unpack(head)
    if width != _SEGMENT.size or count > MAX_SEGMENTS:
        raise ValueError("program headers")
    spend(3 * LOOK)
    segments = list(_SEGMENT.iter_unpack(os.pread(fd, width * count, offset)))
    if len(segments) < count:
        raise ValueError("cut off")
    ends = [offset + width * count, sections + section_width * section_count, *(s[2] + s[5] for s in segments)]
    kinds = {s[0]: s for s in segments}
    texts = {}
    if tags and _PT_DYNAMIC in kinds:
        dynamic = kinds[_PT_DYNAMIC]
        table = os.pread(fd, min(dynamic[5], MAX_DYNAMIC) & ~15, dynamic[2])
        spend(len(table) >> 6)
        found = {}
        for tag, value in _DYNAMIC.iter_unpack(table):
            if tag == _DT_NULL:
                break
            found[tag] = value
        for tag in tags:
            if tag in found:
                texts[tag] = _text(fd, segments, found.get(_DT_STRTAB, 0) + found[tag], spend)
    return Elf(64, machine, max(ends), _PT_INTERP in kinds, texts)


def _text(fd: int, segments: "list[tuple[int, ...]]", address: int, spend: "Callable[[int], object]") -> str:
    for kind, _, at, start, _, size, _, _ in segments:
        if kind == _PT_LOAD and start <= address < start + size:
            spend(LOOK + (MAX_TEXT >> 6))
            return os.fsdecode(os.pread(fd, MAX_TEXT, at + address - start).partition(b"\0")[0])
    raise ValueError("address outside the file")
