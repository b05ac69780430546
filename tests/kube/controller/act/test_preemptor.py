"""The preemptor's steps with a simulated API server: dry run, hold, evictions, and reasons to stop."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from oci_hook.kube.answers import admission
from oci_hook.kube.controller.act.preemptor import (
    BARRED,
    LOOKS,
    MOST_HELD,
    NOT_NOMINATED,
    ROOM,
    SHARE,
    Preemptor,
)
from oci_hook.kube.controller.act.unasked import Unasked
from oci_hook.kube.controller.act.wanting import FIRST, HALF, MOST_NODES, MOST_PODS, Wanting
from oci_hook.kube.controller.api.client import ApiError, Client
from oci_hook.kube.controller.api.pod_events import Events
from oci_hook.kube.link.kubeconfig import Credential
from oci_hook.kube.placing.choose import Question
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.pod.asked import words
from oci_hook.kube.preemption.disruption import Budgets
from oci_hook.kube.preemption.preempt import PreemptionTerms, Victims, plan, victims
from tests.kube.cluster_objects import SIGNER, alloc_of, binding, bound, listing, node, pod
from tests.kube.controller.parts import context, preemptor

BIG = pod("big", gpus=1, priority=9)
TAINTED = {"metadata": {}, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}


class Place:
    """Node a with a pod of each size, each on its own GPU. refuses: (name, dry run) -> HTTP status of an eviction. after: called
    with the path after each answer."""

    def __init__(self, *sizes: int, mode: str = "on") -> None:
        self.state = ClusterState(verify=SIGNER.holds)
        self.state.apply_node(node("a", *([100] * (max(1, len(sizes))))))
        self.time, self.leads, self.mode = 100.0, True, mode
        self.objects: dict[str, Any] = {}
        self.nodes: dict[str, Any] = {}
        self.fails: dict[str, int] = {}  # name of a pod -> status of its object's request
        self.texts: dict[str, str] = {}
        self.calls: list[tuple[str, str]] = []  # ("dry" | "evict" | "nominate" ..., name)
        self.refuses: Callable[[str, bool], int] = lambda name, dry: 0
        self.after: Callable[[str], None] = lambda path: None
        self.between: Callable[[int], None] = lambda number: None
        self.outcomes: list[str] = []
        for n, size in enumerate(sizes):
            self.runs(pod(f"s{n}", memory=size, devices=f"GPU-a-{n}"))

    def runs(self, obj: Any) -> None:
        name = obj["metadata"]["name"]
        self.state.apply_pod(obj)
        self.texts[name] = alloc_of(admission.bind(binding(obj, "a"), self.state, 0.0, SIGNER.sign))
        self.objects[name] = obj
        self.state.apply_pod(bound(obj, "a", self.texts[name]))

    def waits(self, obj: Any, *names: str) -> None:
        self.objects[obj["metadata"]["name"]] = obj
        self.state.apply_pod(obj)
        self.wanting = list(names or ("a",))

    def written(self) -> list[tuple[str, str, dict[str, Any]]]:
        """The events to be written."""
        return [self.events._queue.get_nowait() for _ in range(self.events._queue.qsize())]

    def evicted(self, dry: bool = False) -> list[str]:
        return [name for what, name in self.calls if what == ("dry" if dry else "evict")]

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        parts = request.path.split("/")
        name = parts[6] if len(parts) > 6 else ""
        try:
            if parts[-1] == "eviction":
                return self._evict(name, await request.json())
            if parts[-1] == "status":
                self.calls.append(("nominate", name))
                return web.json_response({"code": 403, "message": "no"}, status=403)
            if request.method == "GET" and "pods" in parts:
                found = self.objects.get(name)
                return web.json_response(found or {}, status=self.fails.get(name, 200 if found else 404))
            if request.method == "GET":
                return web.json_response(self.nodes.get(parts[-1], {"metadata": {}}))
            return web.json_response({"metadata": {}}, status=201)
        finally:
            self.after(request.path)

    def _evict(self, name: str, body: Any) -> web.Response:
        dry = body["deleteOptions"].get("dryRun") == ["All"]
        assert body["deleteOptions"]["preconditions"] == {"uid": f"u-{name}"}
        self.calls.append(("dry" if dry else "evict", name))
        status = self.refuses(name, dry)
        if not status and not dry:
            self.state.apply_pod(bound(self.objects[name], "a", self.texts[name], deleting=True))
        return web.json_response({"code": status, "message": "said no"}, status=status or 201)

    def run(self, rounds: int = 1, *, every: float = FIRST + 1) -> Preemptor:
        return asyncio.run(self._run(rounds, every))

    async def _run(self, rounds: int, every: float) -> Preemptor:
        server = await asyncio.get_running_loop().create_server(web.Server(self._answer), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Client(Credential(url, token="x")) as client:
            self.events = Events(client, lambda: self.time)
            within = context(client, self.state, ("default", "evil"), lambda: self.leads, now=lambda: self.time)
            made = Preemptor(within, Budgets(), self.events, self.mode, PreemptionTerms(), self.outcomes.append)
            for obj in self.objects.values():
                if not self.state.pods[obj["metadata"]["uid"]].node:
                    made.note(words(obj), self.wanting)
            for number in range(rounds):
                self.time += every
                self.state.tick(self.time)
                await made._round()
                self.between(number)
            return made


class Clock:
    """The preemptor's clock: each step of work takes 0.1 ms, or a time that the test sets; rests take no real time."""

    def __init__(self) -> None:
        self.at = self.rested = 0.0
        self.step = 1e-4

    def perf_counter(self) -> float:
        self.at += self.step
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.rested += seconds
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for name in ("time", "asyncio"):
        monkeypatch.setattr(f"oci_hook.kube.controller.act.preemptor.{name}", made)
        monkeypatch.setattr(f"oci_hook.kube.controller.act.unasked.{name}", made)
    return made


