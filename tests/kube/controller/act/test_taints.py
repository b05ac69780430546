"""The taint of T9k's whole-node mode."""

import asyncio
import copy
import json
from typing import Any

from oci_hook.kube.controller.act import taints
from oci_hook.kube.controller.api.objects import NODES, slim
from oci_hook.kube.controller.api.shallow import decode
from oci_hook.kube.formats import names
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.pod.mutate import Mutation
from tests.kube.controller.parts import context
from tests.kube.pod.test_mutate import apply


def node(mode: str = "", taint: bool = False, ours: bool = False, other: bool = False) -> dict[str, Any]:
    listed = [taints.MODE_TAINT] * taint + [{"key": "x", "effect": "NoExecute"}] * other
    return {
        "metadata": {
            "name": "n",
            "resourceVersion": "7",
            "labels": {names.T9K_MODE: mode} if mode else {},
            "annotations": {taints.TAINTED: "xgn"} if ours else {},
        },
        "spec": {"taints": listed},
    }


class Api:
    """A simulated API server with one node. leads: False from the first read on."""

    def __init__(self, node: dict[str, Any]) -> None:
        self.node, self.leads = node, True

    async def get(self, path: str) -> Any:
        self.leads = False
        return copy.deepcopy(self.node)

    async def patch(self, path: str, change: Any, kind: str) -> None:
        self.node = apply(self.node, Mutation(tuple(change[1:])))


def copied(whole: dict[str, Any]) -> dict[str, Any]:
    """The node as the controller's copy has it."""
    return slim(decode(json.dumps(whole).encode(), NODES.objects))


def test_other_systems_annotations_and_all_of_their_taints_stay() -> None:
    whole = node("xgn")
    foreign = {"flannel.alpha.coreos.com/backend-type": "vxlan", "kubeadm.alpha.kubernetes.io/cri-socket": "x"}
    taint = {"key": "x", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
    whole["metadata"]["annotations"], whole["spec"]["taints"] = foreign, [taint]
    api = Api(whole)
    made = taints.ModeTaints(context(api, ClusterState()))

    async def story() -> None:
        running = asyncio.create_task(made.run())
        made.look(copied(api.node))
        while made._due:
            await asyncio.sleep(0)
        assert api.node["metadata"]["annotations"] == {**foreign, taints.TAINTED: "xgn"}
        assert api.node["spec"]["taints"] == [taint, taints.MODE_TAINT]
        api.node["metadata"]["labels"] = {}
        made.look(copied(api.node))
        while made._due:
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(story())
    assert api.node["metadata"]["annotations"] == foreign and api.node["spec"]["taints"] == [taint]


def test_who_leads_no_longer_writes_when_it_leads_again() -> None:
    api = Api(node("xgn"))
    made = taints.ModeTaints(context(api, ClusterState(), leads=lambda: api.leads))

    async def story() -> None:
        running = asyncio.create_task(made.run())
        made.look(copied(api.node))
        for _ in range(5):
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(story())
    assert api.node["spec"]["taints"] == [] and made._due == {"n"}


def test_the_taint_follows_the_mode_and_only_ours_is_taken_off() -> None:
    put = taints.mode_patch(node("xgn", other=True))
    assert put[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    assert put[1]["value"] == [{"key": "x", "effect": "NoExecute"}, taints.MODE_TAINT]
    assert put[2] == {"op": "add", "path": "/metadata/annotations", "value": {taints.TAINTED: "xgn"}}
    off = taints.mode_patch(node("sgn", taint=True, ours=True, other=True))
    assert off[1]["value"] == [{"key": "x", "effect": "NoExecute"}] and off[2]["op"] == "remove"
    assert (
        taints.mode_patch(node(taint=False, ours=True))[1]["op"] == "remove"
    )  # somebody removed the taint, so the annotation goes, too
    for nothing in (node("xgn", taint=True), node("xgn", taint=True, ours=True), node("sgn", taint=True), node()):
        assert taints.mode_patch(nothing) == []
