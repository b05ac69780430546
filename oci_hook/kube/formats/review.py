"""Answers to the API server's admission reviews (admission.k8s.io/v1)."""

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any

from oci_hook.errors import Problem

MAX_MESSAGE = 4 << 10  # characters; the API server passes it on to people and logs


def allowed(
    request: dict[str, Any], patch: Sequence[dict[str, Any]] | None = None, warnings: Iterable[str] = ()
) -> dict[str, Any]:
    """patch: operations of JSON Patch (RFC 6902)."""
    response: dict[str, Any] = {"uid": request.get("uid", ""), "allowed": True}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(list(patch)).encode()).decode()
    if listed := list(warnings):
        response["warnings"] = listed
    return _review(response)


def denied(request: dict[str, Any], problems: Iterable[Problem], code: int = 403) -> dict[str, Any]:
    """code: the HTTP status that the API server's client gets."""
    message = "; ".join(map(str, problems))
    status = {"code": code, "message": message[:MAX_MESSAGE], "reason": "Forbidden" if code == 403 else "Conflict"}
    return _review({"uid": request.get("uid", ""), "allowed": False, "status": status})


def add_annotations(meta: dict[str, Any], annotations: dict[str, str]) -> list[dict[str, Any]]:
    """The operations that add these to an object with this metadata. Its other annotations stay, concurrent ones too."""
    if not annotations:
        return []
    if not meta.get("annotations"):
        return [{"op": "add", "path": "/metadata/annotations", "value": annotations}]
    return [
        {"op": "add", "path": f"/metadata/annotations/{pointer(key)}", "value": value}
        for key, value in annotations.items()
    ]


def pointer(key: str) -> str:
    """A key as a part of a JSON Pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _review(response: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
