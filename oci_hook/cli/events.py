"""`gpu-hook events`: the node's event log: grants, refusals, ends, findings."""

import json
import time
from typing import Any

import click

from oci_hook.cli import named, output
from oci_hook.config import settings as node_settings
from oci_hook.errors import GhError, refuse
from oci_hook.observe import engine_names
from oci_hook.observe.event_log import Follower
from oci_hook.observe.event_text import text_of

EVERY = 0.5  # seconds between two reads with --follow


@click.command()
@output.prefix_option
@click.option("--follow", "-f", is_flag=True, help="Wait for further events; end with Ctrl-C.")
@click.option(
    "--container",
    "-c",
    default="",
    metavar="CONTAINER",
    help="Only events of this container: the beginning of its id, or a name.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def events(prefix: str, follow: bool, container: str, as_json: bool) -> None:
    """List what happened on this node: grants, refusals, findings.

    Grants, refusals and changes are always recorded; ends and findings only while the agent runs. Exit status 1: no
    event is about the CONTAINER that was named.
    """
    try:
        settings = node_settings.load(prefix)
        named.check_may_read(settings)
        log = Follower(settings.state_dir, old=True)
        names = named.by_id(settings)
    except GhError as e:
        output.fail(e, as_json)
    shown = 0
    try:
        while True:
            found = log.read()
            names.update((str(event.get("id")), event["name"]) for event in found if event.get("name"))
            if found and container:  # an engine also knows those that were refused, or have ended
                names = dict.fromkeys(engine_names.ids_of(container), container) | names
            for event in found:
                if not event.get("name") and (name := names.get(str(event.get("id")))):
                    event["name"] = name
                if concerns(event, container):
                    shown += 1
                    for text in [json.dumps(event)] if as_json else output.folded(line(event), output.columns()):
                        click.echo(text)
            if not follow:
                break
            time.sleep(EVERY)
    except KeyboardInterrupt:
        return
    if not shown and container:
        output.fail(
            refuse("GH-410", f"no event is about {output.printable(container)}; `gpu-hook events` lists all"), as_json
        )
    if not shown:
        click.echo("no events yet", err=True)


def concerns(event: dict[str, Any], container: str) -> bool:
    if not container:
        return True
    name = str(event.get("name", ""))
    return str(event.get("id", "")).startswith(container) or container in (name, *name.split("/"))


def line(event: dict[str, Any]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["at"]))
    kind = event["event"]
    who = output.printable(event.get("name") or output.short(str(event.get("id", ""))) or "-")
    return f"{when}  {output.printable(kind):<15}  {who}  {output.printable(text_of(event))}"
