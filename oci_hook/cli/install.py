"""`gpu-hook install|uninstall`: the install under a prefix, and the container engines that are told of it."""

import click

from oci_hook.cli import agent_check, output, registration
from oci_hook.config.settings import state_in_use
from oci_hook.core.layout import AGENT_LOCK, STATE_IN_USE
from oci_hook.engines import prefix as installs
from oci_hook.engines import register
from oci_hook.engines.edits import Registration
from oci_hook.install import state_owner
from oci_hook.sim import driver_root


@click.command()
@click.option("--runtime", metavar="PATH", help="The real runtime. [default: this machine's runc, else crun]")
@click.option("--python", metavar="PATH", help="Python 3.10 or newer. [default: /usr/bin/python3]")
@click.option("--state-dir", metavar="DIR", help="Ledger and inventory, on tmpfs. [default: /run/gpu-hook]")
@click.option("--no-engines", is_flag=True, help="Change no engine's configuration.")
@registration.options(registration.default, registration.printing)
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
    printing: bool,
) -> output.Report:
    """Put gpu-hook under a prefix and tell the container engines.

    Programs, libraries and settings go into one directory; an existing settings.yaml is kept. Each engine's
    configuration gets what it needs to know, printed as a diff, and nothing else in it changes. A second run changes
    nothing.
    """
    wanted = Registration(prefix, set_default, host_root, config)
    if printing:
        data, lines = registration.pages(names, wanted)
        return output.Report({"prefix": prefix, "engines": data}, lines)
    head, lines = {"prefix": prefix, "dry_run": dry_run}, []
    if not dry_run:
        settings = installs.lay(prefix, runtime, python, state_dir)
        head.update(runtime=settings.runtime, state_dir=settings.state_dir)
        lines.append(f"installed in {prefix}: runtime {settings.runtime}, state in {settings.state_dir}")
    results = [] if no_engines else register.install(names, wanted, dry_run, restart)
    data, told = registration.told(results, dry_run)
    return output.Report({**head, "engines": data}, [*lines, *([] if no_engines else told)])


def take_away(prefix: str, force: bool) -> tuple[list[str], list[str]]:
    """The install with its simulated GPUs: what stays because it is not ours, and what is left to do."""
    state_dir = state_in_use(prefix)
    if not state_dir:
        left = installs.remove(prefix, force, [driver_root.root_of(prefix)])
        why = f"{prefix}/{STATE_IN_USE} cannot be read"
        return left, [f"{why}: its state directory stays (/run/gpu-hook, unless another one was chosen)"]
    other = state_owner.other(prefix, state_dir)
    left = installs.remove(prefix, force, [driver_root.root_of(prefix), driver_root.gpus_of(state_dir)])
    if other:
        return left, [f"state directory {state_dir} is that of the install in {other}: left as it is"]
    agent = agent_check.holder(f"{state_dir}/{AGENT_LOCK}")
    return left, [f"its agent still runs: `kill {agent}`, then `rm -r {state_dir}`"] if agent else []


@click.command()
@click.option("--force", is_flag=True, help="Even while containers hold shares; they run on, unaccounted.")
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
    """Remove an install with its settings and ledger.

    Takes out of the engines' configuration what `install` put there, and then the install itself. With --engine only
    that engine forgets it.
    """
    wanted = Registration(prefix, False, host_root, config)
    if not names:
        registration.refuse_while_held(prefix, force)
    results = register.uninstall(names, wanted, dry_run, restart)
    data, lines = registration.told(results, dry_run, remove=True)
    left: list[str] = []
    if not names and not dry_run:
        left, notes = take_away(prefix, force)
        lines = [*lines, f"removed {prefix}", *(f"not ours, left: {path}" for path in left), *notes]
    return output.Report({"prefix": prefix, "dry_run": dry_run, "left": left, "engines": data}, lines)
