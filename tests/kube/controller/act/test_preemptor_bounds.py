"""Bounds of preemption: victims that never end, preemptors that disappear, pods that must not preempt."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from oci_hook.kube.answers import extender
from oci_hook.kube.controller.act import preemptor
from oci_hook.kube.controller.act.preemptor import MOST_HELD
from oci_hook.kube.controller.act.wanting import FIRST
from oci_hook.kube.controller.api.client import Client
from oci_hook.kube.link.kubeconfig import Credential
from oci_hook.kube.placing.choose import Question
from oci_hook.kube.placing.records import MOST_GRACE
from oci_hook.kube.pod.asked import words
from oci_hook.kube.preemption.preempt import Victims, victims
from tests.kube.cluster_objects import bound, listing, node, pod
from tests.kube.controller.act.test_preemptor import BIG, Place
from tests.kube.controller.parts import context


def test_planning_for_one_pod_pauses_and_goes_on_at_the_next_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemptor, "SLICE", 0.0)
    place = Place(60)
    place.waits(BIG, "gone-1", "gone-2", "a")
    place.run(rounds=1)
    assert not place.evicted()
    place = Place(60)
    place.waits(BIG, "gone-1", "gone-2", "a")
    place.run(rounds=3, every=11.0)
    assert place.evicted() == ["s0"]


def endless(place: Place, name: str, grace: int) -> None:
    made = bound(place.objects[name], "a", place.texts[name], deleting=True)
    made["metadata"]["deletionGracePeriodSeconds"] = grace
    place.state.apply_pod(made)


def test_room_is_held_no_longer_than_we_say_though_the_victim_never_ends() -> None:
    place = Place(60)
    place.waits(BIG)
    held: list[bool] = []
    place.between = lambda number: held.append("u-big" in place.state.reservations)
    place.run(rounds=2 * int(MOST_HELD / 6), every=6.0)
    assert place.evicted() == ["s0"]
    assert any(held) and not any(held[-50:])


@pytest.mark.parametrize(("grace", "evicted"), ((MOST_GRACE, []), (MOST_GRACE + 1, ["s0"]), (10**9, ["s0"])))
def test_a_pod_with_years_to_end_is_not_waited_for_and_not_immune(grace: int, evicted: list[str]) -> None:
    place = Place(60, 60)
    endless(place, "s0", grace)
    place.waits(BIG)
    place.run(rounds=1)
    assert place.evicted() == evicted


def test_a_pod_with_years_to_end_never_becomes_immune() -> None:
    """Not even after a hold's time. Once it is evicted with a short grace period, its room counts as soon free."""
    place = Place(60)
    endless(place, "s0", 10**9)
    for now in (0.0, 100.0, 800.0, 900.0):
        place.state.tick(now)
        endless(place, "s0", 10**9)
    place.time = 1000.0
    place.waits(BIG)
    real = place._evict

    def evict(name: str, body: Any) -> web.Response:
        answer = real(name, body)
        if place.evicted():
            endless(place, name, body["deleteOptions"]["gracePeriodSeconds"])
        return answer

    place._evict = evict  # type: ignore[method-assign]
    place.run(rounds=3)
    assert place.evicted() == ["s0"] and place.state.reservations["u-big"].victims == ("u-s0",)
    assert place.state.pods["u-s0"].ends


@pytest.mark.parametrize("grace", (MOST_GRACE, MOST_GRACE + 1, 10**9))
def test_the_scheduler_s_victims_are_not_taken_where_one_has_years_to_end(grace: int) -> None:
    place = Place(60, 60)
    endless(place, "s0", grace)
    place.waits(BIG)
    found = victims(place.state, Question(words(BIG)), "a", ["u-s0"])
    assert found == (Victims((), 0) if grace == MOST_GRACE else None)
    by = {"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u-s0"}]}, "gone": {"Pods": [{"UID": "u-s0"}]}}}
    # The scheduler's deletion does not shorten the grace period, so we must.
    assert extender.to_hurry(by, place.state) == ([] if grace == MOST_GRACE else ["a"])
    # Its object is deleted by force, but the node still has its containers.
    place.state.apply_node(node("a", 100, 100, digest=listing("u-s0", "u-s1")))
    place.state.remove_pod("u-s0", place.time)
    assert victims(place.state, Question(words(BIG)), "a", []) == Victims((), 0)


