"""The static busybox of the image: this machine's own, or for another architecture the one of Debian's package."""

import os
import platform
import re
import shutil
import tempfile
from pathlib import Path

from payload import ROOT, Files, read

from oci_hook.linux import elf
from testbed.debian import CannotFetch, apt, unpack

GIVEN = "GPU_HOOK_BUSYBOX"  # a file to take instead
ADVICE = f"or name a static busybox for it by the variable {GIVEN}"


def files(arch: str, debian: str) -> Files:
    """debian: Debian's name of the architecture."""
    program = find(arch, debian)
    found = {"bin/busybox": read(program, 0o755)}
    licence = program.with_name("busybox.copyright")
    if not licence.exists():
        licence = Path("/usr/share/doc/busybox-static/copyright")
    if licence.exists():
        found["usr/share/doc/busybox-static/copyright"] = read(licence)
    found["usr/share/doc/busybox-static/SOURCE"] = (source(program.read_bytes()).encode(), 0o644)
    return found


def source(program: bytes) -> str:
    """Where the program's source is, as the GNU General Public License, version 2, section 3 wants it said."""
    said = re.search(rb"BusyBox v([0-9.]+) \((?:Debian |Ubuntu )?([^)]+)\)", program)
    version = said[2].decode() if said else "of this program"
    return (
        f"bin/busybox is BusyBox {version}, under the GNU General Public License, version 2.\n"
        "Its complete source is the source package busybox of that version of the distribution that built it:\n"
        "`apt-get source busybox=VERSION` gets it from Debian, whose snapshot archive keeps each version.\n"
        "Who passes this image on offers that source with it.\n"
    )


def find(arch: str, debian: str) -> Path:
    if given := os.environ.get(GIVEN):
        return checked(Path(given), arch)
    if arch == platform.machine():
        for path in map(Path, ("/bin/busybox", "/usr/bin/busybox", "/usr/sbin/busybox")):
            if path.exists() and not problem(path, arch):
                return path
        raise SystemExit("scripts/package: the image needs a static busybox: apt-get install busybox-static")
    kept = ROOT / "build" / arch / "busybox"
    if not kept.exists():
        fetch(kept, arch, debian)
    return checked(kept, arch)


def fetch(target: Path, arch: str, debian: str) -> None:
    """Debian's busybox-static, verified by apt."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            with apt(architecture=debian) as get:
                get(folder, "download", "busybox-static")
        except CannotFetch as e:
            raise SystemExit(f"scripts/package: {e}; build on a machine whose apt has it, {ADVICE}") from None
        unpack(folder.glob("*.deb"), folder / "root")
        (program,) = (p for p in (folder / "root").rglob("bin/busybox") if p.is_file())
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "root/usr/share/doc/busybox-static/copyright", target.with_name("busybox.copyright"))
        shutil.copy(program, target.with_name("busybox.new"))
        target.with_name("busybox.new").rename(target)


def checked(path: Path, arch: str) -> Path:
    if why := problem(path, arch):
        raise SystemExit(f"scripts/package: {path} {why}")
    return path


def problem(path: Path, arch: str) -> str:
    """Why this is no busybox for the image, which has no libraries; "" if it is one."""
    try:
        with open(path, "rb") as file:
            facts = elf.read(file.fileno())
    except OSError as e:
        return f"cannot be read: {e.strerror}"
    if facts is None or (facts.bits, facts.machine) != (64, elf.MACHINES[arch]):
        return f"is no program for {arch}"
    return "needs a dynamic loader; the image has none" if facts.interpreted else ""
