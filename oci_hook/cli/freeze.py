"""`gpu-hook freeze|resume`: stop a container's work on its GPUs, and let it go on from where it was."""

import time

import click

from oci_hook.cli import output
from oci_hook.cli.set import UNTOLD
from oci_hook.config import settings as node_settings
from oci_hook.core.grant import Grant
from oci_hook.errors import refuse
from oci_hook.ledger import admit


@click.command()
@click.argument("container")
@output.answers
def freeze(prefix: str, container: str) -> output.Report:
    """Stop CONTAINER's work on its GPUs until `gpu-hook resume`.

    Its processes run on and keep their memory; what they submit waits. What is on the GPU already runs to its end.
    CONTAINER is an id or its beginning, a name, or namespace/pod/container.
    """
    return answer(*admit.alter(node_settings.load(prefix), container, frozen(int(time.time()))), "frozen")


@click.command()
@click.argument("container")
@output.answers
def resume(prefix: str, container: str) -> output.Report:
    """Let CONTAINER go on that `gpu-hook freeze` stopped."""
    return answer(*admit.alter(node_settings.load(prefix), container, frozen(0)), "resumed")


def frozen(since: int) -> "admit.Alteration":
    def change(grant: Grant, _: tuple[Grant, ...]) -> Grant:
        if not any(share.slot for share in grant.shares):
            what = "has its GPUs alone" if grant.shares else "has no GPU"
            raise refuse("GH-411", f"container {grant.who.id[:64]} {what}, and so nothing that could be stopped")
        return grant.replace(frozen=grant.frozen if grant.frozen and since else since)

    return change


def answer(before: Grant, after: Grant, told: bool, what: str) -> output.Report:
    done = before != after
    data = {"container": after.who.id, "key": after.key, "frozen": after.frozen, "changed": done, "told": told}
    lines = [f"container {after.who.id} {what if done else f'was {what} already'}"]
    return output.Report(data, lines if told else [*lines, UNTOLD])
