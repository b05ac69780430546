"""What the driver writes to an API server that keeps not all of it."""

import time
from typing import Any

import pytest

from oci_hook.core.rules import Rules
from oci_hook.kube.dra import publisher
from oci_hook.kube.dra.publisher import SlicePublisher
from oci_hook.kube.formats import slices
from oci_hook.kube.link.kubeconfig import Credential
from oci_hook.kube.link.watcher import Change
from testbed.installs import UUIDS
from tests.kube.dra.node import NODE
from tests.kube.dra.test_allocation import INVENTORY, LABEL

WANTED = slices.devices(INVENTORY, Rules(), (UUIDS[0],), {})
CONSUMABLE = ("allowMultipleAllocations", "requestPolicy")


class Server:
    """In the place of Api. drops: names of fields that it does not keep."""

    drops: tuple[str, ...] = ()
    bodies: list[Any]

    def __init__(self, _: object) -> None:
        Server.bodies = []

    def get(self, path: str) -> Any:
        return {"metadata": {"uid": "node-uid"}}

    def call(self, method: str, path: str, body: Any) -> Any:
        Server.bodies.append(body)
        kept: Any = without(body, Server.drops)
        return {**kept, "metadata": {"name": "s1", "resourceVersion": str(len(Server.bodies))}}


def without(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {name: without(inner, names) for name, inner in value.items() if name not in names}
    return [without(inner, names) for inner in value] if isinstance(value, list) else value


def a_publisher(monkeypatch: pytest.MonkeyPatch, drops: tuple[str, ...] = (), node: str = NODE) -> SlicePublisher:
    monkeypatch.setattr(publisher, "Api", Server)
    monkeypatch.setattr(Server, "drops", drops)
    made = SlicePublisher(node, Credential("https://127.0.0.1:1", token="x"))
    made.take(Change("slices", "all", []))
    return made


@pytest.mark.parametrize(
    ("drops", "said"),
    [
        ((), ""),
        (("taints",), "taints (feature gate DRADeviceTaints)"),
        (CONSUMABLE, ", ".join(f"{name} (feature gate DRAConsumableCapacity)" for name in CONSUMABLE)),
        (("index",), "a part"),
    ],
)
def test_a_server_that_drops_fields_is_written_to_once_and_told(
    monkeypatch: pytest.MonkeyPatch, drops: tuple[str, ...], said: str
) -> None:
    made = a_publisher(monkeypatch, drops)
    assert [made.publish(WANTED) for _ in range(10)] == [True] + 9 * [False] and len(Server.bodies) == 1
    assert made.problem == (said and f"the API server drops {said} of the ResourceSlices")
    assert made.publish(WANTED[:1]) and not made.publish(WANTED[:1]), "what is new is written"
    monkeypatch.setattr(Server, "drops", ())
    assert made.seen is not None
    for _ in range(3):  # a watch that failed
        made.take(Change("slices", "all", list(made.seen.values())))
        assert not made.publish(WANTED[:1])
    later = time.monotonic() + publisher.AGAIN
    monkeypatch.setattr(time, "monotonic", lambda: later)
    made.take(Change("slices", "all", list(made.seen.values())))  # as after the server's restart
    assert made.publish(WANTED[:1]) == bool(drops) and not made.publish(WANTED[:1]) and not made.problem


def test_a_problem_ends_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    made = a_publisher(monkeypatch, ("taints",))
    assert made.publish(WANTED) and made.problem and made.seen is not None
    (slice_,) = made.seen.values()
    whole = {**slice_, "spec": {**slice_["spec"], "devices": WANTED}}
    made.take(Change("slices", "put", whole))  # by somebody else
    assert not made.publish(WANTED) and not made.problem


@pytest.mark.parametrize("node", [NODE, "n" * 199 + ".rack", "n" * 198 + "-.rack", "n" * 253])
def test_a_slices_name_is_one_for_each_node(monkeypatch: pytest.MonkeyPatch, node: str) -> None:
    a_publisher(monkeypatch, node=node).publish(WANTED)
    name = Server.bodies[0]["metadata"]["generateName"] + "x1y2z"
    assert len(name) <= 253 and all(LABEL.fullmatch(label) for label in name.split(".") if len(label) < 64)