def test_dry_run_hold_evictions_in_this_order_and_once() -> None:
    place = Place(10, 20)
    place.waits(BIG)
    place.run(20)
    assert place.calls[:2] == [("dry", "s1"), ("evict", "s1")] or place.calls[:2] == [("dry", "s0"), ("evict", "s0")]
    assert len(place.evicted()) == 1 and place.outcomes == ["done"]
    assert place.state.reservations["u-big"].victims == (f"u-{place.evicted()[0]}",)
    assert place.calls.count(("nominate", "big")) == 1  # not again after a 403


def test_a_forbidden_nomination_stops_those_of_its_namespace_for_a_while() -> None:
    asked: list[str] = []
    now = 0.0

    class Refuses:
        async def patch(self, path: str, body: Any) -> None:
            asked.append(path.split("/")[4])
            raise ApiError(403, "Forbidden", "no")

    made = preemptor(context(Refuses(), ClusterState(), now=lambda: now))
    for at, namespace in ((0.0, "evil"), (1.0, "evil"), (2.0, "other"), (NOT_NOMINATED, "evil")):
        now = at
        asyncio.run(made._nominate(of(namespace, "p", memory=1), "a"))
    assert asked == ["evil", "other", "evil"]


def test_nothing_ends_where_the_dry_run_of_one_says_no() -> None:
    place = Place()
    for n in range(3):
        place.runs(pod(f"s{n}", memory=30))
    place.waits(BIG)
    place.refuses = lambda name, dry: 429 if name == "s2" else 0
    place.run(5)
    assert place.evicted() == [] and "s2" in place.evicted(dry=True) and set(place.outcomes) == {"protected"}
    assert {body["reason"] for _, _, body in place.written()} == {"GpuShareProtected"}
    assert "u-big" not in place.state.reservations


