"""`gpu-hook events`: the node's event log: grants, refusals, ends, findings."""

import json
import time
from typing import Any

import click

from oci_hook.agent.event_log import Follower
from oci_hook.cli import output
from oci_hook.config import settings as node_settings
from oci_hook.errors import GhError

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

    Grants, refusals and changes are always recorded; ends and findings only while the agent runs.
    """
    try:
        log = Follower(node_settings.load(prefix).state_dir, old=True)
    except GhError as e:
        output.fail(e, as_json)
    shown = 0
    try:
        while True:
            for event in log.read():
                if concerns(event, container):
                    shown += 1
                    for text in [json.dumps(event)] if as_json else output.folded(line(event), output.columns()):
                        click.echo(text)
            if not follow:
                break
            time.sleep(EVERY)
    except KeyboardInterrupt:
        return
    if not shown:
        click.echo(f"no event is about {container}" if container else "no events yet", err=True)


def concerns(event: dict[str, Any], container: str) -> bool:
    if not container:
        return True
    name = str(event.get("name", ""))
    return str(event.get("id", "")).startswith(container) or container in (name, *name.split("/"))


def line(event: dict[str, Any]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["at"]))
    kind = event["event"]
    who = output.printable(event.get("name") or output.short(str(event.get("id", ""))) or "-")
    return f"{when}  {output.printable(kind):<15}  {who}  {output.printable(TEXT_OF.get(kind, rest)(event))}"


def granted(event: dict[str, Any]) -> str:
    shares = event.get("shares") or ()
    words = [
        f"{gpu(uuid)}: {output.size(int(mib))}" + (f", compute {compute}%" if compute else "")
        for uuid, mib, compute in shares
    ]
    return f"{'; '.join(words) or 'driver files only'} (took {float(event.get('seconds', 0)) * 1000:.1f} ms)"


def refused(event: dict[str, Any]) -> str:
    return "; ".join(str(text) for text in event.get("messages") or ())


def gpu(uuid: object) -> str:
    """A UUID, shortened for people; --json has all of it."""
    return output.cut(str(uuid))


def ended(event: dict[str, Any]) -> str:
    peak = event.get("peak_mib")
    return "its share was released" + (f"; it used at most {output.size(peak)}" if isinstance(peak, int) else "")


def finding(event: dict[str, Any]) -> str:
    on = f" on {gpu(event['uuid'])}" if event.get("uuid") else ""
    return f"{event.get('kind')}{on}: {event.get('evidence')}; {event.get('action')}"


def rest(event: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in event.items() if k not in ("at", "event", "id", "name"))


def changed(event: dict[str, Any]) -> str:
    """An event that was cut short has no `changes`."""
    return "; ".join(map(str, event["changes"])) if isinstance(event.get("changes"), list) else rest(event)


TEXT_OF = {
    "granted": granted,
    "changed": changed,
    "refused": refused,
    "unclear": refused,
    "ended": ended,
    "finding": finding,
    "finding-cleared": finding,
}
