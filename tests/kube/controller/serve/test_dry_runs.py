"""The service's dry run: it changes nothing, and hostile requests end soon."""

import time
from typing import Any

import pytest

from oci_hook.kube.controller.serve import service as service_module
from oci_hook.kube.controller.serve.service import NotNow
from tests.kube.controller.serve.test_service import Place

TEMPLATE = {
    "metadata": {"annotations": {"gpu-hook.io/memory": "60"}},
    "spec": {"containers": [{"name": "main"}]},
}
JOB = {"pods": [{"name": "w", "count": 3, "template": TEMPLATE}]}
NOT_UNDERSTOOD = (ValueError, KeyError, TypeError, AttributeError, RecursionError)  # the server answers 400


def ask(place: Place, body: Any) -> Any:
    return place.run(lambda service: service.dry_run(body))


def test_it_answers_and_reserves_nothing() -> None:
    place = Place()
    found = ask(place, JOB)
    assert not found["fits"] and found["pods"][0]["fits"] == 2 and found["pods"][0]["nodes"] == {"a": 1, "b": 1}
    assert ask(place, {**JOB, "nodes": ["a"]})["pods"][0]["nodes"] == {"a": 1}
    assert not place.state.reservations and not place.gets


@pytest.mark.parametrize(
    "body",
    [
        None,
        7,
        [],
        {},
        {"pods": None},
        {"pods": [7]},
        {**JOB, "nodes": 7},
        {**JOB, "nodes": [7]},
        {"pods": [{"count": 1}]},
    ],
)
def test_what_is_no_question(body: Any) -> None:
    with pytest.raises(NOT_UNDERSTOOD):
        ask(Place(), body)


def test_only_the_leader_answers_since_only_it_knows_the_reservations() -> None:
    place = Place()
    place.synced = False
    with pytest.raises(NotNow):
        ask(place, JOB)


@pytest.mark.parametrize(("most", "seconds"), [(0.0, 5), (0.25, 10)])
def test_the_time_of_one_answer_is_bounded(monkeypatch: pytest.MonkeyPatch, most: float, seconds: float) -> None:
    """Templates that take long to parse: 128 containers each, and unknown keys that are compared with all known ones."""
    monkeypatch.setattr(service_module, "DRY_RUN_SECONDS", most)
    notes = {f"example.com/gpu-{n}": "x" for n in range(7)} | {"gpu-hook.io/memory": "1"}
    slow = {"metadata": {"annotations": notes}, "spec": {"containers": [{"name": f"c{n}"} for n in range(128)]}}
    place = Place()
    began = time.process_time()
    found = ask(place, {"pods": [{"count": 8, "template": slow}] * 128})
    assert not found["fits"] and "takes too long" in found["pods"][-1]["why"]
    assert time.process_time() - began < seconds