@pytest.mark.parametrize("status", [403, 429, 500])
def test_others_end_where_the_cheapest_are_protected(status: int) -> None:
    place = Place(10, 20)
    place.waits(BIG)
    first: list[str] = []

    def refuses(name: str, dry: bool) -> int:
        first[:] = first or [name]
        return status if name == first[0] else 0

    place.refuses = refuses
    place.run(1)
    assert place.evicted() == [name for name in ("s0", "s1") if name != first[0]]


@pytest.mark.parametrize("what", ["victim", "pod"])
def test_a_pod_that_the_api_server_refuses_to_evict_or_to_show_keeps_nobody_else_waiting(what: str) -> None:
    place = Place(10, 20)
    place.waits(pod("first", memory=95, devices="GPU-a-0", priority=9))
    place.waits(pod("second", memory=95, devices="GPU-a-1", priority=8))
    place.refuses = lambda name, dry: 403 if what == "victim" and name == "s0" else 0
    if what == "pod":
        place.fails = {"first": 403}
    place.run(1)
    assert place.evicted() == ["s1"] and set(place.state.reservations) == {"u-second"}


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_is_overloaded_is_asked_about_one_pod_in_a_round(status: int) -> None:
    """Of an error that may be of the one pod the others do not wait for long."""
    place = Place(10, 20)
    place.waits(pod("first", memory=95, devices="GPU-a-0", priority=9))
    place.waits(pod("second", memory=95, devices="GPU-a-1", priority=8))
    asked: list[str] = []
    place.after = lambda path: asked.append(path.rpartition("/")[2])
    place.fails = {"first": status}
    place.run(1)
    assert asked == ["first"] and not place.evicted()
    place.run(2)
    assert place.evicted() == ["s1"] and set(place.state.reservations) == {"u-second"}


def test_a_budget_that_changes_after_the_dry_run_stops_it_and_the_room_is_given_back() -> None:
    place = Place(10)
    place.waits(BIG)
    place.refuses = lambda name, dry: 0 if dry else 429
    made = place.run(1)
    assert place.outcomes == ["stopped"] and "u-big" not in place.state.reservations
    assert made._barred == {"u-s0": place.time + BARRED}


def test_who_no_longer_leads_evicts_nobody() -> None:
    place = Place()
    for n in range(3):
        place.runs(pod(f"s{n}", memory=30))
    place.waits(BIG)
    real = 0

    def after(path: str) -> None:
        nonlocal real
        real = len(place.evicted())
        place.leads = real < 1

    place.after = after
    place.run(1)
    assert real == len(place.evicted()) == 1 and "u-big" not in place.state.reservations
    # The next leader counts the terminating pod and preempts the other two.
    place.after, place.leads = lambda path: None, True
    place.run(1)
    assert sorted(place.evicted()) == ["s0", "s1", "s2"]


def test_who_was_deleted_or_bound_meanwhile_preempts_nobody() -> None:
    for change in ({"metadata": {**BIG["metadata"], "deletionTimestamp": "t"}}, {"spec": {"nodeName": "a"}}):
        place = Place(10)
        place.waits(BIG)
        place.objects["big"] = {**BIG, **change}
        place.run(3)
        assert place.calls == []
    place = Place(10)
    place.waits(BIG)
    place.after = lambda path: place.state.remove_pod("u-big", place.time)
    place.run(3)
    assert place.evicted() == [] and not place.state.reservations


def test_a_victim_that_went_by_itself_is_no_reason_to_stop() -> None:
    place = Place(10)
    place.waits(BIG)
    place.refuses = lambda name, dry: 0 if dry else 404
    place.run(1)
    assert place.outcomes == ["done"]


def test_the_scheduler_s_own_victims_are_waited_for() -> None:
    place = Place(10, 20)
    place.waits(BIG)
    place.runs(pod("ends", memory=5, devices="GPU-a-0"))
    place.state.apply_pod(bound(place.objects["ends"], "a", place.texts["ends"], deleting=True))
    place.objects["big"] = {**BIG, "status": {"nominatedNodeName": "a"}}
    place.run(5)
    assert place.calls == []


