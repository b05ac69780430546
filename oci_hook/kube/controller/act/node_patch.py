"""Patches a node by its current object. The copy lacks other systems' annotations and fields: a patch from it takes them
off."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from oci_hook.kube.controller.api.client import JSON_PATCH, ApiError, Client


async def write(
    client: Client, name: str, patch: Callable[[Mapping[str, Any]], list[dict[str, Any]]], still: Callable[[], bool]
) -> bool:
    """patch: makes the JSON Patch, which tests resourceVersion; [] for no change. still: False if it must not write now.
    Returns whether it wrote: not if the node changed meanwhile or is gone, which the watch brings. Raises ApiError."""
    path = f"/api/v1/nodes/{quote(name, safe='')}"
    try:
        change = patch(await client.get(path))
        if not (change and still()):
            return False
        await client.patch(path, change, JSON_PATCH)
    except ApiError as e:
        if e.status not in (404, 409, 422):
            raise
        return False
    return True
