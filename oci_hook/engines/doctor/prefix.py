"""The install: who may change it, whether its files are whole, its settings, its shim libraries."""

import os
import platform
import re
import shlex
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from oci_hook import __version__
from oci_hook.config.settings import load
from oci_hook.core import layout, words
from oci_hook.engines import detect
from oci_hook.engines.doctor.finding import FAIL, NOTE, OK, WARN, CheckResult
from oci_hook.errors import GhError
from oci_hook.install import answer, own_path, settings_check
from oci_hook.install.prefix import LOADER, PROGRAMS, SHIMS, STARTS
from oci_hook.linux import elf

REINSTALL = f"{'apt-get' if shutil.which('apt-get') else 'dnf'} install runc"
SAY_RUNTIMES = ("spec", "runc", "crun", "youki")  # their --version; the NVIDIA runtime's has "spec", too
GLIBC_FLOOR = (2, 17)  # the oldest glibc of an image in which the shims must load


def check_prefix(prefix: str, option: str) -> Iterator[CheckResult]:
    fix = install_command(option)
    there = fix if Path(prefix, layout.LIB_DIR).is_dir() else f"gpu-hook install{option}"
    try:
        detect.check_prefix(prefix)
    except GhError as e:
        message = str(e.problems[0]).partition(": ")[2]
        yield CheckResult(
            "prefix", FAIL, message, e.problems[0].code, there if "does not exist" in message else closed(message)
        )
        return
    meant = Path(prefix, layout.OPEN_DIR)  # open on purpose; the folder above it limits who can reach it
    open_to_others = [path for path in sorted(Path(prefix).rglob("*")) if path != meant and changeable(path)]
    if open_to_others:
        quoted = shlex.quote(prefix)
        yield CheckResult(
            "prefix",
            FAIL,
            f"{words.first([str(path) for path in open_to_others])} can be changed by others than root",
            "GH-504",
            f"chown -R root: {quoted} && chmod -R go-w {quoted} && {fix}",  # the install opens the account folder again
        )
        return
    if (problem := damaged_program(prefix)) is not None:
        yield CheckResult("prefix", FAIL, problem, "GH-504", fix)
        return
    if (problem := wrong_skeleton(prefix)) is not None:
        yield CheckResult("prefix", FAIL, problem, "GH-308", fix)
        return
    if (folder := own_path.cleaned(prefix)) is not None:
        message = f"{prefix} is in {folder}, where anyone may create files; a cleanup of it removes the install"
        yield CheckResult("prefix", NOTE, message)
    laid = laid_by(prefix)
    if laid != __version__:
        what = f"was installed by gpu-hook {laid}" if laid else "does not say its version"
        yield CheckResult("prefix", WARN, f"{prefix} {what}, this is {__version__}", "GH-504", fix)
    else:
        yield CheckResult("prefix", OK, f"gpu-hook {__version__} in {prefix}")


def install_command(option: str) -> str:
    """The command that installs the files again and changes no engine's registration."""
    return f"gpu-hook install --no-engines{option}"


def damaged_program(prefix: str) -> str | None:
    """A damaged file without which no container starts, such as one cut short by a full disk; None if all are whole."""
    for name in PROGRAMS:
        path = Path(prefix, "bin", name)
        with open(path, "rb") as f:
            facts = elf.read(f.fileno())
        if facts is None or facts.end > path.stat().st_size:
            return f"{path} is empty, cut short or not a program"
        if (facts.bits, facts.machine) != (64, elf.MACHINES.get(platform.machine())):
            return f"{path} is not a program for {platform.machine()}"
        if path.stat().st_mode & 0o111 != 0o111:
            return f"{path} is not executable"
    for name in (LOADER, *STARTS):
        path = Path(prefix, layout.LIB_DIR, name)
        try:
            said = path.read_bytes()
        except FileNotFoundError:
            return f"{path} does not exist"
        if not said.endswith(b"\n# end\n"):  # the launcher checks the same
            return f"{path} is empty or cut short"
    return None