@pytest.mark.parametrize("mode", ["off", "report"])
def test_nobody_ends_without_the_setting(mode: str) -> None:
    place = Place(10, mode=mode)
    place.waits(BIG)
    place.run(3)
    assert place.evicted() == [] and not place.state.reservations
    assert place.outcomes == (["reported"] if mode == "report" else [])


def test_sixty_four_victims_end_together() -> None:
    place = Place()
    for n in range(64):
        place.runs(pod(f"s{n}", memory=1))
    place.waits(pod("big", gpus=1, priority=9))
    place.run(1)
    assert len(place.evicted()) == len(set(place.evicted())) == 64


def test_two_for_the_same_room_take_one_set_each() -> None:
    place = Place(10, 20, 30)
    for name in ("big0", "big1"):
        place.waits(pod(name, gpus=1, priority=9))
    place.run(10)
    assert len(place.evicted()) == 2 and len(set(place.evicted())) == 2
    assert set(place.state.reservations) == {"u-big0", "u-big1"}


def test_nodes_that_do_not_let_the_pod_in_are_left_alone_whoever_named_them() -> None:
    """A caller with the extender's token may name any node."""
    place = Place(10)
    place.waits(BIG)
    place.nodes["a"] = TAINTED
    place.run(5)
    assert place.calls == [] and not place.state.reservations


def test_nobody_ends_on_a_node_without_another_resource_of_the_pod() -> None:
    """kube-scheduler would not place the pod there."""
    for listed, ends in (({"cpu": "9"}, False), ({"cpu": "9", "nvidia.com/vgpu": "2"}, True)):
        place = Place(10)
        big = pod("big", gpus=1, priority=9)
        big["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/vgpu": "2"}}
        place.waits(big)
        place.nodes["a"] = {"metadata": {}, "status": {"allocatable": listed}}
        place.run(5)
        assert bool(place.calls) == ends


@pytest.mark.parametrize("named", (("a",), ("a", "b")))
def test_nobody_ends_while_another_node_has_room(named: tuple[str, ...]) -> None:
    """A denied Binding names its node alone; and room may have come since a filter refused both."""
    place = Place(10)
    place.state.apply_node(node("b", 100))
    for name in ("aa", "c", *map(str, range(LOOKS - 3))):  # those that keep it off
        place.state.apply_node(node(name, 100))
        place.nodes[name] = TAINTED
    place.waits(BIG, *named)
    place.run(6)
    assert place.calls == [] and not place.state.reservations


def test_room_on_a_node_that_the_pod_never_takes_is_believed_for_a_while() -> None:
    """Something that only the scheduler knows keeps the pod off: its other resources, a volume, other pods."""
    place = Place(10)
    place.state.apply_node(node("b", 100))
    place.waits(BIG)
    began, ended = place.time, []

    def between(number: int) -> None:
        if place.evicted() and not ended:
            ended.append(place.time)

    place.between = between
    place.run(30)
    assert place.evicted() == ["s0"] and ROOM <= ended[0] - began < ROOM + 20


def test_room_on_nodes_that_do_not_let_the_pod_in_is_none() -> None:
    place = Place(10)
    for name in ("b", "c"):
        place.state.apply_node(node(name, 100))
        place.nodes[name] = TAINTED
    place.waits(BIG)
    place.run(3)
    assert place.evicted() == ["s0"]


def test_a_second_set_of_victims_only_after_a_rest() -> None:
    """The room was made, but the pod was not bound, for whatever reason."""
    place = Place(10, 20)
    place.waits(BIG)
    ended: list[tuple[float, str]] = []

    def between(number: int) -> None:
        for name in place.evicted()[len(ended) :]:
            ended.append((place.time, name))
            place.state.remove_pod(f"u-{name}", place.time - 60)
            place.state.tick(place.time)
            place.state.release("u-big")  # as when the hold expires
            place.runs(pod(f"{name}-again", memory=15, devices=f"GPU-a-{name[1]}"))

    place.between = between
    place.run(60, every=5.0)
    assert len(ended) == 2 and ended[1][0] - ended[0][0] >= 160


