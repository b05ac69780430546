"""Reads the facts of an ELF file by which a driver's library is recognised: class, machine, SONAME."""

import os
from struct import Struct, error

from oci_hook.core.value import Value

MACHINES = {"x86_64": 62, "aarch64": 183}  # EM_X86_64, EM_AARCH64 (elf.h)
_HEADER = Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = Struct("<IIQQQQQQ")
_DYNAMIC = Struct("<qQ")
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_STRTAB, _DT_SONAME = 0, 5, 14


class Elf(Value):
    """bits: 32 or 64. machine: e_machine. soname: DT_SONAME, "" for programs and libraries without one."""

    bits: int
    machine: int
    soname: str


def read(fd: int) -> Elf | None:
    """The facts of an open file; None if it is no little-endian ELF file. Raises OSError."""
    head = os.pread(fd, _HEADER.size, 0)
    if len(head) < 20 or head[:4] != b"\x7fELF" or head[5] != 1:
        return None
    machine = int.from_bytes(head[18:20], "little")
    if head[4] != 2:
        return Elf(32, machine, "")
    try:
        return Elf(64, machine, _soname(fd, head))
    except (error, ValueError):  # the file is cut off
        return None


def whole(fd: int) -> bool:
    """Whether it is a 64-bit ELF file, and as long as its segments and section headers say. Raises OSError."""
    head, size = os.pread(fd, _HEADER.size, 0), os.fstat(fd).st_size
    if len(head) < _HEADER.size or head[:6] != b"\x7fELF\x02\x01":
        return False
    fields = _HEADER.unpack(head)
    offset, sections, width, count = fields[5], fields[6], fields[9], fields[10]
    ends = [sections + fields[11] * fields[12], offset + width * count]
    table = os.pread(fd, width * count, offset)
    if width != _SEGMENT.size or len(table) < width * count:
        return False
    for i in range(count):
        segment = _SEGMENT.unpack_from(table, i * width)
        ends.append(segment[2] + segment[5])
    return bool(max(ends) <= size)


def _soname(fd: int, head: bytes) -> str:
    fields = _HEADER.unpack(head)
    offset, size, count = fields[5], fields[9], fields[10]
    if size != _SEGMENT.size:
        raise ValueError("program header size")
    table = os.pread(fd, size * count, offset)
    segments = [_SEGMENT.unpack_from(table, i * size) for i in range(count)]
    for kind, _, at, _, _, length, _, _ in segments:
        if kind == _PT_DYNAMIC:
            entries = os.pread(fd, min(length, 1 << 16), at)
            wanted = {}
            for i in range(0, len(entries) - _DYNAMIC.size + 1, _DYNAMIC.size):
                tag, value = _DYNAMIC.unpack_from(entries, i)
                if tag == _DT_NULL:
                    break
                wanted[tag] = value
            if _DT_SONAME not in wanted:
                return ""
            text = os.pread(fd, 256, _file_offset(segments, wanted.get(_DT_STRTAB, 0)) + wanted[_DT_SONAME])
            return text.split(b"\0", 1)[0].decode("ascii", "replace")
    return ""


def _file_offset(segments: list[tuple[int, ...]], address: int) -> int:
    for kind, _, at, virtual, _, length, _, _ in segments:
        if kind == _PT_LOAD and virtual <= address < virtual + length:
            return at + address - virtual
    raise ValueError("address outside the file")
