"""The names that people gave to containers of docker and podman, from the files of these engines.

The runtime is told an id alone, and nothing on the way of a container's start looks for more. A name is for people: it is
shown, and they name a container by it; the ledger relies on ids. A file is believed if only root can change it, and names
the container's id.

docker (20.10 to 28): DATA/containers/ID/config.v2.json. DATA is /var/lib/docker, or what daemon.json says, or what the
sources of the container's own mounts show. podman (4 and 5; containers/storage): STORAGE/overlay-containers/containers.json
lists the containers; ID/userdata beside it is the bundle. Those that --rm removes are in volatile-containers.json, in
podman 4.4 and newer in the directory of the container's mounts.
"""

import json
import os
import time
from stat import S_ISREG
from typing import Any

from oci_hook.core.grant import Grant
from oci_hook.ledger.life import valid_id
from oci_hook.observe import daemons

DOCKER = "/var/lib/docker"
DAEMON = "/etc/docker/daemon.json"
MAX = 16 << 20  # bytes of a file
FRESH = 30.0  # seconds that a name counts without another look: containers can be renamed
PODMAN = ("/var/lib/containers/storage/overlay-containers", "/run/containers/storage/overlay-containers")
LISTS = ("containers.json", "volatile-containers.json")


class Names:
    """Remembers names, for readers that look often."""

    def __init__(self, fresh: float = FRESH) -> None:
        self._fresh = fresh
        self._known: dict[str, tuple[float, tuple[int, str], str]] = {}  # by the grant's key: when, whose, the name

    def named(self, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        """The grants, each with its engine's name as its container's name if it is in no pod and has one."""
        found = tuple(
            grant.replace(who=grant.who.replace(container=name)) if (name := self._name(grant)) else grant
            for grant in grants
        )
        keys = {grant.key for grant in grants}
        self._known = {key: known for key, known in self._known.items() if key in keys}
        return found

    def _name(self, grant: Grant) -> str:
        if grant.who.container or grant.who.pod:
            return ""
        now = time.monotonic()
        whose = grant.born, grant.who.bundle  # which podman's stage precreate does not know yet
        at, seen, name = self._known.get(grant.key, (0.0, (-1, ""), ""))
        if seen != whose or now - at > self._fresh:
            name = look(grant) or (name if seen == whose else "")
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
    for root in dict.fromkeys((DOCKER, _data_root(), *_roots_of_running())):
        try:
            ids = os.listdir(f"{root}/containers")
        except OSError:
            continue
        found |= {id for id in ids if _docker_file(f"{root}/containers/{id}", id) == name}
    lists = [_load(f"{folder}/{file}") for folder in PODMAN for file in LISTS]
    entries = (entry for listed in lists if isinstance(listed, list) for entry in listed if isinstance(entry, dict))
    return found | {str(entry.get("id")) for entry in entries if _first_name(entry) == name}


def look(grant: Grant) -> str:
    """The engine's name of a container; "" if it has none that is found."""
    id, bundle = grant.who.id, grant.who.bundle
    if not valid_id(id):
        return ""
    if bundle.endswith(f"-containers/{id}/userdata"):
        return _podman_name(bundle, id)
    return _docker_name(bundle, id)


def _docker_name(bundle: str, id: str) -> str:
    folders = [f"{root}/containers/{id}" for root in dict.fromkeys((DOCKER, _data_root()))]
    for path in folders:
        if name := _docker_file(path, id):
            return name
    ending = f"/containers/{id}"
    sources = (os.path.dirname(source) for source in _mount_sources(bundle))
    return next((name for path in sources if path.endswith(ending) and (name := _docker_file(path, id))), "")


def _docker_file(folder: str, id: str) -> str:
    found = _load(f"{folder}/config.v2.json")
    if not isinstance(found, dict) or found.get("ID") != id or not isinstance(found.get("Name"), str):
        return ""
    return str(found["Name"]).removeprefix("/")


def _roots_of_running() -> list[str]:
    """The data directories that running dockerds were given on their command line, or in a file of their own."""
    roots = []
    for _, words in daemons.running("dockerd"):
        file = daemons.flag_value(words, "--config-file")
        root = daemons.flag_value(words, "--data-root", "-g", "--graph") or (_data_root(file) if file else "")
        roots += [root] if root.startswith("/") else []
    return roots


def _data_root(file: str = "") -> str:
    found = _load(file or DAEMON)
    root = found.get("data-root") if isinstance(found, dict) else None
    return root if isinstance(root, str) and root.startswith("/") else DOCKER


def _podman_name(bundle: str, id: str) -> str:
    folder = os.path.dirname(os.path.dirname(bundle))
    if name := _listed(folder, id):
        return name
    ending = f"-containers/{id}/userdata"
    sources = (os.path.dirname(source) for source in _mount_sources(bundle))
    folders = dict.fromkeys(os.path.dirname(os.path.dirname(path)) for path in sources if path.endswith(ending))
    return next((name for path in folders if (name := _listed(path, id))), "")


def _listed(folder: str, id: str) -> str:
    for file in LISTS:
        entries = _load(f"{folder}/{file}")
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and entry.get("id") == id:
                return _first_name(entry)
    return ""


def _first_name(entry: dict[str, Any]) -> str:
    names = entry.get("names")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def _mount_sources(bundle: str) -> list[str]:
    spec = _load(f"{bundle}/config.json")
    mounts = spec.get("mounts") if isinstance(spec, dict) else None
    found = (mount.get("source") for mount in mounts if isinstance(mount, dict)) if isinstance(mounts, list) else ()
    return [source for source in found if isinstance(source, str)]


def _load(path: str) -> Any:
    """The JSON in a file that only root can change; None where there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            st = os.fstat(fd)
            if not S_ISREG(st.st_mode) or st.st_uid != 0 or st.st_mode & 0o022:
                return None
            data = file.read(MAX + 1)
        return json.loads(data) if len(data) <= MAX else None
    except (OSError, ValueError, RecursionError):
        return None
