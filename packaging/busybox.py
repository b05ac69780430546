"""The static busybox of the image: this machine's own, or for another architecture the one of Debian's package."""

import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from payload import ROOT, Files, read

from oci_hook.discovery import elf

GIVEN = "GPU_HOOK_BUSYBOX"  # a file to take instead
PT_INTERP = 3
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
    return found


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
    """Debian's busybox-static, downloaded and verified by this machine's apt without a change to the machine."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("lists/partial", "cache/archives/partial"):
            (folder / part).mkdir(parents=True)
        options = [
            f"-oAPT::Architecture={debian}",
            f"-oAPT::Architectures={debian}",
            f"-oDir::State::Lists={folder}/lists",
            f"-oDir::Cache={folder}/cache",
            "-oDir::State::status=/dev/null",
            "-oAPT::Sandbox::User=root",
        ]
        try:
            for command in (["update"], ["download", "busybox-static"]):
                subprocess.run(["apt-get", "-q", *options, *command], cwd=folder, check=True, capture_output=True)
            (package,) = folder.glob("busybox-static_*.deb")
            subprocess.run(["dpkg-deb", "-x", str(package), str(folder / "root")], check=True, capture_output=True)
            (program,) = (p for p in (folder / "root").rglob("bin/busybox") if p.is_file())
        except (OSError, subprocess.CalledProcessError, ValueError):
            raise SystemExit(
                f"scripts/package: apt here has no busybox-static for {debian}; build on such a machine, {ADVICE}"
            ) from None
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
        data = path.read_bytes()
        with open(path, "rb") as file:
            facts = elf.read(file.fileno())
    except OSError as e:
        return f"cannot be read: {e.strerror}"
    if facts is None or (facts.bits, facts.machine) != (64, elf.MACHINES[arch]):
        return f"is no program for {arch}"
    table, width, count = int.from_bytes(data[32:40], "little"), data[54], data[56]
    kinds = [int.from_bytes(data[table + i * width :][:4], "little") for i in range(count)]
    return "needs a dynamic loader; the image has none" if PT_INTERP in kinds else ""
