"""Seeming requests in words that we do not understand: in a container's annotations, mounts and environment, and in
docker's labels, which docker keeps to itself."""

import os

from oci_hook.core import near_misses
from oci_hook.core.layout import REQUEST_DIR
from oci_hook.errors import Problem, RequestError
from oci_hook.oci import annotations as oci_annotations
from oci_hook.oci import fastjson, request_mounts
from oci_hook.oci.spec import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.core.near_misses import Miss
    from oci_hook.core.rules import Rules
    from oci_hook.oci.spec_types import Spec

DOCKER_CONFIG = "config.v2.json"
MAX_CONFIG = 1 << 20


def misses(
    spec: "Spec", annotations: dict[str, str], rules: "Rules", asks: bool, id: str = "", name: str = ""
) -> "list[Miss]":
    """asks: whether the container asks for a GPU in words that are understood. id: its id, for docker's labels. name: its
    name, if not the one in its annotations."""
    if oci_annotations.is_sandbox(annotations):
        return []
    name = name or oci_annotations.container_name(annotations)
    mounts = [
        (request_mounts.plain(mount.get("destination") or ""), mount.get("source") or "")
        for mount in spec.get("mounts") or ()
        if mount.get("source") == "/dev/null"
    ]
    by_mount = any(request_mounts.inside(path, REQUEST_DIR) for path, _ in mounts)
    found = near_misses.in_annotations(annotations, name, rules, asks, by_mount)
    found += near_misses.in_mounts(mounts)
    found += near_misses.in_environment(environment(spec), rules, asks)
    if not asks and id:
        found += near_misses.in_labels(docker_labels(spec, id), asks)
    return found


def judge(found: "list[Miss]", strict: bool) -> list[Problem]:
    """The warnings. strict: whether what is sure is refused, by RequestError."""
    if strict and any(miss.sure for miss in found):
        raise RequestError(*(miss.problem for miss in found if miss.sure))
    return [miss.problem for miss in found]


def docker_labels(spec: "Spec", id: str) -> dict[str, str]:
    """The labels of a docker container; {} for any other, and where they cannot be read."""
    for mount in spec.get("mounts") or ():
        source = mount.get("source") or ""
        if mount.get("destination") == request_mounts.HOSTNAME and source.endswith(f"/containers/{id}/hostname"):
            return _labels(os.path.dirname(source) + "/" + DOCKER_CONFIG)
    return {}


def _labels(path: str) -> dict[str, str]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            data = os.read(fd, MAX_CONFIG)
        finally:
            os.close(fd)
        labels = (fastjson.loads(data).get("Config") or {}).get("Labels") or {}
        return {key: text for key, text in labels.items() if isinstance(text, str)}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
