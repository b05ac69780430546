"""podman: a runtime for `--runtime gpu-hook` in a drop-in file of containers.conf, and hooks in hooks.d for containers
of the default runtime. podman has no daemon, so both are in effect for the next container."""

from pathlib import Path

from oci_hook.engines import drop_in, hooks_dir
from oci_hook.engines.edits import NAME, Registration, Target, read, text_of, without_fences
from oci_hook.engines.toml_text import get, parse, table_lines, value

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
    found = [registration.main(FILE), *hooks_dir.paths(registration.host(folders[-1] if folders else HOOKS))]
    precreate = folders[-1] if folders else PRECREATE_HOOKS
    if precreate not in (USUAL_HOOKS, HOOKS):
        found += hooks_dir.paths(registration.host(precreate), ("precreate",))
    return found


def configured_hooks(registration: Registration) -> list[str] | None:
    """The administrator's hooks_dir, outside of our lines, from the last file that sets it; None if podman's default
    applies."""
    found = None
    for file in (*map(registration.host, MAIN), *sorted(registration.host(DROP_INS).glob("*.conf"))):
        real, data = read(file)
        if data is not None:
            listed = get(parse(without_fences(text_of(real, data)), real), ("engine", "hooks_dir"))
            if isinstance(listed, list) and all(isinstance(name, str) for name in listed):
                found = listed
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
