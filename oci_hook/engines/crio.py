"""CRI-O: a runtime handler in crio.conf.d, and hooks in hooks.d for pods of the default handler."""

import os
from pathlib import Path
from typing import Any

from oci_hook.engines import drop_in, effective, hooks_dir
from oci_hook.engines.edits import NAME, NOTHING, Registration, Target, Texts
from oci_hook.engines.effective import Has, last_word
from oci_hook.engines.toml_text import get, table_lines

PROGRAMS = ("crio",)
MAIN = "/etc/crio/crio.conf"
DROP_INS = "/etc/crio/crio.conf.d"
FILE = DROP_INS + "/99-gpu-hook.conf"
HOOKS = "/usr/share/containers/oci/hooks.d"  # CRI-O's default
PROGRAM = ("crio", "runtime", "runtimes", NAME, "runtime_path")
DEFAULT = ("crio", "runtime", "default_runtime")
SAME_TYPES = ("", "oci", "pod")  # conmon, or conmon-rs, which both call the runtime for every container; not "vm"
# Keys of a handler's entry that name another program than ours, or what is that program's.
OTHER_PROGRAM = ("runtime_path", "runtime_config_path", "platform_runtime_paths", "inherit_default_runtime")
RELOAD = ("crio", "restart")  # containers keep running meanwhile


def paths(registration: Registration) -> list[Path]:
    return [where(registration), *hooks_dir.paths(registration.host(hooks(registration)))]


def said(registration: Registration) -> list[dict[str, Any]]:
    """The tables crio.runtime of all files, without our lines, in the order in which CRI-O reads them."""
    tables = [get(data, ("crio", "runtime")) for _, data in contents(registration, bare=True)]
    return [table for table in tables if isinstance(table, dict)]


def hooks(registration: Registration) -> str:
    """The directory for our hooks: the last of hooks_dir that can be written and outlives a reboot. CRI-O reads them all."""
    found: list[str] = [HOOKS]
    for table in said(registration):
        listed = table.get("hooks_dir")
        if isinstance(listed, list) and listed and all(isinstance(name, str) for name in listed):
            found = listed
    lasting = [name for name in found if not name.startswith("/run/") and not read_only(registration.host(name))]
    return (lasting or found)[-1]


def read_only(folder: Path) -> bool:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return bool(os.statvfs(there).f_flag & os.ST_RDONLY)


def like(registration: Registration) -> dict[str, Any]:
    """What our handler has of the runtime that the node uses by default: its monitor, which need not be in CRI-O's PATH, the
    annotations that it lets through, and so on. CRI-O replaces the whole entry of an earlier file."""
    tables = said(registration)
    runtimes: dict[str, Any] = {}
    for table in tables:
        runtimes |= table["runtimes"] if isinstance(table.get("runtimes"), dict) else {}
    named = [table["default_runtime"] for table in tables if isinstance(table.get("default_runtime"), str)]
    entry = runtimes.get(named[-1]) if named else runtimes.get("crun", runtimes.get("runc"))
    if not isinstance(entry, dict) or entry.get("runtime_type", "") not in SAME_TYPES:
        return {}
    return {key: value for key, value in entry.items() if key not in OTHER_PROGRAM}


def target(path: Path, registration: Registration) -> Target:
    if path.suffix == ".json":
        return hooks_dir.target(path, registration)
    return drop_in.target(path, lambda default: lines(default, registration), registration)


def lines(default: bool, registration: Registration) -> list[str]:
    handler = {"runtime_type": "oci", **like(registration), "runtime_path": registration.program}
    head = ["[crio.runtime]", f'  default_runtime = "{NAME}"'] if default else []
    return head + table_lines(("crio", "runtime", "runtimes", NAME), handler)


def where(registration: Registration) -> Path:
    """Our drop-in file: as the default runtime, behind each other that names one."""
    if registration.config or not registration.default:
        return registration.main(FILE)
    return drop_in.last(registration.host(FILE), last_word(contents(registration, bare=True), DEFAULT))


def contents(registration: Registration, instead: Texts = NOTHING, bare: bool = False) -> list[tuple[Path, Any]]:
    """CRI-O's files, also those in folders of its drop-in folder, in the order in which it reads them, and their data."""
    drop_ins = drop_in.listed(registration.host(DROP_INS), "*", instead)
    return drop_in.contents(
        drop_in.with_own((registration.host(MAIN), *drop_ins), registration), registration, instead, bare
    )


def has(registration: Registration, instead: Texts) -> Has:
    found = contents(registration, instead)
    program, default = effective.said(found, PROGRAM) or "", effective.said(found, DEFAULT) or "crun"
    return Has(program, default, last_word(found, PROGRAM), last_word(found, DEFAULT))


def moved(path: Path, registration: Registration) -> bool:
    """True if our lines in this file belong to the CRI-O for which we would write now."""
    return path.suffix == ".json" or path.parent == registration.host(DROP_INS).resolve()


def socket(file: str) -> str:
    return "/run/crio/crio.sock"


def place(registration: Registration) -> str:
    return f"{FILE}, and the files of {HOOKS}"
