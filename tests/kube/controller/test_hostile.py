"""What tenants may write or do must not end the controller, keep others waiting, or have others evicted again and again."""

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web

from oci_hook.kube import extender
from oci_hook.kube.choose import Question
from oci_hook.kube.controller import client as client_module
from oci_hook.kube.controller import preemptor
from oci_hook.kube.controller.access import Access, Token
from oci_hook.kube.controller.client import PAGE, ApiError, Client
from oci_hook.kube.controller.evictions import Evictions
from oci_hook.kube.controller.objects import BUDGETS, EVENTS, NAMESPACES, PODS, Kind
from oci_hook.kube.controller.preemptor import MOST_HELD
from oci_hook.kube.controller.shallow import MOST, decode, shallow
from oci_hook.kube.controller.unasked import ASKED_AT_A_TIME, Unasked
from oci_hook.kube.controller.wanting import FIRST, MOST_PODS, Wanting
from oci_hook.kube.pods import words
from oci_hook.kube.preempt import Terms, Victims, victims
from oci_hook.kube.records import MOST_GRACE
from oci_hook.kube.state import ClusterState
from tests.kube.cluster_objects import bound, listing, node, pod
from tests.kube.controller.test_preemptor import BIG, Place

# --- objects of very many levels


def nested(levels: int) -> str:
    return '{"f:a":' * levels + "{}" + "}" * levels


@pytest.mark.parametrize("levels", (MOST, 1500, 9000))
def test_deep_fields_do_not_hide_the_pod(levels: int) -> None:
    fields = f'[{{"manager":"x\\"]}}","fieldsV1":{nested(levels)}}}]'
    text = f'{{"metadata":{{"managedFields":{fields},"uid":"u","name":"p"}},"spec":{{"priority":7}}}}'
    line = f'{{"type":"ADDED","object":{text}}}'.encode()
    event = decode(line, EVENTS)
    found = decode(event.object, PODS.objects)
    assert found["metadata"]["uid"] == "u" and found["spec"]["priority"] == 7
    assert decode(text.encode())["metadata"]["name"] == "p"


def test_shallow_json_stays_as_it_is() -> None:
    for value in ({"a": [1, {"b": '{"[\\"}'}]}, [], "x", [[[]]], {"": {"": None}}):
        text = json.dumps(value).encode()
        assert shallow(text) == text
    assert decode(b"[" * 2000 + b"]" * 2000) is not None


@pytest.mark.parametrize("seed", range(200))
def test_what_is_too_deep_becomes_null_and_nothing_else(seed: int) -> None:
    chance = random.Random(seed)
    keys = ("a{", '":', "x", "\\", 'f:{"b":')

    def make(depth: int) -> Any:
        if not depth or chance.random() < 0.01:
            return chance.choice(['":', '{"a":', '\\"}', 1, None, {}, [], "x{"])
        if chance.random() < 0.5:
            return [make(depth - 1), *[chance.choice([{}, [[]], "}"])] * chance.randrange(2)]
        return {chance.choice(keys): make(depth - 1), **({"z": [{"q": "]"}]} if chance.random() < 0.3 else {})}

    def cut(value: Any, depth: int = 0) -> Any:
        if isinstance(value, (dict, list)) and depth == MOST:
            return None
        if isinstance(value, dict):
            return {key: cut(one, depth + 1) for key, one in value.items()}
        return [cut(one, depth + 1) for one in value] if isinstance(value, list) else value

    made = make(chance.choice((5, MOST - 1, MOST, MOST + 1, 2 * MOST)))
    text = json.dumps(made, separators=(",", ":") if seed % 2 else None).encode()
    assert json.loads(shallow(text)) == cut(made)


@pytest.mark.parametrize("text", (b"[" * 2000, b'{"a":' * 2000 + b"x" + b"}" * 1999))
def test_deep_text_that_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(text)


# --- the version of evictions


