"""Empty libraries in place of CUDA's large ones (cuBLAS, cuDNN, ...), which a program links but a test does not call.

Each has the names and symbol versions that the program's own libraries ask of it, and nothing else: every function
answers an error, so that a test that does call one fails. They save several GB, and say what they are:
`strings libcublas.so.13 | grep gpu-hook`.
"""

import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from struct import Struct, unpack_from

from testbed.compiled import ZIG

CC = [*ZIG, "-std=c11", "-w", "-fPIC", "-shared", "-Wl,-z,nodelete"]
LABEL = "empty library of gpu-hook's tests: every function answers an error"
FAILED = 999  # no library of CUDA's calls this success

SECTION = Struct("<IIQQQQIIQQ")  # Elf64_Shdr
SYMBOL = Struct("<IBBHQQ")  # Elf64_Sym
NEEDS, NEED = Struct("<HHIII"), Struct("<IHHII")  # Elf64_Verneed, Elf64_Vernaux
DYNSYM, STRTAB_LINK, VERSYM, VERNEED = 11, 6, 0x6FFFFFFF, 0x6FFFFFFE


class Elf:
    """The undefined symbols of one library."""

    def __init__(self, file: Path) -> None:
        self.data = file.read_bytes()
        at, size, count = *unpack_from("<Q", self.data, 0x28), *unpack_from("<HH", self.data, 0x3A)
        sections = [SECTION.unpack_from(self.data, at + i * size) for i in range(count)]
        self.by_type = {section[1]: section for section in sections}
        self.strings = sections[self.by_type[DYNSYM][STRTAB_LINK]][4]

    def text(self, offset: int) -> str:
        start = self.strings + offset
        return self.data[start : self.data.index(b"\0", start)].decode()

    def versions(self) -> dict[int, tuple[str, str]]:
        """Index of a version -> the library and the version's name."""
        found: dict[int, tuple[str, str]] = {}
        if VERNEED not in self.by_type:
            return found
        at = self.by_type[VERNEED][4]
        while True:
            _, n, file, first, after = NEEDS.unpack_from(self.data, at)
            here = at + first
            for _ in range(n):
                _, _, index, name, onwards = NEED.unpack_from(self.data, here)
                found[index] = (self.text(file), self.text(name))
                here += onwards
            if not after:
                return found
            at += after

    def undefined(self) -> Iterator[tuple[str, str, str]]:
        """Name, library and version of each symbol; library and version are empty where none is named."""
        _, _, _, _, at, size, _, _, _, _ = self.by_type[DYNSYM]
        versions, numbers = self.versions(), self.by_type.get(VERSYM)
        for i in range(1, size // SYMBOL.size):
            name, _, _, section, _, _ = SYMBOL.unpack_from(self.data, at + i * SYMBOL.size)
            if section == 0:
                number = unpack_from("<H", self.data, numbers[4] + 2 * i)[0] & 0x7FFF if numbers else 1
                yield self.text(name), *versions.get(number, ("", ""))


def make(folder: Path, users: Iterable[Path], sonames: Mapping[str, str]) -> None:
    """Make empty libraries in `folder` for the libraries `users`.

    sonames: which, and how the names begin that are asked of it without a version ("": none are).
    """
    wanted: dict[str, dict[str, set[str]]] = {soname: defaultdict(set) for soname in sonames}
    for user in users:
        for name, library, version in Elf(user).undefined():
            if library in wanted:
                wanted[library][version].add(name)
            for soname, prefix in sonames.items():
                if not library and prefix and name.startswith(prefix):
                    wanted[soname][""].add(name)
    folder.mkdir(parents=True, exist_ok=True)
    for soname, versions in wanted.items():
        compile_one(folder / soname, versions)


def compile_one(made: Path, versions: Mapping[str, set[str]]) -> None:
    names = sorted(name for listed in versions.values() for name in listed)
    code = made.with_suffix(".c")
    code.write_text(
        f'const char gpu_hook_empty_library[] = "{LABEL}";\n'
        + "".join(f"int {name}(void) {{ return {FAILED}; }}\n" for name in names)
    )
    script = made.with_suffix(".map")
    script.write_text(
        "".join(
            f"{version} {{ global: {' '.join(f'{name};' for name in sorted(listed))} }};\n"
            for version, listed in versions.items()
            if version
        )
    )
    versioned = [f"-Wl,--version-script={script}"] if script.stat().st_size else []
    subprocess.run([*CC, f"-Wl,-soname,{made.name}", *versioned, "-o", str(made), str(code)], check=True)
    code.unlink()
    script.unlink()
