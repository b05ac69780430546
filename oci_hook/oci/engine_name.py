"""The name that docker or podman gave to one container, from the engine's own files.

The runtime is told an id alone. A name is for people: it is shown, and they name a container by it; the ledger relies on
ids. A file is believed if only root can change it, and names the container's id. Nothing of a container's start loads this
unless the container is refused: an engine with --rm forgets the name at once (ledger/events.py).

docker (20.10 to 28): DATA/containers/ID/config.v2.json. DATA is /var/lib/docker, or what daemon.json says, or what the
sources of the container's own mounts show. podman (4 and 5; containers/storage): STORAGE/overlay-containers/containers.json
lists the containers; ID/userdata beside it is the bundle. Those that --rm removes are in volatile-containers.json, in
podman 4.4 and newer in the directory of the container's mounts.
"""

import os
from stat import S_ISREG

from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Lists = dict[str, dict[str, str]]  # by the folder of podman's lists: the names by id

DOCKER = "/var/lib/docker"
DAEMON = "/etc/docker/daemon.json"
MAX = 16 << 20  # bytes of a file
PODMAN = ("/var/lib/containers/storage/overlay-containers", "/run/containers/storage/overlay-containers")
LISTS = ("containers.json", "volatile-containers.json")


def look(id: str, bundle: str, lists: "Lists | None" = None) -> str:
    """The engine's name of a container; "" if it has none that is found. id: one that a runtime takes. bundle: "" where it is
    not known. lists: what was read for other containers, and then for this one; they are long where there are many."""
    lists = {} if lists is None else lists
    if bundle.endswith(f"-containers/{id}/userdata"):
        return _podman_name(bundle, id, lists)
    name = _docker_name(bundle, id)
    if not name and not bundle:  # podman's stage precreate knows none yet
        name = next((found for folder in PODMAN if (found := _listed(folder, lists).get(id))), "")
    return name


def _docker_name(bundle: str, id: str) -> str:
    folders = [f"{root}/containers/{id}" for root in dict.fromkeys((DOCKER, data_root()))]
    for path in folders:
        if name := docker_file(path, id):
            return name
    ending = f"/containers/{id}"
    sources = (os.path.dirname(source) for source in _mount_sources(bundle))
    return next((name for path in sources if path.endswith(ending) and (name := docker_file(path, id))), "")


def docker_file(folder: str, id: str) -> str:
    """The name in docker's folder of this container; "" if that is not there."""
    found = load(f"{folder}/config.v2.json")
    if not isinstance(found, dict) or found.get("ID") != id or not isinstance(found.get("Name"), str):
        return ""
    return str(found["Name"]).removeprefix("/")


def data_root(file: str = "") -> str:
    """docker's data directory, as this daemon.json, or the usual one, says."""
    found = load(file or DAEMON)
    root = found.get("data-root") if isinstance(found, dict) else None
    return root if isinstance(root, str) and root.startswith("/") else DOCKER


def _podman_name(bundle: str, id: str, lists: "Lists") -> str:
    folder = os.path.dirname(os.path.dirname(bundle))
    if name := _listed(folder, lists).get(id):
        return name
    ending = f"-containers/{id}/userdata"
    sources = (os.path.dirname(source) for source in _mount_sources(bundle))
    folders = dict.fromkeys(os.path.dirname(os.path.dirname(path)) for path in sources if path.endswith(ending))
    return next((name for path in folders if (name := _listed(path, lists).get(id))), "")


def _listed(folder: str, lists: "Lists") -> "dict[str, str]":
    if folder not in lists:
        lists[folder] = podman_names(folder)
    return lists[folder]


def podman_names(folder: str) -> "dict[str, str]":
    """The names in podman's lists in this folder, by id."""
    found: dict[str, str] = {}
    for file in LISTS:
        entries = load(f"{folder}/{file}")
        for entry in entries if isinstance(entries, list) else ():
            id, names = (entry.get("id"), entry.get("names")) if isinstance(entry, dict) else (None, None)
            if isinstance(id, str) and isinstance(names, list) and names and isinstance(names[0], str):
                found.setdefault(id, names[0])
    return found


def _mount_sources(bundle: str) -> list[str]:
    spec = load(f"{bundle}/config.json")
    mounts = spec.get("mounts") if isinstance(spec, dict) else None
    found = (mount.get("source") for mount in mounts if isinstance(mount, dict)) if isinstance(mounts, list) else ()
    return [source for source in found if isinstance(source, str)]


def load(path: str) -> "Any":
    """The JSON in a file that only root can change; None where there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            st = os.fstat(fd)
            if not S_ISREG(st.st_mode) or st.st_uid != 0 or st.st_mode & 0o022:
                return None
            data = file.read(MAX + 1)
        return fastjson.loads(data) if len(data) <= MAX else None
    except (OSError, ValueError):
        return None
