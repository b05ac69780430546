"""The dry runs as the service answers them: who asks changes nothing, and hostile questions end soon."""

import time
from typing import Any

import pytest

from oci_hook.kube.controller import dry_runs
from oci_hook.kube.controller.dry_runs import DRY_RUNS
from oci_hook.kube.controller.service import NotNow
from tests.kube.cluster_objects import node, pod
from tests.kube.controller.test_whose_pods import Place

TEMPLATE = {
    "metadata": {"annotations": {"gpu-hook.io/memory": "60"}},
    "spec": {"containers": [{"name": "main"}]},
}
JOB = {"pods": [{"name": "w", "count": 3, "template": TEMPLATE}]}
NOT_UNDERSTOOD = (ValueError, KeyError, TypeError, AttributeError, RecursionError)  # the server answers 400


def ask(place: Place, verb: str, body: Any) -> Any:
    return place.run(lambda service: service.dry_run(DRY_RUNS[verb])(body))


def test_each_verb_answers_and_reserves_nothing() -> None:
    place = Place()
    found = ask(place, "dry-run", JOB)
    assert not found["fits"] and found["pods"][0]["fits"] == 2 and found["pods"][0]["nodes"] == {"a": 1, "b": 1}
    assert ask(place, "dry-run", {**JOB, "nodes": ["a"]})["pods"][0]["nodes"] == {"a": 1}
    obj = pod("p", memory=60)
    assert ask(place, "predicate", {"task": {"Pod": obj}, "node": {"Name": "a"}})["status"] == ""
    tasks = {str(n): {"Pod": pod(f"p{n}", memory=60)} for n in range(2)}
    assert ask(place, "jobEnqueueable", {"job": {"Tasks": tasks, "MinAvailable": 2}}) == {"status": 1}
    assert ask(place, "filter-dry-run", {"Pod": obj, "NodeNames": ["a", "b"]})["NodeNames"] == ["a", "b"]
    assert not place.state.reservations and not place.gets


def test_an_autoscaler_s_nodes_and_pods_need_not_exist() -> None:
    small, large = node("small", 10), node("large", 100)
    simulated = {"metadata": {"annotations": {"gpu-hook.io/memory": "60"}}, "spec": {"containers": [{"name": "main"}]}}
    answer = ask(Place(), "filter-dry-run", {"Pod": simulated, "Nodes": {"items": [small, large]}})
    assert answer["Nodes"]["items"] == [large]
    simulated["metadata"]["annotations"]["gpu-hook.io/memory"] = "lots"
    answer = ask(Place(), "filter-dry-run", {"Pod": simulated, "NodeNames": ["a"]})
    assert answer["NodeNames"] == [] and "GH-101" in answer["FailedNodes"]["a"]


@pytest.mark.parametrize("verb", DRY_RUNS)
@pytest.mark.parametrize(
    "body",
    [None, 7, [], {}, {"pods": None}, {"pods": [7]}, {**JOB, "nodes": 7}, {**JOB, "nodes": [7]}, {"task": {}}]
    + [{"Pod": 7}, {"job": {"Tasks": {"a": {}}}}, {"task": {"Pod": pod("p", memory=1)}, "node": 7}],
)
def test_what_is_no_question(verb: str, body: Any) -> None:
    if verb == "dry-run" and body == {**JOB, "nodes": []}:
        return
    with pytest.raises(NOT_UNDERSTOOD):
        found = ask(Place(), verb, body)
        raise ValueError(found) if found == {"status": 0} else AssertionError(found)


def test_only_the_leader_answers_since_only_it_knows_the_reservations() -> None:
    place = Place()
    place.synced = False
    with pytest.raises(NotNow):
        ask(place, "dry-run", JOB)


@pytest.mark.parametrize(("most", "seconds"), [(0.0, 5), (0.25, 10)])
def test_the_time_of_one_answer_is_bounded(monkeypatch: pytest.MonkeyPatch, most: float, seconds: float) -> None:
    """Templates that each take long to read: 128 containers, and words that are compared with all that we know."""
    monkeypatch.setattr(dry_runs, "MOST", most)
    notes = {f"example.com/gpu-{n}": "x" for n in range(7)} | {"gpu-hook.io/memory": "1"}
    slow = {"metadata": {"annotations": notes}, "spec": {"containers": [{"name": f"c{n}"} for n in range(128)]}}
    place = Place()
    began = time.monotonic()
    found = ask(place, "dry-run", {"pods": [{"count": 8, "template": slow}] * 128})
    assert not found["fits"] and "takes too long" in found["pods"][-1]["why"]
    assert time.monotonic() - began < seconds
