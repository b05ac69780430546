"""`gpu-hook freeze|resume`: stop a container's work on its GPUs, and continue it where it stopped."""

import time

import click

from oci_hook.cli import named, output
from oci_hook.cli.set import PENDING, PENDING_STATUS
from oci_hook.config import settings as node_settings
from oci_hook.core.grant import Grant
from oci_hook.errors import refuse
from oci_hook.ledger import admit


@click.command()
@click.argument("container", shell_complete=named.complete)
@output.answers
def freeze(prefix: str, container: str) -> output.Report:
    """Stop CONTAINER's work on its GPUs until `gpu-hook resume`.

    Its processes keep running and keep their GPU memory; GPU work that they submit waits. Kernels that are already on
    the GPU run to their end. CONTAINER is an id or its beginning, a name, or namespace/pod/container.

    Exit status 3: the ledger has the change, but it is not in effect in the container yet.
    """
    settings = node_settings.load(prefix)
    since = int(time.time())
    return answer(*admit.alter(settings, named.key(settings, container), frozen(since)), "frozen")


@click.command()
@click.argument("container", shell_complete=named.complete)
@output.answers
def resume(prefix: str, container: str) -> output.Report:
    """Continue CONTAINER, which `gpu-hook freeze` stopped.

    Exit status 3: the ledger has the change, but it is not in effect in the container yet.
    """
    settings = node_settings.load(prefix)
    return answer(*admit.alter(settings, named.key(settings, container), frozen(0)), "resumed")


def frozen(since: int) -> "admit.Alteration":
    """The change that admit.alter applies: frozen since that time (seconds since 1970), or resumed with 0. It raises GH-411."""

    def change(grant: Grant, _: tuple[Grant, ...]) -> Grant:
        if not any(share.slot for share in grant.shares):
            what = "has its GPUs alone, without a gate" if grant.shares else "has no GPU"
            advice = "stop the container itself, for example by `docker pause`"
            raise refuse("GH-411", f"container {grant.who.id[:64]} {what}: there is nothing to freeze; {advice}")
        return grant.replace(frozen=grant.frozen if grant.frozen and since else since)

    return change


def answer(before: Grant, after: Grant, delivered: bool, what: str) -> output.Report:
    """The report. delivered: the container's policy page has been changed."""
    done = before != after
    data = {
        "id": after.who.id,
        "key": after.key,
        "frozen_since": after.frozen or None,
        "changed": done,
        "in_effect": delivered,
    }
    lines = [f"container {named.title(after)} {what if done else f'was {what} already'}"]
    if delivered:
        return output.Report(data, lines)
    return output.Report(data, [*lines, PENDING.format(old="the former state")], exit_status=PENDING_STATUS)
