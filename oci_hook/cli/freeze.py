"""`gpu-hook freeze|resume`: stop a container's work on its GPUs, and continue it where it stopped."""

import time

import click

from oci_hook.cli import named, output
from oci_hook.cli.set import PENDING, PENDING_STATUS
from oci_hook.config import settings as node_settings
from oci_hook.config.settings import Settings
from oci_hook.core.grant import Grant
from oci_hook.errors import refuse
from oci_hook.ledger import admit, events, store


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
    with named.key(settings, container) as key:
        return alter(settings, key, since, "frozen")


@click.command()
@click.argument("container", shell_complete=named.complete)
@output.answers
def resume(prefix: str, container: str) -> output.Report:
    """Continue CONTAINER, which `gpu-hook freeze` or `gpu-hook suspend` stopped.

    One that was suspended gets its GPU memory back first, all of it or none: it stays suspended, with exit status 1,
    where others have its GPUs by now. A suspend or resume that was cut off is undone or ended.

    Exit status 3: the ledger has the change, but it is not in effect in the container yet.
    """
    settings = node_settings.load(prefix)
    with named.key(settings, container) as key:
        if admit.find(store.snapshot(settings.state_dir), key).off_gpu:
            from oci_hook.cli import suspend  # loads what asks the driver
            from oci_hook.suspend import mover

            moved = mover.resume(settings, key)
            if moved.grant.frozen:
                alter(settings, key, 0, "resumed")
            return suspend.report(moved, "resumed")
        return alter(settings, key, 0, "resumed")


def frozen(since: int) -> "admit.Alteration":
    """The change that admit.alter applies: frozen since that time (seconds since 1970), or resumed with 0. It raises GH-411."""

    def change(grant: Grant, _: tuple[Grant, ...]) -> Grant:
        if not any(share.slot for share in grant.shares):
            what = "has its GPUs alone, without a gate" if grant.shares else "has no GPU"
            advice = "stop the container itself, for example by `docker pause`"
            raise refuse("GH-411", f"container {events.title(grant.who)} {what}: there is nothing to freeze; {advice}")
        return grant.replace(frozen=grant.frozen if grant.frozen and since else since)

    return change


def alter(settings: Settings, key: str, since: int, what: str) -> output.Report:
    """Change the grant, record an event of it, and report. The arguments are those of frozen() and admit.alter()."""
    before, after, delivered = admit.alter(settings, key, frozen(since))
    done = before != after
    if done:
        events.changed(settings.state_dir, before, after)
    data = {
        "id": after.who.id,
        "key": after.key,
        "frozen_since": after.frozen or None,
        "changed": done,
        "in_effect": delivered,
    }
    lines = [
        f"container {events.title(after.who)} {what if done else 'is frozen already' if since else 'is not frozen'}"
    ]
    if delivered:
        return output.Report(data, lines)
    return output.Report(data, [*lines, PENDING.format(old="the former state")], exit_status=PENDING_STATUS)