def test_a_hold_ends_although_its_victim_never_does() -> None:
    place = Place(10)
    place.waits(BIG)
    place.run(1)
    assert "u-big" in place.state.reservations
    place.state.tick(place.time + MOST_HELD - 1)
    assert "u-big" in place.state.reservations
    place.state.tick(place.time + MOST_HELD)
    assert not place.state.reservations
    place.run(5)
    assert place.evicted() == ["s0"]  # it terminates already, so no other is preempted


def test_a_pod_that_takes_long_to_place_holds_nobody_up_for_long() -> None:
    """64 containers with a share each: planning one node would take a minute without a bound."""
    place = Place()
    for name in [f"n{i}" for i in range(8)]:
        place.state.apply_node(node(name, *[100] * 8))
        for i in range(64):
            obj = pod(f"{name}-{i}", memory=10)
            place.state.apply_pod(obj)
            answer = admission.bind(binding(obj, name), place.state, 0.0, SIGNER.sign)
            place.state.apply_pod(bound(obj, name, alloc_of(answer)))
    place.waits(pod("p", containers=[f"c{i}" for i in range(64)], memory=12, priority=9), *[f"n{i}" for i in range(8)])
    longest = 0.0

    async def beside() -> None:
        nonlocal longest
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            longest, last = max(longest, time.thread_time() - last), time.thread_time()

    async def both() -> None:
        task = asyncio.create_task(beside())
        await place._run(1, FIRST + 1)
        task.cancel()

    asyncio.run(both())
    assert longest < 3 and place.evicted() == []


def test_hundreds_that_fit_nowhere_cost_little_and_end_nobody() -> None:
    """Pods of the same priority, or too large ones: each is tried ever more rarely."""
    place = Place(10, 20)
    for n in range(500):
        place.waits(pod(f"w{n}", gpus=1 if n % 2 else 3, priority=0 if n % 2 else 9))
    made = place.run(60, every=1.0)
    assert place.calls == [] and not place.state.reservations
    assert len(place.outcomes) <= 500 * 4 and set(place.outcomes) == {"none"}
    assert all(want.at > place.time for want in made.wanting.pods.values())


def test_what_is_remembered_is_bounded() -> None:
    wanting = Wanting()
    for n in range(MOST_PODS):
        wanting.note(words(pod(f"p{n}", memory=1, priority=1)), ["a"], 0.0)
    wanting.note(words(pod("same", memory=1, priority=1)), ["a"], 0.0)
    wanting.note(words(pod("higher", memory=1, priority=2)), (f"n{n}" for n in range(9999)), 0.0)
    assert len(wanting.pods) == MOST_PODS and "u-same" not in wanting.pods
    assert len(wanting.pods["u-higher"].nodes) == MOST_NODES
    wanting.note(words(pod("higher", memory=1, priority=2)), ["n1", "z"], 1.0, more=True)
    assert wanting.pods["u-higher"].nodes[:3] == ("n1", "z", "n0")
    assert wanting.due(FIRST)[0].pod.name == "higher"


# --- fairness between tenants


def of(namespace: str, name: str, **more: Any) -> Any:
    made = pod(name, **more)
    made["metadata"] |= {"namespace": namespace, "uid": f"u-{namespace}-{name}"}
    return words(made)


@pytest.mark.parametrize("priority", [0, 1, 2])
def test_a_namespace_that_fills_the_list_gives_way_to_others(priority: int) -> None:
    wanting = Wanting()
    for n in range(MOST_PODS):
        wanting.note(of("evil", f"p{n}", memory=1, priority=1), ["a"], 0.0)
    for n in range(9):
        wanting.note(of("other", f"p{n}", memory=1, priority=priority), ["a"], 1.0)
    wanting.note(of("evil", "urgent", memory=1, priority=9), ["a"], 1.0)
    assert sum(want.pod.namespace == "other" for want in wanting.pods.values()) == 9
    assert len(wanting.pods) == MOST_PODS and "u-evil-urgent" in wanting.pods


