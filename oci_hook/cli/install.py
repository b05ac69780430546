"""`gpu-hook install|uninstall`: the install under a prefix, and its registration with container engines."""

from pathlib import Path

import click

from oci_hook.agent.serve import whereabouts
from oci_hook.cli import output, registration
from oci_hook.config.settings import option, state_in_use
from oci_hook.core.layout import AGENT_LOCK, SIM_ROOT, STATE_IN_USE
from oci_hook.discovery import mark
from oci_hook.engines import containerd_spec, detect, register
from oci_hook.engines.doctor import registered
from oci_hook.engines.edits import Registration
from oci_hook.errors import GhError
from oci_hook.install import prefix as installs
from oci_hook.install import state_owner


@click.command()
@click.option(
    "--runtime",
    metavar="PATH",
    help="The real runtime. [default: that of k3s and such, else this machine's runc, else crun]",
)
@click.option(
    "--python",
    metavar="PATH",
    help="The Python that starts with containers. [default: gpu-hook's own, or /usr/bin/python3 where it has none]",
)
@click.option("--state-dir", metavar="DIR", help="Ledger and inventory, on tmpfs. [default: /run/gpu-hook]")
@click.option("--no-engines", is_flag=True, help="Register with no engine.")
@registration.options(registration.default, registration.way, registration.printing)
@output.answers
def install(
    prefix: str,
    runtime: str | None,
    python: str | None,
    state_dir: str | None,
    no_engines: bool,
    names: tuple[str, ...],
    dry_run: bool,
    restart: bool,
    config: str | None,
    host_root: str,
    set_default: bool,
    way: str | None,
    printing: bool,
) -> output.Report:
    """Install under a prefix and register with the container engines.

    Without --prefix the first place is taken of /opt, /var/lib, /var/opt, and those of nodes' systems, whose file system can
    be written, runs programs, and is there after a boot; the other commands look for the install there.

    Programs, libraries and settings go into one directory; an existing settings.yaml is kept. The lines that register
    gpu-hook are added to each engine's configuration and printed as a diff; everything else in it stays as it is. A
    second run changes nothing.
    """
    notes: list[str] = []
    if not printing and output.prefix_is_default():
        prefix, notes = installs.place()
    wanted = Registration(prefix, set_default, host_root, config, way or "")
    if way == "hook":
        register.check_hooks(names)  # before anything is installed
    if printing:
        data, lines = registration.printed(names, wanted)
        return output.Report({"prefix": prefix, "engines": data}, lines)
    if not no_engines:
        for name in names:
            detect.require(name, wanted)  # before anything is installed
    head, lines = {"prefix": prefix, "dry_run": dry_run}, []
    usual = "" if no_engines else detect.runtime(names, wanted)
    if dry_run:
        installs.check(prefix, runtime, python, state_dir, usual)
    # What an engine refuses is not installed.
    results = [] if no_engines else register.register(names, wanted, True, restart)
    if dry_run:
        lines += [f"would install in {prefix}", *notes]
    else:
        settings = installs.lay(prefix, runtime, python, state_dir, usual)
        head.update(runtime=settings.runtime, state_dir=settings.state_dir)
        lines += [f"installed in {prefix}: runtime {settings.runtime}, state in {settings.state_dir}", *notes]
        results = [] if no_engines else register.register(names, wanted, False, restart)
    data, engines = registration.as_report(results, dry_run)
    lines += [] if no_engines else engines
    if way == "hook":
        lines.append(f"containerd: {containerd_spec.LIMITS}")
    return output.Report({**head, "engines": data}, lines)


def take_away(prefix: str, force: bool) -> tuple[list[str], list[str]]:
    """Remove the install with its simulated GPUs: (files that stay because they are not ours, notes for the user)."""
    state_dir = state_in_use(prefix)
    if not state_dir:
        left = installs.remove(prefix, force, [Path(prefix, SIM_ROOT)])
        why = f"{prefix}/{STATE_IN_USE} cannot be read"
        return left, [f"{why}, so its state directory stays (/run/gpu-hook unless another was chosen)"]
    other = state_owner.other(prefix, state_dir)
    left = installs.remove(prefix, force, [Path(prefix, SIM_ROOT), *simulated_folders(prefix, state_dir)])
    if other:
        return left, [f"state directory {state_dir} belongs to the install in {other} and stays"]
    agent = whereabouts.holder(f"{state_dir}/{AGENT_LOCK}")
    return left, [f"its agent still runs; stop it by `kill {agent}`, then `rm -r {state_dir}`"] if agent else []


def simulated_folders(prefix: str, state_dir: str) -> list[Path]:
    """The paths that the mark of the install's simulated driver names, as far as they are the install's."""
    try:
        found = mark.read(str(Path(prefix, SIM_ROOT)))
    except GhError:
        return []
    named = found.folders if found else ()
    return [path for path in named if path.is_relative_to(prefix) or path.is_relative_to(state_dir)]


FORCED = (
    "Even while containers hold shares, an engine keeps some that need gpu-hook to start again, or the NVIDIA runtime calls this"
    " install. Containers keep running, unaccounted, and"
    " their engine has no runtime any more to remove them: end them first, or install again to end them."
)


@click.command()
@click.option("--force", is_flag=True, help=FORCED)
@registration.options()
@output.answers
def uninstall(
    prefix: str,
    force: bool,
    names: tuple[str, ...],
    dry_run: bool,
    restart: bool,
    config: str | None,
    host_root: str,
) -> output.Report:
    """Unregister from the engines and remove an install with its settings and ledger.

    Removes from each engine's configuration the lines that `install` added, and then the install itself. With --engine,
    only unregisters from that engine.
    """
    wanted = Registration(prefix, False, host_root, config)
    if not names and not force:
        registration.refuse_while_called(wanted)
    held = "" if names else registration.refuse_while_held(prefix, force)
    lost = registration.refuse_while_kept(wanted, names, force)
    results = register.unregister(names, wanted, dry_run, restart)
    data, lines = registration.as_report(results, dry_run, remove=True)
    if not dry_run and any(result.engine == "docker" and result.changed for result in results):
        lines += [
            f"docker: {told.message}" + (f": `{told.fix}`" if told.fix else "")
            for told in registered.still_offered(wanted)
        ]
    lines += [f"{name}: will not start again: {', '.join(whose)}" for name, whose in lost.items()]
    left: list[str] = []
    if not names and dry_run:
        lines.append(
            f"would remove {prefix} with its settings and ledger" + (f"; still running: {held}" if held else "")
        )
    elif not names:
        left, notes = take_away(prefix, force)
        lines = [
            *lines,
            f"removed {prefix}",
            *(f"stays, since it is not part of the install: {path}" for path in left),
            *notes,
        ]
        if held:
            again = f"`gpu-hook install{option(prefix)}` again, and end them"
            lines.append(f"still running: {held}; an engine that made them by gpu-hook cannot remove them now: {again}")
    return output.Report({"prefix": prefix, "dry_run": dry_run, "left": left, "engines": data, "lost": lost}, lines)
