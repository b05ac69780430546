"""Containers by the names that people know: the engine's, the Pod's, or the id."""

import contextlib
import os
from collections.abc import Iterator
from errno import EACCES
from typing import Any

import click

from oci_hook.config.settings import Settings, load
from oci_hook.core.grant import Grant
from oci_hook.errors import GhError, Problem, refuse
from oci_hook.install import places
from oci_hook.ledger import admit, events, store
from oci_hook.observe import engine_names


def snapshot(settings: Settings) -> tuple[Grant, ...]:
    """The living grants, with the names that docker and podman have for their containers."""
    return engine_names.named(store.snapshot(settings.state_dir))


def check_may_read(settings: Settings) -> None:
    """Raises NodeError GH-303 for users who may not enter the state directory, to whom it would look empty. For commands that
    read more of it than the ledger."""
    if os.path.isdir(settings.state_dir) and not os.access(settings.state_dir, os.R_OK | os.X_OK, effective_ids=True):
        raise store.unusable(settings.state_dir, PermissionError(EACCES, os.strerror(EACCES)))


def by_id(settings: Settings) -> dict[str, str]:
    """The names of living containers that are in no Pod, by id; none where the ledger cannot be read."""
    try:
        return {grant.who.id: grant.who.container for grant in snapshot(settings) if not grant.who.pod}
    except GhError:
        return {}


@contextlib.contextmanager
def key(settings: Settings, container: str) -> Iterator[str]:
    """`with key(...)`: the key of the living grant whose container goes by this name or id, for what is done with it. Raises ApplyError
    GH-410, also where the container ends before that is done."""
    grant = admit.find(snapshot(settings), container)
    try:
        yield grant.key
    except GhError as e:
        if {problem.code for problem in e.problems} == {"GH-410"}:
            raise refuse(
                "GH-410", f"container {events.title(grant.who)} has ended; `gpu-hook ps` lists those that live"
            ) from None
        id, known = f"container {grant.who.id[:64]} ", f"container {events.title(grant.who)} "  # core knows ids alone
        raise type(e)(*(Problem(p.code, p.message.replace(id, known)) for p in e.problems)) from None


def title(c: dict[str, Any]) -> str:
    """A container of the node's JSON, in a line: its name and its id."""
    name, id = "/".join(filter(None, (c["namespace"], c["pod"], c["name"]))), events.short(c["id"])
    return f"{name} ({id})" if name and name != id else id


def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The words for a shell to complete: names of living containers, ids of those without a name; none if the ledger is unreadable."""
    try:
        grants = snapshot(load(ctx.params.get("prefix") or places.found()))
    except GhError:
        return []
    names = [events.full_name(grant.who) or events.short(grant.who.id) for grant in grants]
    return sorted(name for name in names if name.startswith(incomplete) and name.isprintable())