def test_two_namespaces_do_not_push_each_other_out_for_ever() -> None:
    wanting = Wanting()
    for n in range(MOST_PODS // 2):
        for namespace in ("a", "b"):
            wanting.note(of(namespace, f"p{n}", memory=1, priority=1), ["a"], 0.0)
    before = set(wanting.pods)
    for namespace in ("a", "b"):
        wanting.note(of(namespace, "more", memory=1, priority=1), ["a"], 1.0)
    assert set(wanting.pods) == before


def test_who_has_acted_is_not_forgotten_to_begin_anew() -> None:
    wanting = Wanting()
    for n in range(MOST_PODS):
        wanting.note(of("evil", f"p{n}", memory=1, priority=n and 5), ["a"], 0.0)
    wanting.pods["u-evil-p0"].has_acted = True
    wanting.note(of("other", "p", memory=1), ["a"], 1.0)
    wanting.note(of("evil", "q", memory=1, priority=9), ["a"], 1.0)
    assert {"u-evil-p0", "u-other-p", "u-evil-q"} <= wanting.pods.keys()


def test_a_namespace_on_which_much_time_was_spent_comes_later_until_that_is_forgotten() -> None:
    wanting = Wanting()
    wanting.note(of("evil", "p", memory=1, priority=9), ["a"], 0.0)
    wanting.note(of("other", "p", memory=1, priority=1), ["a"], 1.0)
    assert [want.pod.namespace for want in wanting.due(5.0)] == ["evil", "other"]
    wanting.charge("evil", 1.0, 5.0)
    assert [want.pod.namespace for want in wanting.due(5.0)] == ["other", "evil"]
    assert [want.pod.namespace for want in wanting.due(5.0 + 2 * HALF)] == ["evil", "other"]
    wanting.tidy(1e6)
    assert not wanting._spent


@pytest.mark.parametrize("priority", [8, 9, 10])
def test_a_pod_that_takes_long_to_plan_keeps_nobody_waiting(
    priority: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real plan, slowed down for one pod: 0.1 s on each of 500 nodes, a tenth of the time."""
    place = Place(10)
    for n in range(499):
        place.state.apply_node(node(f"n{n}", 100))
        place.nodes[f"n{n}"] = TAINTED
    place.waits(of_object("evil", "slow", gpus=8, priority=9), "a", *[f"n{n}" for n in range(499)])
    slow: list[str] = []

    def slowly(state: Any, question: Any, name: str, *rest: Any) -> Any:
        if question.pod.name == "slow":
            slow.append(name)
            clock.at += 0.1
        return plan(state, question, name, *rest)

    monkeypatch.setattr("oci_hook.kube.controller.act.preemptor.plan", slowly)
    place.waits(pod("quick", gpus=1, priority=priority), "a")
    place.wanting = ["a", *[f"n{n}" for n in range(499)]]
    place.run(4)
    assert place.evicted() == ["s0"]
    assert 4 <= len(slow) == len(set(slow)) < 100  # and the search continued where it stopped
    assert clock.rested > 0.8 * clock.at / SHARE, "most of the time is left for requests"


def of_object(namespace: str, name: str, **more: Any) -> Any:
    made = pod(name, **more)
    made["metadata"] |= {"namespace": namespace}
    return made


def test_what_is_held_for_a_victim_that_never_ends_is_held_ten_minutes_in_all() -> None:
    place = Place(10)
    place.waits(BIG)
    held: list[bool] = []
    place.between = lambda number: held.append("u-big" in place.state.reservations)
    place.run(600, every=6.0)
    assert place.evicted() == ["s0"] and MOST_HELD / 6 - 2 <= sum(held) <= MOST_HELD / 6 and not any(held[110:])


def test_another_ends_where_the_first_victim_never_does() -> None:
    place = Place(10, 20)
    place.waits(BIG)
    place.run(180, every=6.0)
    assert sorted(place.evicted()) == ["s0", "s1"]


@pytest.mark.parametrize("gone", [False, True])
def test_a_pod_that_ends_for_ever_is_no_room_to_come(gone: bool) -> None:
    """gone: its object was deleted by force, and its node, which may be dead, still reports it."""
    place = Place(10, 20)
    place.state.apply_pod(bound(place.objects["s0"], "a", place.texts["s0"], deleting=True))
    if gone:
        place.state.apply_node(node("a", 100, 100, digest=listing("u-s0", "u-s1")))
        place.state.remove_pod("u-s0", place.time)
        place.objects.pop("s0")
    place.waits(BIG)
    place.run(90, every=6.0)
    assert place.evicted() == []  # the preemptor first waits for the terminating pod
    place.run(20, every=6.0)
    assert place.evicted() == ["s1"]


@pytest.mark.parametrize("nominated", [False, True])
def test_pods_that_end_one_after_another_for_ever_keep_nobody_waiting_for_ever(nominated: bool) -> None:
    """A tenant deletes one pod after another, each before the last one's wait is over."""
    place = Place(*[10] * 8)
    for n in range(8):
        place.runs(pod(f"t{n}", memory=5, devices="GPU-a-0"))
    place.waits(BIG)
    if nominated:  # the scheduler waits for some of its victims, which are not enough
        place.objects["big"] = {**BIG, "status": {"nominatedNodeName": "a"}}
    ends = [f"t{n}" for n in range(8)] if nominated else [f"s{n}" for n in range(1, 8)]

    waited: list[int] = []  # rounds without an eviction

    def between(number: int) -> None:
        if not place.evicted():
            waited.append(number)
            if number % 50 == 49:
                end(ends.pop(0))

    def end(name: str) -> None:
        place.state.apply_pod(bound(place.objects[name], "a", place.texts[name], deleting=True))

    end(ends.pop(0))
    place.between = between
    place.run(130, every=6.0)
    assert 90 < len(waited) < 120 and len(place.evicted()) == 1


def test_the_scheduler_s_victims_are_not_chosen_beside_one_that_ends_for_ever() -> None:
    place = Place(60, 60)
    text = place.texts["s0"]
    place.state.apply_pod(bound(place.objects["s0"], "a", text, deleting=True))
    place.waits(BIG)
    question = Question(words(BIG))
    place.state.tick(0.0)
    assert victims(place.state, question, "a", ["u-s0"]) == Victims((), 0)
    assert victims(place.state, question, "a", []) == Victims((), 0)  # it terminates already
    place.state.tick(MOST_HELD)
    place.state.apply_pod(bound(place.objects["s0"], "a", text, deleting=True))  # an event changes nothing
    assert victims(place.state, question, "a", ["u-s0"]) is None
    assert (
        victims(place.state, question, "a", [])
        == victims(place.state, question, "a", ["u-s1"])
        == Victims(("u-s1",), 0)
    )


def test_pods_whose_words_take_long_to_read_stall_nobody_and_others_have_their_turn(clock: Clock) -> None:
    """100 pods that take 20 ms each come first."""
    clock.step = 0.02
    place = Place(10)
    for n in range(100):
        place.state.apply_pod(of_object("evil", f"p{n}", memory=60, **{"class": "online"}))
    honest = pod("honest", memory=60, **{"class": "online"})
    place.state.apply_pod(honest)
    unasked = Unasked(context(None, place.state, ("default", "evil")), Wanting(), PreemptionTerms())
    asyncio.run(unasked.look(100.0))
    assert "u-honest" in unasked._seen and len(unasked._seen) == 3
    for _ in range(34):
        asyncio.run(unasked.look(100.0))
    assert len(unasked._seen) == 101
