"""`gpu-hook events`: the node's event log: grants, refusals, ends, findings."""

import json
import re
import time
from collections.abc import Callable
from typing import Any

import click

from oci_hook.cli import named, node_now, output
from oci_hook.config import settings as node_settings
from oci_hook.config.settings import Settings
from oci_hook.errors import GhError, refuse
from oci_hook.ledger.admit import MIN_PREFIX
from oci_hook.observe import engine_names
from oci_hook.observe.event_log import Follower

EVERY = 0.5  # seconds between two reads with --follow
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def moment(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Unix time of 90s, 10m, 1h30m or 2d ago, or of a date, with or without a time, such as `events` prints."""
    if value is None:
        return None
    parts = re.findall(r"(\d{1,9})([smhd])", value)
    if parts and "".join(map("".join, parts)) == value:
        return time.time() - sum(int(number) * SECONDS[unit] for number, unit in parts)
    if (at := output.unix_time(value)) is None:
        raise click.BadParameter(f"{value!r:.60} is neither a time ago, such as 10m or 1h30m, nor a date")
    return at


@click.command()
@output.prefix_option
@click.option("--follow", "-f", is_flag=True, help="Wait for further events; end with Ctrl-C.")
@click.option(
    "--container",
    "-c",
    default="",
    metavar="CONTAINER",
    shell_complete=named.complete,
    help="Only events of this container: the beginning of its id, or a name.",
)
@click.option("--since", callback=moment, metavar="TIME", help="Only later ones: 10m, 2h, 3d, or a date.")
@click.option("--tail", "-n", type=click.IntRange(0), metavar="N", help="Of those that are there, only the last N.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def events(prefix: str, follow: bool, container: str, since: float | None, tail: int | None, as_json: bool) -> None:
    """List what happened on this node: grants, refusals, findings.

    Grants, refusals and changes are always recorded; ends and findings only while the agent runs. A user other than root
    is told the last ones by the agent. Exit status 1: no event is about the CONTAINER that was named.
    """
    try:
        settings = node_settings.load(prefix)
        read = reader(settings, prefix)
        names = named.by_id(settings)
    except GhError as e:
        output.fail(e, as_json)
    shown, whole = 0, False
    try:
        while True:
            found = read()
            whole = whole or any(event.get("id") == container for event in found)
            names.update((str(event.get("id")), event["name"]) for event in found if event.get("name"))
            if found and container:  # an engine also knows those that were refused, or have ended
                names = dict.fromkeys(engine_names.ids_of(container), container) | names
            for event in found:
                if not event.get("name") and (name := names.get(str(event.get("id")))):
                    event["name"] = name
            found = [e for e in found if concerns(e, container, whole) and (since is None or float(e["at"]) >= since)]
            shown += len(found)
            for event in found if tail is None else found[max(0, len(found) - tail) :]:
                for text in [json.dumps(event)] if as_json else output.folded(line(event), output.columns()):
                    click.echo(text)
            tail = None
            if not follow:
                break
            time.sleep(EVERY)
    except KeyboardInterrupt:
        return
    if not shown and container:
        late = " since then" if since is not None else ""
        why = f"no event{late} is about {output.printable(container)}; `gpu-hook events` lists all"
        output.fail(refuse("GH-410", why), as_json)
    if not shown:
        click.echo("no events yet" if since is None else "no events since then", err=True)


def reader(settings: Settings, prefix: str) -> Callable[[], list[dict[str, Any]]]:
    """What returns the events that are new since its last call. Raises NodeError GH-303 for a user other than root where no
    agent of this install answers."""
    try:
        named.check_may_read(settings)
    except GhError:
        if node_now.ask(settings) is None:
            raise
        click.echo("(by the agent: the last events; root sees all)", err=True)
        seen: set[str] = set()

        def told() -> list[dict[str, Any]]:
            new = {json.dumps(event): event for event in node_now.told(settings)}
            found = [event for text, event in new.items() if text not in seen]
            seen.update(new)
            return found

        return told
    return Follower(settings.state_dir, old=True).read


def concerns(event: dict[str, Any], container: str, whole: bool) -> bool:
    """whole: container is the id of one, which another's may begin with, as t1 and t10."""
    name, id = str(event.get("name", "")), str(event.get("id", ""))
    if not container or whole:
        return container in ("", id)
    return container in (name, *name.split("/")) or (len(container) >= MIN_PREFIX and id.startswith(container))


def line(event: dict[str, Any]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["at"]))
    kind = event["event"]
    who = output.printable(event.get("name") or output.short(str(event.get("id", ""))) or "-")
    return f"{when}  {output.printable(kind):<15}  {who}  {output.printable(node_now.words(event))}"
