"""`gpu-hook suspend`: move a container's GPU memory to the host's, so that others can have its GPUs."""

import click

from oci_hook.cli import named, output
from oci_hook.cli.set import PENDING, PENDING_STATUS
from oci_hook.config import settings as node_settings
from oci_hook.ledger import events
from oci_hook.suspend import mover


@click.command()
@click.argument("container", shell_complete=named.complete)
@output.answers
def suspend(prefix: str, container: str) -> output.Report:
    """Move all GPU memory of CONTAINER to the host's memory until `gpu-hook resume`; others can have its GPUs meanwhile.

    Its processes keep running; what they ask of CUDA waits. All of its processes are moved or none, and nothing is
    changed where the driver (570 or newer), the host's memory or the kind of its memory does not allow it. CONTAINER is
    an id or its beginning, a name, or namespace/pod/container.
    """
    settings = node_settings.load(prefix)
    with named.key(settings, container) as key:
        return report(mover.suspend(settings, key), "suspended")


def report(moved: mover.Moved, what: str) -> output.Report:
    """What was done, or that it was so already. Exit status 3: the container does not see it yet."""
    grant = moved.grant
    data = {
        "id": grant.who.id,
        "key": grant.key,
        "suspended_since": grant.suspended or None,
        "host_mib": grant.host_mib,
        "changed": moved.changed,
        "in_effect": moved.delivered,
        "seconds": moved.seconds,
    }
    already = "is suspended already" if grant.suspended else "is not suspended"
    lines = [f"container {events.title(grant.who)} {what if moved.changed else already}"]
    if moved.changed and grant.suspended:
        lines.append(f"  {output.size(grant.host_mib)} are in the host's memory; its GPUs can be granted to others")
    if moved.delivered:
        return output.Report(data, lines)
    return output.Report(data, [*lines, PENDING.format(old="the former state")], exit_status=PENDING_STATUS)