@pytest.mark.parametrize(("grace", "given"), ((None, None), (0, None), (MOST_GRACE, None), (10**9, MOST_GRACE)))
def test_victims_end_before_the_hold_does(grace: int | None, given: int | None) -> None:
    place = Place(60)
    made = bound(place.objects["s0"], "a", place.texts["s0"])
    made["spec"]["terminationGracePeriodSeconds"] = grace
    place.state.apply_pod(made)
    bodies = []
    real = place._evict
    place._evict = lambda name, body: bodies.append(body) or real(name, body)
    place.waits(BIG)
    place.run(rounds=1)
    assert [body["deleteOptions"].get("gracePeriodSeconds") for body in bodies] == [
        None,
        given,
    ]  # the first is a dry run


def test_evictions_stop_when_the_pod_is_gone() -> None:
    place = Place(60, 60, 60)
    place.waits(pod("big", gpus=3, priority=9))

    def after(path: str) -> None:
        if place.evicted():
            place.state.remove_pod("u-big", place.time)

    place.after = after
    place.run(rounds=2)
    assert len(place.evicted()) == 1


@pytest.mark.parametrize(("how", "most"), (("waits", 5), ("bound", 5), ("ended", 5), ("ran", 30)))
def test_pods_that_go_when_others_ended_for_them_have_fewer_and_fewer_end(how: str, most: int) -> None:
    """how: the preemptor's state before it is deleted."""
    place = Place(60)
    names = iter(range(1000))
    back: set[str] = set()

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(web.Server(place._answer), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Client(Credential(url, token="x")) as client:
            events = preemptor.Events(client, lambda: place.time)
            within = context(client, place.state, now=lambda: place.time)
            one = preemptor.Preemptor(
                *(within, preemptor.Budgets(), events, "on", preemptor.PreemptionTerms(), place.outcomes.append)
            )
            for _ in range(30):
                obj = pod(f"again-{next(names)}", gpus=1, priority=9)
                place.waits(obj)
                place.state.apply_pod(obj)
                one.note(words(obj), ["a"])
                place.time += FIRST + 1
                await one._round()
                for name in set(place.evicted()) - back:  # its owner recreates it on the same GPU
                    back.add(name)
                    place.state.remove_pod(f"u-{name}", place.time - 60)
                    place.state.tick(place.time)
                    if how != "waits":
                        place.runs(obj)
                        await one._round()
                    if how == "ended":
                        uid = obj["metadata"]["name"]
                        place.state.apply_pod(bound(obj, "a", place.texts[uid], phase="Succeeded"))
                        await one._round()
                    if how == "ran":
                        place.time += preemptor.RAN
                        await one._round()
                    place.state.remove_pod(obj["metadata"]["uid"], place.time - 60)
                    place.state.tick(place.time)
                    place.runs(pod(f"{name}x", memory=60, devices="GPU-a-0"))
                place.state.remove_pod(obj["metadata"]["uid"], place.time - 60)

    asyncio.run(run())
    assert most // 5 <= len(set(place.evicted())) <= most
    assert how != "ran" or len(set(place.evicted())) == 30  # 90 s: after 0, 10, 20 and 40 s


SUMS = "0/1 nodes are available: 1 Insufficient gpu-hook.io/memory-mib."


@pytest.mark.parametrize("namespace", ("default", "strangers"))
@pytest.mark.parametrize("noted", (False, True))
def test_nobody_ends_for_a_pod_of_a_namespace_without_the_label(namespace: str, noted: bool) -> None:
    """noted: the namespace had the label when the scheduler asked."""
    place = Place()
    place.runs(pod("victim", memory=90, **{"class": "offline"}))
    obj = pod("online", memory=50, **{"class": "online"})
    obj["metadata"]["namespace"] = namespace
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": SUMS}
    obj["status"]["conditions"] = [why]
    place.waits(obj)
    if not noted:
        place.wanting = []
    place.run(6)
    assert place.evicted() == (["victim"] if namespace == "default" else [])


def test_nobody_ends_while_the_budgets_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protected pods are unknown then. The API server would let the first of several go."""
    budgets = preemptor.Budgets(known=False)
    monkeypatch.setattr("tests.kube.controller.act.test_preemptor.Budgets", lambda: budgets)
    place = Place(10)
    place.waits(BIG)

    def between(number: int) -> None:
        assert place.calls == [] or number > 5
        budgets.known = number >= 5

    place.between = between
    place.run(10, every=6.0)
    assert place.evicted() == ["s0"]


def test_nobody_ends_where_the_budgets_are_lost_after_the_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets = preemptor.Budgets()
    monkeypatch.setattr("tests.kube.controller.act.test_preemptor.Budgets", lambda: budgets)
    place = Place(10)
    place.waits(BIG)
    place.after = lambda path: setattr(budgets, "known", not path.endswith("eviction"))
    place.run(1)
    assert place.evicted(dry=True) == ["s0"] and place.evicted() == []
