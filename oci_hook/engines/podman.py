"""podman: a runtime for `--runtime gpu-hook` in a drop-in file of containers.conf, and hooks in hooks.d for containers
of the default runtime. podman has no daemon, so both are in effect for the next container."""

from pathlib import Path
from typing import Any

from oci_hook.engines import drop_in, hooks_dir
from oci_hook.engines.edits import NAME, NOTHING, Registration, Target, Texts
from oci_hook.engines.effective import Has, last_word, said
from oci_hook.engines.toml_text import get, table_lines, value

PROGRAMS = ("podman",)
MAIN = ("/usr/share/containers/containers.conf", "/etc/containers/containers.conf")
DROP_INS = "/etc/containers/containers.conf.d"
FILE = DROP_INS + "/gpu-hook.conf"
USUAL_HOOKS = "/usr/share/containers/oci/hooks.d"  # podman's default
HOOKS = "/etc/containers/oci/hooks.d"
# precreate is a stage of podman alone. It needs a directory of its own: `podman build` and CRI-O read the two above and
# fail on a hook file that names it.
PRECREATE_HOOKS = "/etc/containers/oci/podman-hooks.d"
RELOAD = None


def paths(registration: Registration) -> list[Path]:
    folders = configured_hooks(registration)
    found = [where(registration), *hooks_dir.paths(registration.host(folders[-1] if folders else HOOKS))]
    precreate = folders[-1] if folders else PRECREATE_HOOKS
    if precreate not in (USUAL_HOOKS, HOOKS):
        found += hooks_dir.paths(registration.host(precreate), ("precreate",))
    return found


def where(registration: Registration) -> Path:
    """Our drop-in file: as the default runtime, behind each other that names one."""
    if registration.config or not registration.default:
        return registration.main(FILE)
    return drop_in.last(registration.host(FILE), last_word(contents(registration, bare=True), ("engine", "runtime")))


def contents(registration: Registration, instead: Texts = NOTHING, bare: bool = False) -> list[tuple[Path, Any]]:
    """podman's files for root in the order in which it reads them, and their data."""
    drop_ins = drop_in.listed(registration.host(DROP_INS), "containers.conf.d/*.conf", instead)
    return drop_in.contents(
        drop_in.with_own((*map(registration.host, MAIN), *drop_ins), registration), registration, instead, bare
    )


def has(registration: Registration, instead: Texts) -> Has:
    """podman takes the first program of a runtime that there is."""
    program, default = ("engine", "runtimes", NAME), ("engine", "runtime")
    found = contents(registration, instead)
    named = said(found, program) or ()
    there = [name for name in named if name == registration.program or registration.host(name).exists()]
    return Has((there or [""])[0], said(found, default) or "crun", last_word(found, program), last_word(found, default))


def moved(path: Path, registration: Registration) -> bool:
    """True if our lines in this file belong to the podman for which we would write now."""
    return path.suffix == ".json" or path.parent == registration.host(DROP_INS).resolve()


def configured_hooks(registration: Registration) -> list[str] | None:
    """The administrator's hooks_dir, outside of our lines; None if podman's default applies. A list that ends with
    {append=true} adds to the one before."""
    found: list[str] | None = None
    for _, data in contents(registration, bare=True):
        listed = get(data, ("engine", "hooks_dir"))
        if isinstance(listed, list):
            names = [name for name in listed if isinstance(name, str)]
            found = [*(found or (USUAL_HOOKS,)), *names] if {"append": True} in listed else names
    return found


def target(path: Path, registration: Registration) -> Target:
    if path.suffix == ".json":
        return hooks_dir.target(path, registration)
    return drop_in.target(path, lambda default: lines(default, registration), registration)


def lines(default: bool, registration: Registration) -> list[str]:
    engine = [f'  runtime = "{NAME}"'] if default else []
    if not configured_hooks(registration):
        engine.insert(0, f"  hooks_dir = {value([USUAL_HOOKS, HOOKS, PRECREATE_HOOKS])}")
    head = ["[engine]", *engine] if engine else []
    return head + table_lines(("engine", "runtimes"), {NAME: [registration.program]})


def place(registration: Registration) -> str:
    rootless = "rootless podman reads ~/.config/containers/containers.conf and no hooks"
    return f"{FILE}, and the files of {HOOKS} and {PRECREATE_HOOKS}; {rootless}"
