"""The names that people gave to containers of docker and podman (oci/engine_name.py), for grants, and back to ids."""

import os
import time

from oci_hook.core.grant import Grant
from oci_hook.ledger import events
from oci_hook.observe import daemons
from oci_hook.oci import engine_name

FRESH = 30.0  # seconds that a name counts without another look: containers can be renamed


class Names:
    """Remembers names, for readers that look often."""

    def __init__(self, fresh: float = FRESH) -> None:
        self._fresh = fresh
        self._known: dict[str, tuple[float, tuple[int, str], str]] = {}  # by the grant's key: when, whose, the name

    def named(self, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        """The grants, each with its engine's name as its container's name if it is in no pod and has one."""
        lists: engine_name.Lists = {}  # each is read once for all of them
        found = tuple(
            grant.replace(who=grant.who.replace(container=name)) if (name := self._name(grant, lists)) else grant
            for grant in grants
        )
        keys = {grant.key for grant in grants}
        self._known = {key: known for key, known in self._known.items() if key in keys}
        return found

    def _name(self, grant: Grant, lists: "engine_name.Lists") -> str:
        if grant.who.container or grant.who.pod:
            return ""
        now = time.monotonic()
        whose = grant.born, grant.who.bundle  # which podman's stage precreate does not know yet
        at, seen, name = self._known.get(grant.key, (0.0, (-1, ""), ""))
        if seen != whose or now - at > self._fresh:
            name = look(grant, lists) or (name if seen == whose else "")
            self._known[grant.key] = now, whose, name
        return name


def named(grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
    """Names.named, without a memory."""
    return Names().named(grants)


def ids_of(name: str) -> set[str]:
    """The ids of the containers, running or not, that docker or podman knows by this name, in the engines' usual places
    and in those of the dockerds that run."""
    if not name:
        return set()
    found = set()
    for root in dict.fromkeys((engine_name.DOCKER, engine_name.data_root(), *_roots_of_running())):
        try:
            ids = os.listdir(f"{root}/containers")
        except OSError:
            continue
        found |= {id for id in ids if engine_name.docker_file(f"{root}/containers/{id}", id) == name}
    for folder in engine_name.PODMAN:
        found |= {id for id, listed in engine_name.podman_names(folder).items() if listed == name}
    return found


def look(grant: Grant, lists: "engine_name.Lists | None" = None) -> str:
    """The engine's name of a container; "" if it has none that is found. lists: as of oci.engine_name.look."""
    return events.engine_name(grant.who.id, grant.who.bundle, lists)


def _roots_of_running() -> list[str]:
    """The data directories that running dockerds were given on their command line, or in a file of their own."""
    roots = []
    for _, words in daemons.running("dockerd"):
        file = daemons.flag_value(words, "--config-file")
        root = daemons.flag_value(words, "--data-root", "-g", "--graph") or (
            engine_name.data_root(file) if file else ""
        )
        roots += [root] if root.startswith("/") else []
    return roots