def laid_by(prefix: str) -> str:
    """The version of gpu-hook that installed this; "" if its library does not say."""
    library = Path(prefix, layout.LIB_DIR, "oci_hook/__init__.py")
    laid = re.search(r'^__version__ = "(\S+)"', library.read_text(), re.MULTILINE) if library.exists() else None
    return laid[1] if laid else ""


def wrong_skeleton(prefix: str) -> str | None:
    """Faults of the folder of account pages: closed to containers' plain users, or open to this machine's."""
    lack = "with runc 1.1.5, non-root users in containers get no GPU memory"
    closed, opened = Path(prefix, layout.CLOSED_DIR), Path(prefix, layout.OPEN_DIR)
    try:
        if closed.lstat().st_mode & 0o7777 != 0o700 or closed.lstat().st_uid not in (0, os.geteuid()):
            return f"{closed} is open to others than root"
        st = opened.lstat()
        if not stat.S_ISDIR(st.st_mode) or st.st_uid not in (0, os.geteuid()) or os.listdir(opened):
            return f"{opened} is not an empty directory that root owns"
        if st.st_mode & 0o7777 != layout.OPEN_MODE:
            return f"{opened} has mode {st.st_mode & 0o7777:04o}: {lack}"
    except FileNotFoundError as e:
        return f"{e.filename} does not exist: {lack}"
    return None


def closed(message: str) -> str:
    """The command that closes the path of which detect.check_prefix says that others can change it."""
    path, found, _ = message.partition(" can be changed by others")
    return f"chown root: {shlex.quote(path)} && chmod go-w {shlex.quote(path)}" if found else ""


def changeable(path: Path) -> bool:
    st = path.lstat()
    if stat.S_ISLNK(st.st_mode):
        return False
    return bool(st.st_uid not in (0, os.geteuid()) or st.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def check_settings(prefix: str, option: str) -> Iterator[CheckResult]:
    settings_check.check(prefix)  # GhError: its problems are the findings
    used = load(prefix)
    yield CheckResult("settings", OK, f"valid, mode {used.mode}")
    said = answer.ask(used.runtime, "--version")
    first = said.out.strip().split("\n")[0][:100]
    if said.fault or said.status:
        why = said.fault or f"--version: {said.err.strip()[:100]}"
        yield CheckResult("runtime", FAIL, f"{used.runtime} {why}", "GH-503", REINSTALL)
    elif not any(word in said.out for word in SAY_RUNTIMES):
        yield CheckResult(
            "runtime", WARN, f"{used.runtime} says {first!r}: is that an OCI runtime?", "GH-503", REINSTALL
        )
    else:
        yield CheckResult("runtime", OK, f"{used.runtime}, {first}")


def check_shim(prefix: str, option: str) -> Iterator[CheckResult]:
    """The shims have this machine's architecture and the right names, and load with the glibc of every image."""
    fix = install_command(option)
    for name in SHIMS:
        path = Path(prefix, layout.SHIM_DIR, name)
        try:
            with open(path, "rb") as f:
                facts, data = elf.read(f.fileno(), elf.SONAME), f.read()
        except FileNotFoundError:
            yield CheckResult("shim", FAIL, f"{path} is missing", "GH-305", fix)
            continue
        right = facts and facts.machine == elf.MACHINES.get(platform.machine()) and facts.texts.get(elf.SONAME) == name
        if not right:
            yield CheckResult("shim", FAIL, f"{path} is not {name} for {platform.machine()}", "GH-305", fix)
            continue
        needs = {tuple(map(int, m.split(b"."))) for m in re.findall(rb"GLIBC_(\d+(?:\.\d+)+)\0", data)}
        newest = max(needs, default=GLIBC_FLOOR)
        if newest > GLIBC_FLOOR:
            wanted = ".".join(map(str, newest))
            yield CheckResult("shim", WARN, f"{name} needs glibc {wanted}: older images cannot load it", "GH-305", fix)
        else:
            yield CheckResult("shim", OK, f"{name} loads with glibc {'.'.join(map(str, newest))} and newer")
