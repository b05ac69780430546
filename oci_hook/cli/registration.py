"""The options of `install` and `uninstall` about engines, and the lines that report what was changed."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from oci_hook.config.settings import state_in_use
from oci_hook.core import words
from oci_hook.engines import NAMES, kept, register
from oci_hook.engines.edits import Record, Registration
from oci_hook.errors import refuse
from oci_hook.install import prefix as installs

NVIDIA_FILE = "/etc/nvidia-container-runtime/config.toml"

engines = click.option(
    "--engine",
    "names",
    multiple=True,
    type=click.Choice(NAMES),
    help="Only this engine; may be given several times. [default: every engine that is found and used]",
)
dry_run = click.option("--dry-run", is_flag=True, help="Print the changes without making them.")
restart = click.option(
    "--restart", is_flag=True, help="Reload or restart engines whose files changed; containers keep running."
)
config = click.option("--config", metavar="FILE", help="The engine's configuration file, if not the usual one.")
host_root = click.option(
    "--host-root", metavar="DIR", default="/", help="Where the machine's / is mounted, for an install from a container."
)
default = click.option(
    "--set-default", is_flag=True, help="Make gpu-hook the engine's default runtime, for containers that name none."
)
way = click.option(
    "--as",
    "way",
    type=click.Choice(("runtime", "hook")),
    default=None,
    help="hook: containerd keeps its runtime, and gpu-hook adds OCI hooks. [default: runtime]",
)
printing = click.option(
    "--print", "printing", is_flag=True, help="Print the configuration that each engine needs, and do nothing."
)


def options(*more: Callable[..., Any]) -> Callable[..., Any]:
    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in (*more, host_root, config, restart, dry_run, engines):
            command = option(command)
        return command

    return add


def as_report(results: Sequence[register.Result], dry_run: bool, remove: bool = False) -> tuple[list[Any], list[str]]:
    """(the "engines" part of the --json document, the lines)."""
    data, lines = [], []
    for result in results:
        lines += _lines(result, dry_run, remove)
        files = [{"path": str(c.path), "change": c.what, "diff": c.diff()} for c in result.changes]
        told = {"command": result.command, "restarted": result.restarted, "doubts": result.doubts}
        data.append(
            {"engine": result.engine, "files": files, **told, **({"found": result.found} if result.found else {})}
        )
    if not results:
        lines.append(
            "registered with no engine"
            if remove
            else "no engine was found; --print shows the configuration that an engine needs"
        )
    return data, lines


def _lines(result: register.Result, dry_run: bool, remove: bool) -> list[str]:
    if result.unused:
        return [
            f"{result.engine}: left alone: {result.unused}; `gpu-hook install --engine {result.engine}` registers all the same"
        ]
    if result.by_hand:
        lines = [f"{result.engine}: found {result.found}; do this:"]
        return lines + [line for title, text in result.by_hand for line in (f"# {title}", *text.splitlines(), "")]
    if not result.changes:
        return [f"{result.engine}: has no file to change; see `gpu-hook install --print --engine {result.engine}`"]
    lines = [f"{result.engine}: found {result.found}"] if result.found else []
    for change in result.changes:
        word = {"created": "create", "changed": "change", "removed": "remove"}.get(change.what, "")
        what = f"would {word}" if dry_run and word else change.what
        lines += [f"{result.engine}: {what} {change.path}", *change.diff()]
    lines += [f"{result.engine}: {doubt}" for doubt in result.doubts]
    if result.restarted:
        lines.append(f"{result.engine}: reloaded with its new configuration")
    elif result.command:
        why = f"; no reload, since {result.why}" if result.why else ""
        lines.append(f"{result.engine}: takes effect after `{result.command}`{why}")
    return lines


def printed(names: Sequence[str], registration: Registration) -> tuple[list[Any], list[str]]:
    """(the "engines" part of the --json document, the lines) of `install --print`."""
    data, lines = [], []
    for name, place, files in register.printed(names, registration):
        data.append({"engine": name, "place": place, "files": [{"path": p, "text": t} for p, t in files]})
        lines.append(f"# {name}: {place}")
        for path, text in files:
            lines += [f"# {path}", *text.splitlines(), ""]
    return data, lines


def refuse_while_called(wanted: Registration) -> None:
    """Refuse to uninstall while the NVIDIA runtime calls this install (mode: below): none of its containers would start any
    more. Raises GH-504."""
    file = wanted.host(NVIDIA_FILE)
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return  # there is no NVIDIA runtime
    if any(wanted.program in line.partition("#")[0] for line in lines):
        raise refuse(
            "GH-504", f"{file} calls {wanted.program}, without which its containers fail; take it out there first"
        )


def refuse_while_kept(wanted: Registration, names: Sequence[str], force: bool) -> dict[str, list[str]]:
    """Refuse to uninstall while engines keep containers that name our runtime; forced, these by engine. Raises GH-511."""
    if wanted.host_root != "/":
        return {}  # these engines are not where we run
    record = Record(wanted.prefix)
    record.engines = {name: files for name, files in record.engines.items() if not names or name in names}
    found = kept.by_engine(record, wanted)
    if found and not force:
        listed = "; ".join(f"{name}: {words.first(whose, 3)}" for name, whose in found.items())
        raise refuse(
            "GH-511",
            f"containers would not start again without gpu-hook ({listed}); remove them, or make them again with another runtime; or"
            " uninstall with --force",
        )
    return found


def refuse_while_held(prefix: str, force: bool) -> str:
    """Refuse to uninstall while containers hold shares, before any engine is unregistered; forced, the containers in words.
    Raises GH-504."""
    state_dir = state_in_use(prefix)  # without one, removing the install reports it
    return installs.refuse_while_held(state_dir, force) if state_dir else ""
