"""CRI-O: a runtime handler in crio.conf.d, and hooks in hooks.d for pods of the default handler."""

from pathlib import Path

from oci_hook.engines import drop_in, hooks_dir
from oci_hook.engines.edits import NAME, Registration, Target, read, text_of
from oci_hook.engines.toml_text import get, parse, table_lines

PROGRAMS = ("crio",)
MAIN = "/etc/crio/crio.conf"
DROP_INS = "/etc/crio/crio.conf.d"
FILE = DROP_INS + "/99-gpu-hook.conf"
HOOKS = "/usr/share/containers/oci/hooks.d"  # CRI-O's default
RELOAD = ("crio", "restart")  # containers keep running meanwhile


def paths(registration: Registration) -> list[Path]:
    return [registration.main(FILE), *hooks_dir.paths(registration.host(hooks(registration)))]


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


def place(registration: Registration) -> str:
    return f"{FILE}, and the files of {HOOKS}"
