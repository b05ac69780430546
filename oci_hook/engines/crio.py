"""CRI-O: a runtime handler in crio.conf.d, and hooks in hooks.d for pods of the default handler."""

from pathlib import Path
from typing import Any

from oci_hook.engines import drop_in, effective, hooks_dir
from oci_hook.engines.edits import NAME, NOTHING, Registration, Target, Texts, read, text_of
from oci_hook.engines.effective import Has, last_word
from oci_hook.engines.toml_text import get, parse, table_lines

PROGRAMS = ("crio",)
MAIN = "/etc/crio/crio.conf"
DROP_INS = "/etc/crio/crio.conf.d"
FILE = DROP_INS + "/99-gpu-hook.conf"
HOOKS = "/usr/share/containers/oci/hooks.d"  # CRI-O's default
PROGRAM = ("crio", "runtime", "runtimes", NAME, "runtime_path")
DEFAULT = ("crio", "runtime", "default_runtime")
RELOAD = ("crio", "restart")  # containers keep running meanwhile


def paths(registration: Registration) -> list[Path]:
    return [where(registration), *hooks_dir.paths(registration.host(hooks(registration)))]


def hooks(registration: Registration) -> str:
    """The last directory of hooks_dir: its files win, and it is writable even if /usr is read-only."""
    found: list[str] = [HOOKS]
    drop_ins = sorted(registration.host(DROP_INS).rglob("*"))  # CRI-O reads those of its folders too, in this order
    for file in (registration.host(MAIN), *(path for path in drop_ins if not path.is_dir())):
        real, data = read(file)
        if data is not None:
            listed = get(parse(text_of(real, data), real), ("crio", "runtime", "hooks_dir"))
            if isinstance(listed, list) and listed and all(isinstance(name, str) for name in listed):
                found = listed
    return found[-1]


def target(path: Path, registration: Registration) -> Target:
    if path.suffix == ".json":
        return hooks_dir.target(path, registration)
    return drop_in.target(path, lambda default: lines(default, registration), registration)


def lines(default: bool, registration: Registration) -> list[str]:
    handler = {"runtime_path": registration.program, "runtime_type": "oci"}
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
    return drop_in.contents(drop_in.with_own((registration.host(MAIN), *drop_ins), registration), instead, bare)


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
