"""`gpu-hook set`: another share for a container that runs."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from oci_hook.cli import output
from oci_hook.config import settings as node_settings
from oci_hook.core import units, value_parsers
from oci_hook.core.change import Change, changed
from oci_hook.core.grant import Grant, Share
from oci_hook.core.units import show
from oci_hook.errors import Problem, RequestError
from oci_hook.ledger import admit, events
from oci_hook.ledger import inventory as node_inventory

T = TypeVar("T")


@click.command(name="set")
@click.argument("container")
@click.option("--memory", metavar="SIZE", help="Memory limit on each of its GPUs: 4Gi, 512Mi, 2048 (MiB) or 30%.")
@click.option("--compute", metavar="N", help="Guaranteed compute on each GPU, 1 to 100 per cent.")
@click.option("--compute-limit", metavar="N", help="With burst-share: a ceiling; 100 for none.")
@click.option("--policy", metavar="P", help="best-effort, fixed-share or burst-share (be, fs, bs).")
@click.option("--class", "class_", metavar="C", help="online, default or offline.")
@output.answers
def set_(
    prefix: str,
    container: str,
    memory: str | None,
    compute: str | None,
    compute_limit: str | None,
    policy: str | None,
    class_: str | None,
) -> output.Report:
    """Change the share of CONTAINER while it runs.

    CONTAINER is an id or its beginning, a name, or namespace/pod/container. What is not named stays. The new share must
    fit beside the other containers on the GPU, or nothing is changed. Less memory than the container uses takes
    nothing from it: it gets no more until it has freed enough. Its environment still says what it was given at first.
    """
    problems: list[Problem] = []

    def read(option: str, text: str | None, reader: Callable[[str], T]) -> T | None:
        try:
            return None if text is None else reader(text)
        except ValueError as e:
            problems.append(Problem("GH-101", f"{option} {show(text)} {e}"))
            return None

    wish = Change(
        read("--memory", memory, units.memory),
        read("--compute", compute, units.percent),
        read("--compute-limit", compute_limit, units.percent),
        read("--policy", policy, value_parsers.policy),
        read("--class", class_, value_parsers.priority_class),
    )
    if problems:
        raise RequestError(*problems)
    if wish == Change():
        raise click.UsageError("say what to change: --memory, --compute, --compute-limit, --policy or --class")
    settings = node_settings.load(prefix)
    inventory = node_inventory.load(settings)

    def change(grant: Grant, others: tuple[Grant, ...]) -> Grant:
        new = changed(grant, wish, inventory, others, settings.rules)
        if new != grant:  # before it counts: the agent must know that what is used was allowed
            events.changed(settings.state_dir, grant, new)
        return new

    return report(*admit.alter(settings, container, change))


UNTOLD = "  it is not told yet: a lease of its own keeps its pages closed; it will be as soon as it lets go"


def report(before: Grant, after: Grant, told: bool) -> output.Report:
    """What it was and is."""
    old, new = as_data(before), as_data(after)
    lines = [f"container {after.who.id}: {said(after)}" + ("" if new != old else " (as before)")]
    lines += [f"  was: {said(before)}"] if new != old else []
    lines += [] if told else [UNTOLD]
    data = {"container": after.who.id, "key": after.key, "before": old, "after": new, "told": told}
    return output.Report(data, lines)


def as_data(grant: Grant) -> dict[str, Any]:
    gpus = [share.fields() for share in grant.shares]
    return {"policy": grant.policy, "class": grant.priority_class, "frozen": grant.frozen, "gpus": gpus}


def said(grant: Grant) -> str:
    gpus = dict.fromkeys(gpu_words(share) for share in grant.shares)
    return "; ".join([*gpus, grant.policy, f"class {grant.priority_class}"])


def gpu_words(share: Share) -> str:
    if share.whole:
        return "whole"
    ceiling = f" up to {share.compute_limit}%" if share.compute < share.compute_limit < 100 else ""
    compute = f", compute {share.compute}%{ceiling}" if share.compute else ""
    return f"memory {output.size(share.memory_mib)}{compute}"
