"""The taint of T9k's whole-node mode."""

from typing import Any

from oci_hook.kube.controller.act import mode_taints
from oci_hook.kube.formats import names


def node(mode: str = "", taint: bool = False, ours: bool = False, other: bool = False) -> dict[str, Any]:
    listed = [mode_taints.TAINT] * taint + [{"key": "x", "effect": "NoExecute"}] * other
    return {
        "metadata": {
            "name": "n",
            "resourceVersion": "7",
            "labels": {names.T9K_MODE: mode} if mode else {},
            "annotations": {mode_taints.TAINTED: "xgn"} if ours else {},
        },
        "spec": {"taints": listed},
    }


def test_the_taint_follows_the_mode_and_only_ours_is_taken_off() -> None:
    put = mode_taints.patch(node("xgn", other=True))
    assert put[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    assert put[1]["value"] == [{"key": "x", "effect": "NoExecute"}, mode_taints.TAINT]
    assert put[2] == {"op": "add", "path": "/metadata/annotations", "value": {mode_taints.TAINTED: "xgn"}}
    off = mode_taints.patch(node("sgn", taint=True, ours=True, other=True))
    assert off[1]["value"] == [{"key": "x", "effect": "NoExecute"}] and off[2]["op"] == "remove"
    assert (
        mode_taints.patch(node(taint=False, ours=True))[1]["op"] == "remove"
    )  # somebody removed the taint, so the annotation goes, too
    for nothing in (node("xgn", taint=True), node("xgn", taint=True, ours=True), node("sgn", taint=True), node()):
        assert mode_taints.patch(nothing) == []
