"""Makes a copy of a simulated library that of one release: it exports what that release does, and knows its version.

The library lists its names, since when and until when drivers export them, behind a mark in its data
(simulator/driver/build.py). Any other name becomes an undefined symbol, which no loader and no linker takes for a
definition (ELF gABI, symbol table).
"""

from struct import Struct

EXPORTS = b"gpu-hook simulated exports\n"
RELEASE = b"gpu-hook simulated release".ljust(32, b"\0")  # before two numbers of 32 bits (release.c)
HEADER = Struct("<16x8x8x8xQ4xHHHHHH")  # Elf64_Ehdr: where the sections begin, their size and number
SECTION = Struct("<II8x8xQQI4x8xQ")  # Elf64_Shdr: name, type, offset, size, link, size of an entry
SYMBOL = Struct("<IBBHQQ")  # Elf64_Sym
DYNSYM = 11
WEAK = 2 << 4


def versions(library: bytes) -> dict[str, tuple[int, int]]:
    """The names: the CUDA version of the first driver that exports it (0: all), and of the first that does not (0: none)."""
    start = library.index(EXPORTS) + len(EXPORTS)
    lines = library[start : library.index(b"\0", start)].decode().split("\n")
    return {name: (int(first), int(end)) for name, first, end in (line.split() for line in lines if line)}


def has(first: int, end: int, cuda_version: int) -> bool:
    return first <= cuda_version and not 0 < end <= cuda_version


def of_release(library: bytes, cuda_version: int) -> bytes:
    """The library as a driver with this CUDA version has it: 12040 is 12.4."""
    hidden = {name for name, (first, end) in versions(library).items() if not has(first, end, cuda_version)}
    out = bytearray(library)
    if RELEASE in library:
        at = library.index(RELEASE) + len(RELEASE)
        out[at : at + 8] = 2 * cuda_version.to_bytes(4, "little")
    sections, *_, size, number, _ = HEADER.unpack_from(library)
    headers = [SECTION.unpack_from(library, sections + i * size) for i in range(number)]
    _, _, symbols, length, link, _ = next(h for h in headers if h[1] == DYNSYM)
    texts = headers[link][2]
    for at in range(symbols, symbols + length, SYMBOL.size):
        name, _, other, _, _, _ = SYMBOL.unpack_from(library, at)
        if library[texts + name : library.index(b"\0", texts + name)].decode() in hidden:
            SYMBOL.pack_into(out, at, name, WEAK, other, 0, 0, 0)
    return bytes(out)
