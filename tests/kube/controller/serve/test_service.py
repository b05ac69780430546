"""The service gives decisions and reservations only to pods that may have them, whoever calls. With an API server of some pods."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from oci_hook.core.rules import Rules
from oci_hook.kube.controller.api.client import Client
from oci_hook.kube.controller.api.objects import NAMESPACES, slim
from oci_hook.kube.controller.copy import Copy
from oci_hook.kube.controller.options import ControllerOptions
from oci_hook.kube.controller.serve.metrics import Metrics
from oci_hook.kube.controller.serve.service import NotNow, Service
from oci_hook.kube.controller.trust.generations import Secrets
from oci_hook.kube.controller.trust.own_secret import Own
from oci_hook.kube.link.kubeconfig import Credential
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.pod import mutate
from tests.kube.cluster_objects import SIGNER, alloc_of, binding, bound, node, pod
from tests.kube.controller.parts import context, preemptor

OPTIONS = ControllerOptions("127.0.0.1", 0, "gpu-hook", ("a",))
ENABLED = {"gpu-hook.io/namespace": "enabled"}


class Place:
    """A service over nodes a and b. pods: those of the API server, by namespace and name."""

    def __init__(self) -> None:
        self.pods: dict[str, Any] = {}
        self.gets: list[str] = []
        self.synced = True
        self.copy = Copy(ClusterState(verify=SIGNER.holds), lambda: 0.0)
        for name in "ab":
            self.copy.node(node(name, 100))
        self.state = self.copy.state

    def namespace(self, name: str, labels: dict[str, str]) -> None:
        text = json.dumps({"metadata": {"name": name, "labels": labels}})
        self.copy.namespaces.apply(slim(NAMESPACES.objects.decode(text)))

    def run(self, act: Callable[[Service], Awaitable[Any]]) -> Any:
        return asyncio.run(self._run(act))

    async def _run(self, act: Callable[[Service], Awaitable[Any]]) -> Any:
        async def answer(request: web.BaseRequest) -> web.Response:
            self.gets.append(request.path)
            parts = request.path.split("/")
            found = self.pods.get(f"{parts[4]}/{parts[6]}")
            return web.json_response(found or {}, status=200 if found else 404)

        server = await asyncio.get_running_loop().create_server(web.Server(answer), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Client(Credential(url, token="x")) as client:
            within = context(client, self.state, self.copy.enabled, synced=lambda: self.synced)
            mutation = mutate.WebhookOptions(Rules())
            service = Service(within, OPTIONS, self.copy, preemptor(within), Metrics(), mutation, lambda: None)
            service.use(Own(secrets=Secrets(((1, b"\x01" * 32),))))
            return await act(service)

    def bind(self, obj: Any, name: str, dry_run: bool = False) -> Any:
        review = binding(obj, name, dry_run=dry_run)
        review["request"]["namespace"] = review["request"]["object"]["metadata"]["namespace"] = of(obj)
        return self.run(lambda service: service.review_binding(review))

    def filter(self, obj: Any, *names: str) -> Any:
        return self.run(lambda service: service.filter({"Pod": obj, "NodeNames": list(names)}))

    def preempt(self, obj: Any, name: str, uid: str) -> Any:
        asked = {"Pod": obj, "NodeNameToMetaVictims": {name: {"Pods": [{"UID": uid}], "NumPDBViolations": 0}}}
        return self.run(lambda service: service.preempt(asked))["NodeNameToMetaVictims"]


def of(obj: Any) -> str:
    return str(obj["metadata"]["namespace"])


def within(namespace: str, obj: Any) -> Any:
    return {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}


@pytest.fixture
def place() -> Place:
    made = Place()
    made.namespace("default", ENABLED)
    made.namespace("plain", {})
    return made


@pytest.mark.parametrize("labels", [None, {}, {"gpu-hook.io/namespace": "disabled"}, {"gpu-hook.io/namespace": ""}])
def test_no_decision_and_no_reservation_without_the_label(place: Place, labels: Any) -> None:
    if labels is not None:
        place.namespace("other", labels)
    theirs = within("other", pod("p", memory=60, priority=9))
    place.copy.pod(theirs)
    victim = pod("v", memory=60)
    place.copy.pod(victim)
    place.copy.pod(bound(victim, "a", alloc_of(place.bind(victim, "a"))))

    answer = place.bind(theirs, "b")["response"]
    assert not answer["allowed"] and answer["status"]["message"].startswith("GH-601") and "patch" not in answer
    answer = place.filter(theirs, "a", "b")
    assert answer["NodeNames"] == [] and set(answer["FailedAndUnresolvableNodes"]) == {"a", "b"}
    assert all(why.startswith("GH-601") for why in answer["FailedNodes"].values())
    assert place.preempt(theirs, "a", "u-v") == {}
    assert not place.state.reservations and not place.gets

    place.namespace("other", ENABLED)
    assert place.preempt(theirs, "a", "u-v") == {"a": {"Pods": [{"UID": "u-v"}], "NumPDBViolations": 0}}
    assert place.filter(theirs, "a", "b")["NodeNames"] == ["b"]
    assert alloc_of(place.bind(theirs, "b"))
    place.namespace("other", {})  # the label is removed
    assert not place.bind(theirs, "b")["response"]["allowed"]


def test_a_binding_that_is_only_tried_is_noted_nowhere(place: Place) -> None:
    """Else it would mark the node and have pods evicted."""
    victim, late = pod("v", memory=60), pod("late", memory=60, priority=9)
    place.copy.pod(victim)
    place.copy.pod(bound(victim, "a", alloc_of(place.bind(victim, "a"))))
    place.copy.pod(late)
    assert not place.bind(late, "a", dry_run=True)["response"]["allowed"] and not place.copy.waiting
    assert not place.bind(late, "a")["response"]["allowed"] and set(place.copy.waiting) == {"u-late"}


def test_a_namespace_that_goes_is_enabled_no_longer(place: Place) -> None:
    mine = pod("p", memory=60)
    place.copy.pod(mine)
    place.copy.namespaces.remove("default")
    place.copy.namespaces.remove("never-seen")
    assert not place.bind(mine, "a")["response"]["allowed"]


def test_nothing_is_decided_before_the_namespaces_are_read(place: Place) -> None:
    place.synced = False
    mine = pod("p", memory=60)
    place.copy.pod(mine)
    for act in (place.bind, place.filter):
        with pytest.raises(NotNow):
            act(mine, "a")


def test_a_pod_that_the_api_server_does_not_have_reserves_nothing(place: Place) -> None:
    answer = place.filter(pod("invented", memory=60), "a", "b")
    assert answer["NodeNames"] == [] and answer["FailedNodes"]["a"].startswith("GH-603")
    place.pods["default/p"] = pod("p", memory=60)
    assert place.filter(pod("p", uid="another", memory=60), "a")["NodeNames"] == []  # the name of another pod
    place.pods["default/done"] = pod("done", memory=60, node_name="a")
    assert place.filter(pod("done", memory=60), "a")["NodeNames"] == []
    assert not place.state.reservations and len(place.gets) == 3


def test_a_pod_that_only_the_scheduler_has_seen_is_asked_for(place: Place) -> None:
    place.pods["default/p"] = pod("p", memory=60)
    assert place.filter(pod("p", memory=60), "a")["NodeNames"] == ["a"]
    assert place.filter(pod("p", memory=60), "a")["NodeNames"] == ["a"] and len(place.gets) == 1


def test_what_is_reserved_is_what_the_pod_asks_for_not_what_the_caller_says(place: Place) -> None:
    place.copy.pod(pod("p", memory=10))
    assert place.filter(pod("p", gpus=1), "a")["NodeNames"] == ["a"]
    place.state.refresh()
    assert [spot.free_mib for spot in place.state.cut.rooms["a"].spots] == [90]


def test_a_pod_has_one_place_however_often_and_where_its_reservation_is_asked_for(place: Place) -> None:
    mine = pod("p", memory=60)
    place.copy.pod(mine)
    for name in "abab":
        assert alloc_of(place.bind(mine, name))
        assert place.filter(mine, name)["NodeNames"] == [name]
    assert place.state.reservations["u-p"].node == "b" and len(place.state.reservations) == 1
    place.state.refresh()
    assert [spot.free_mib for spot in place.state.cut.rooms["a"].spots] == [100]


def test_a_pod_that_asks_for_nothing_goes_anywhere_and_nobody_is_asked(place: Place) -> None:
    plain = within("plain", pod("plain"))
    assert place.filter(plain, "a", "b")["NodeNames"] == ["a", "b"]
    assert place.preempt(plain, "a", "u-v") and not place.gets


def test_a_proposed_victim_with_years_to_end_is_left_to_our_own_preemption(place: Place) -> None:
    """The scheduler asks about no other node if the sums are short, and its deletion would not shorten the grace period."""
    victim, big = pod("v", memory=60), pod("big", gpus=1, priority=9)
    place.copy.pod(victim)
    ends = bound(victim, "a", alloc_of(place.bind(victim, "a")), deleting=True)
    ends["metadata"]["deletionGracePeriodSeconds"] = 10**9
    place.copy.pod(ends)
    place.copy.pod(big)
    asked = {"Pod": big, "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u-v"}], "NumPDBViolations": 0}}}

    async def ask(service: Service) -> Any:
        answer = await service.preempt(asked)
        return answer["NodeNameToMetaVictims"], {w.pod.name: w.nodes for w in service._preemptor.wanting.pods.values()}

    assert place.run(ask) == ({}, {"big": ("a",)})
