"""`gpu-hook set`: change the share of a running container."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from oci_hook.boundary import running
from oci_hook.cli import named, output
from oci_hook.config import settings as node_settings
from oci_hook.core import units, value_parsers
from oci_hook.core.change import GrantChange, changed
from oci_hook.core.grant import Grant, Share
from oci_hook.core.units import MIB, show
from oci_hook.core.words import cut, limit, size
from oci_hook.errors import GhError, Problem, RequestError
from oci_hook.ledger import events, store
from oci_hook.ledger import inventory as node_inventory
from oci_hook.observe import account

T = TypeVar("T")


@click.command(name="set")
@click.argument("container", shell_complete=named.complete)
@click.option("--memory", metavar="SIZE", help="Memory limit on each of its GPUs: 4Gi, 512Mi, 2048 (MiB) or 30%.")
@click.option("--memory-request", metavar="SIZE", help="What of the limit is booked, where the node lends the rest.")
@click.option("--compute", metavar="N", help="Guaranteed compute on each of its GPUs, 1 to 100 per cent.")
@click.option(
    "--compute-limit", metavar="N", help="Ceiling of burst-share and of class online, in per cent; 100: none."
)
@click.option("--policy", metavar="P", help="best-effort, fixed-share or burst-share (or be, fs, bs).")
@click.option("--class", "class_", metavar="C", help="online, default or offline.")
@output.answers
def set_(
    prefix: str,
    container: str,
    memory: str | None,
    memory_request: str | None,
    compute: str | None,
    compute_limit: str | None,
    policy: str | None,
    class_: str | None,
) -> output.Report:
    """Change the share of CONTAINER while it runs.

    CONTAINER is an id or its beginning, a name, or namespace/pod/container. Options that are not given leave their part
    of the share as it is. The new share must fit beside the other containers on the GPU, or nothing is changed. If the
    new memory limit is below what the container uses, it keeps its memory and gets no more until it has freed enough.
    Its environment variables still show the first share.

    Where the driver holds the memory limit as well, it is changed there, too. Exit status 3: the ledger has the new share,
    but it is not in effect in the container, or in the driver, yet.
    """
    problems: list[Problem] = []

    def read(option: str, text: str | None, reader: Callable[[str], T]) -> T | None:
        try:
            return None if text is None else reader(text)
        except ValueError as e:
            problems.append(Problem("GH-101", f"{option} {show(text)} {e}"))
            return None

    wish = GrantChange(
        read("--memory", memory, units.memory),
        read("--memory-request", memory_request, units.memory),
        read("--compute", compute, units.percent),
        read("--compute-limit", compute_limit, units.percent),
        read("--policy", policy, value_parsers.policy),
        read("--class", class_, value_parsers.priority_class),
    )
    if problems:
        raise RequestError(*problems)
    if wish == GrantChange():
        raise click.UsageError(
            "say what to change: --memory, --memory-request, --compute, --compute-limit, --policy or --class"
        )
    settings = node_settings.load(prefix)
    inventory = node_inventory.load(settings)

    def change(grant: Grant, others: tuple[Grant, ...]) -> Grant:
        whom = next((events.title(other.who) for other in others if other.who.id == grant.lent_to), "")
        return changed(grant, wish, inventory, others, settings.rules, whom)

    told: list[tuple[Grant, Grant]] = []

    def commit(grant: Grant, others: tuple[Grant, ...]) -> Grant:
        new = change(grant, others)
        if new != grant:  # recorded first: the agent must know which limit applied until now
            events.changed(settings.state_dir, grant, new)
            told.append((grant, new))
        return new

    try:
        with named.key(settings, container) as key:
            return report(running.alter(settings, key, change, commit))
    except GhError:
        for grant, new in told:
            if grant in store.snapshot(settings.state_dir):  # as on a full disk: the event must not stay the last word
                events.changed(settings.state_dir, new, grant)
        raise


PENDING_STATUS = 3
PENDING = (
    "  not in effect yet: the container blocks its policy page by a file lease, so {old} still applies in it; the"
    " change takes effect when the lease ends"
)


DRIVER_PENDING = (
    "  in effect in the shim, not in the driver, which keeps its former limit: {why}; run the command again, or leave it to"
    " the agent"
)

DRIVER_WITHOUT = "  the shim alone holds the limit: the driver has none for this container: {why}"


def report(done: running.Altered) -> output.Report:
    """The share as it is and as it was."""
    before, after, delivered = done.old, done.new, done.delivered
    old, new = as_data(before), as_data(after)
    lines = [f"container {events.title(after.who)}: {in_words(after)}" + ("" if new != old else " (as before)")]
    lines += [f"  was: {in_words(before)}"] if new != old else []
    lines += [] if delivered else [PENDING.format(old="the former share")]
    lines += [DRIVER_PENDING.format(why=done.driver)] if done.driver else []
    lines += [DRIVER_WITHOUT.format(why=done.without)] if done.without else []
    lines += over(after)
    in_effect = delivered and not done.driver
    data = {"id": after.who.id, "key": after.key, "before": old, "after": new, "in_effect": in_effect}
    return output.Report(data, lines, exit_status=0 if in_effect else PENDING_STATUS)


def over(grant: Grant) -> list[str]:
    """A line for each GPU on which the container uses more than its limit now is."""
    usage = account.look(grant)
    if not isinstance(usage, account.PageFigures):
        return []
    used = [(share, -(-n // MIB)) for share, n in zip(grant.shares, usage.totals, strict=False)]
    then = "it keeps that, and gets no more until it has freed enough to be below"
    return [
        f"  it uses {size(mib)} of GPU {cut(share.uuid)}, above its limit of {size(share.memory_mib)}: {then}"
        for share, mib in used
        if mib > share.memory_mib and not share.whole
    ]


def as_data(grant: Grant) -> dict[str, Any]:
    gpus = [share.fields() for share in grant.shares]
    return {
        "policy": grant.terms.policy,
        "class": grant.terms.priority_class,
        "frozen_since": grant.frozen or None,
        "gpus": gpus,
    }


def in_words(grant: Grant) -> str:
    gpus = dict.fromkeys(gpu_words(share) for share in grant.shares)
    return "; ".join([*gpus, grant.terms.policy, f"class {grant.terms.priority_class}"])


def gpu_words(share: Share) -> str:
    if share.whole:
        return "whole"
    ceiling = f" up to {share.compute_limit}%" if share.compute < share.compute_limit < 100 else ""
    compute = f", compute {share.compute}%{ceiling}" if share.compute else ""
    return f"memory {limit(share.memory_mib, share.booked_mib)}{compute}"
