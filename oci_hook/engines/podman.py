"""podman: a runtime for `--runtime gpu-hook` in a drop-in file of containers.conf, and the hooks in hooks.d, which
serve containers that run with the usual runtime. podman has no daemon: the next container finds both."""

from pathlib import Path

from oci_hook.engines import drop_in, hooks_dir
from oci_hook.engines.edits import NAME, Registration, Target
from oci_hook.engines.toml_text import value

PROGRAMS = ("podman",)
FILE = "/etc/containers/containers.conf.d/gpu-hook.conf"
HOOKS = "/etc/containers/oci/hooks.d"
RELOAD = None


def paths(registration: Registration) -> list[Path]:
    return [registration.main(FILE), *hooks_dir.paths(registration.host(HOOKS))]


def target(path: Path, registration: Registration) -> Target:
    if path.suffix == ".json":
        return hooks_dir.target(path, registration)
    runtime = ["[engine.runtimes]", f"{NAME} = {value([registration.program])}"]
    default = ["[engine]", f'runtime = "{NAME}"']
    return drop_in.target(path, runtime, default, registration)


def place(registration: Registration) -> str:
    return f"{FILE}, and the files of {HOOKS}; rootless podman reads ~/.config/containers/containers.conf and no hooks"