class Server:
    """knows: the versions of an Eviction. says: name of a pod -> (status, message)."""

    def __init__(self, *knows: str, **says: tuple[int, str]) -> None:
        self.knows, self.says = knows, says
        self.bodies: list[Any] = []

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        status, message = self.says.get(body["metadata"]["name"].replace("-", "_"), (201, "{}"))
        if body["apiVersion"] not in self.knows:
            status, message = 400, f'no kind "Eviction" is registered for version "{body["apiVersion"]}" in scheme'
        return web.json_response({"code": status, "message": message}, status=status)

    async def serve(self, act: Callable[[Evictions], Any]) -> None:
        server = await asyncio.get_running_loop().create_server(web.Server(self.answer), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Client(Access(url, None, Token("x"))) as client:
            await act(Evictions(client))


@pytest.mark.parametrize("message", ('pods "policy-x" not found', 'webhook "policy/v1.example" denied the request'))
@pytest.mark.parametrize("knows", (("policy/v1",), ("policy/v1", "policy/v1beta1")))
@pytest.mark.parametrize("status", (400, 404, 500))
def test_a_name_in_a_refusal_does_not_change_the_version(message: str, knows: tuple[str, ...], status: int) -> None:
    async def act(evictions: Evictions) -> None:
        with pytest.raises(ApiError) as caught:
            await evictions.evict("team", "policy-x")
        assert caught.value.status == status and caught.value.message == message
        await evictions.evict("team", "good")

    server = Server(*knows, policy_x=(status, message))
    asyncio.run(server.serve(act))
    assert server.bodies[-1]["apiVersion"] == "policy/v1"


@pytest.mark.parametrize(("status", "message"), ((429, "a budget"), (404, 'pods "odd" not found')))
def test_an_old_server_gets_its_own_version(status: int, message: str) -> None:
    async def act(evictions: Evictions) -> None:
        with pytest.raises(ApiError) as caught:
            await evictions.evict("team", "odd")
        assert caught.value.status == status
        await evictions.evict("team", "good")
        await evictions.evict("team", "good")

    server = Server("policy/v1beta1", odd=(status, message))
    asyncio.run(server.serve(act))
    assert server.bodies[-1]["apiVersion"] == server.bodies[-2]["apiVersion"] == "policy/v1beta1"


# --- very many pods that wait


def of(namespace: str, name: str, priority: int = 0) -> Any:
    made = pod(name, gpus=1, priority=priority)
    made["metadata"]["namespace"] = namespace
    return words(made)


def test_one_namespace_does_not_keep_others_out() -> None:
    wanting = Wanting()
    for n in range(MOST_PODS + 1):
        wanting.note(of("flood", f"p{n}"), ["a"], 0.0)
    for n in range(3):
        wanting.note(of("team", f"q{n}"), ["a"], 0.0)
    wanting.note(of("flood", "late"), ["a"], 0.0)
    assert len(wanting.pods) == MOST_PODS
    assert {"u-q0", "u-q1", "u-q2"} <= wanting.pods.keys() and "u-late" not in wanting.pods


def test_one_namespace_does_not_take_all_turns() -> None:
    wanting = Wanting()
    for n in range(50):
        wanting.note(of("flood", f"p{n}"), ["a"], 0.0)
    wanting.note(of("team", "q"), ["a"], 1.0)
    wanting.note(of("team", "high", 5), ["a"], 2.0)
    first = wanting.due(100.0)
    assert [want.pod.name for want in first][:2] == ["high", "p0"]
    wanting.charge("flood", 0.05, 100.0)  # the time was enough for one
    first[1].at = 101.0
    assert [want.pod.name for want in wanting.due(100.0)][:3] == ["high", "q", "p1"]


def test_a_namespace_of_many_pods_does_not_keep_others_from_being_asked_about() -> None:
    state = ClusterState()
    for n in range(1000):
        obj = pod(f"p{n}", memory=10, **{"class": "online"})
        obj["metadata"]["namespace"] = "flood" if n else "first"
        state.apply_pod(obj)
    late = pod("q", memory=10, **{"class": "online"})
    late["metadata"]["namespace"] = "team"
    state.apply_pod(late)
    asked: list[str] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request.path)
        return web.json_response({"code": 404}, status=404)

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(web.Server(answer), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Client(Access(url, None, Token("x"))) as client:
            unasked = Unasked(client, state, Wanting(), Terms(), ("flood", "first", "team"))
            for second in (0.0, 5.0):
                await unasked.look(second)

    asyncio.run(run())
    assert "/api/v1/namespaces/team/pods/q" in asked and len(asked) == ASKED_AT_A_TIME


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


# --- pods that never end, and pods that go again


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
    """Also after the time in which one must have ended. Once it is hurried, it counts as room to come."""
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
    # The scheduler's deletion does not shorten the time: we must.
    assert extender.to_hurry(by, place.state) == ([] if grace == MOST_GRACE else ["a"])
    # Its object is deleted by force: the years are over, and the node still has its containers.
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
    """how: what becomes of the pod for which others ended, before it is deleted."""
    place = Place(60)
    names = iter(range(1000))
    back: set[str] = set()

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(web.Server(place._answer), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Client(Access(url, None, Token("x"))) as client:
            events = preemptor.Events(client, lambda: place.time)
            one = preemptor.Preemptor(
                *(client, place.state, preemptor.Budgets(), events, lambda: True, lambda: place.time, "on"),
                *(preemptor.Terms(), place.outcomes.append, lambda line: None, ("default",)),
            )
            for _ in range(30):
                obj = pod(f"again-{next(names)}", gpus=1, priority=9)
                place.waits(obj)
                place.state.apply_pod(obj)
                one.note(words(obj), ["a"])
                place.time += FIRST + 1
                await one._round()
                for name in set(place.evicted()) - back:  # its owner makes it anew, at the same place
                    back.add(name)
                    place.state.remove_pod(f"u-{name}", place.time - 10)
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
                    place.state.remove_pod(obj["metadata"]["uid"], place.time - 10)
                    place.state.tick(place.time)
                    place.runs(pod(f"{name}x", memory=60, devices="GPU-a-0"))
                place.state.remove_pod(obj["metadata"]["uid"], place.time - 10)

    asyncio.run(run())
    assert most // 5 <= len(set(place.evicted())) <= most
    assert how != "ran" or len(set(place.evicted())) == 30  # 90 s: after 0, 10, 20 and 40 s


# --- pods of namespaces without the label

SUMS = "0/1 nodes are available: 1 Insufficient gpu-hook.io/memory-mib."


@pytest.mark.parametrize("namespace", ("default", "strangers"))
@pytest.mark.parametrize("noted", (False, True))
def test_nobody_ends_for_a_pod_of_a_namespace_without_the_label(namespace: str, noted: bool) -> None:
    """noted: it had the label while the scheduler asked."""
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
    """Those who may not end are not known then. The API server would let the first of several go."""
    budgets = preemptor.Budgets(known=False)
    monkeypatch.setattr("tests.kube.controller.test_preemptor.Budgets", lambda: budgets)
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
    monkeypatch.setattr("tests.kube.controller.test_preemptor.Budgets", lambda: budgets)
    place = Place(10)
    place.waits(BIG)
    place.after = lambda path: setattr(budgets, "known", not path.endswith("eviction"))
    place.run(1)
    assert place.evicted(dry=True) == ["s0"] and place.evicted() == []


# --- pages that are too large


@pytest.mark.parametrize("kind", [PODS, NAMESPACES, BUDGETS])
@pytest.mark.parametrize("size", [20, 140, 1500])
def test_lists_of_large_objects_are_read_in_smaller_pages(
    kind: Kind, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes in bytes here, in KiB really: 500 pods of 140 KiB were more than one answer may have, and never read."""
    monkeypatch.setattr(client_module, "MAX_PAGE", 16 << 10)
    things = [
        {"metadata": {"uid": f"u{i}", "namespace": "team", "name": f"p{i}", "annotations": {"a/b": "x" * size}}}
        for i in range(1200)
    ]
    things += [{**one, "metadata": {**one["metadata"], "annotations": {}}} for one in things]  # small ones after them
    asked: list[int] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        begin, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        asked.append(limit)
        more = str(begin + limit) if begin + limit < len(things) else ""
        meta = {"resourceVersion": "5", "continue": more}
        return web.json_response({"metadata": meta, "items": things[begin : begin + limit]})

    async def run() -> list[list[str]]:
        server = await asyncio.get_running_loop().create_server(web.Server(answer), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Client(Access(url, None, Token("x"))) as client:
            return [[one["metadata"]["name"] for one in page] async for page, _ in client.pages(kind, {})]

    pages = asyncio.run(run())
    assert sum(pages, []) == [one["metadata"]["name"] for one in things]
    assert asked[0] == PAGE
    assert len(asked) - len(pages) <= 6 + len(asked) / 4, "few are asked for in vain"
    assert asked[-1] > 3 * min(asked) or size == 20, "and small objects in larger pages again"


def test_one_object_that_is_too_large_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_PAGE", 1024)
    monkeypatch.setattr(client_module, "MAX_ANSWER", 4096)

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=b" " * 4097, content_type="application/json")

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(web.Server(answer), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Client(Access(url, None, Token("x"))) as client:
            with pytest.raises(ApiError, match="larger than"):
                async for _ in client.pages(PODS, {}):
                    pass

    asyncio.run(run())
