"""The checker of `scripts/bench chaos` finds every bad state that it is there for; a good one has no problem."""

import json
import random
from dataclasses import replace

import pytest

from benchmarks import _chaos_check as check
from benchmarks import _chaos_churn as churn
from benchmarks import _chaos_read as read
from benchmarks import _chaos_rounds as rounds
from benchmarks._chaos_check import Gpu, Grant, Pod, Snapshot, problems, wrong
from testbed.cluster.faults import FAULTS

GIB = 1024
GPUS = {"A": Gpu("n1", 16 * GIB), "B": Gpu("n1", 16 * GIB), "C": Gpu("n2", 16 * GIB)}
P = Pod("u1", "p", "n1", "Running", runs=True, asks=((4 * GIB, 30),), decided={"c0": (("A", 4 * GIB, 30),)})
WHOLE = Pod("u2", "q", "n2", "Running", runs=True, asks=((0, 0),), decided={"c0": (("C", 0, 0),)})
WAITS = Pod("u3", "w", asks=((16 * GIB, 0), (13 * GIB, 0)))
GRANTS = (Grant("n1", "u1", "c0", (("A", 4 * GIB, 30),)), Grant("n2", "u2", "c0", (("C", 16 * GIB, 100),)))
GOOD = Snapshot(
    gpus=GPUS,
    pods=(P, WHOLE, WAITS),
    grants=GRANTS,
    told=frozenset({("n1", "u1", "c0"), ("n2", "u2", "c0")}),
    free={"A": 12 * GIB, "B": 16 * GIB, "C": 0},
    usable=frozenset({"n1", "n2"}),
)


def test_a_good_state_has_no_problem() -> None:
    assert problems(GOOD) == []
    assert problems(Snapshot(gpus=GPUS, free={"A": 16 * GIB, "B": 16 * GIB, "C": 16 * GIB})) == []


def pods(*changed: Pod, **more: object) -> Snapshot:
    return replace(GOOD, pods=(*(p for p in GOOD.pods if p.uid not in {c.uid for c in changed}), *changed), **more)


TWICE = Pod("u4", "twice", "n1", "Running", runs=True, asks=((13 * GIB, 0),), decided={"c0": (("A", 13 * GIB, 0),)})
BAD = {
    "double booking": pods(TWICE),
    "ledger of A": replace(GOOD, grants=(*GRANTS, Grant("n1", "x", "c0", (("A", 12 * GIB + 1, 0),)))),
    "ledger of C": replace(GOOD, grants=(*GRANTS, Grant("n2", "x", "c0", (("C", 1, 0),)))),
    "101 %": replace(GOOD, grants=(*GRANTS, Grant("n1", "x", "c0", (("A", 1, 71),)))),
    "leaked": replace(GOOD, grants=(*GRANTS, Grant("n1", "gone", "c0", (("B", 1, 0),)))),
    "no grant": replace(GOOD, grants=GRANTS[1:]),
    "was given": replace(GOOD, grants=(Grant("n1", "u1", "c0", (("B", 4 * GIB, 30),)), GRANTS[1])),
    "holds two grants": replace(GOOD, grants=(*GRANTS, GRANTS[0])),
    "the digest has no": replace(GOOD, told=frozenset({("n1", "u1", "c0")})),
    "the ledger has not": replace(GOOD, told=GOOD.told | {("n1", "old", "c0")}),
    "that no decision explains": replace(GOOD, local=1),
    "no decision": pods(replace(P, decided=None)),
    "was refused": pods(replace(P, runs=False, refused="GH-201")),
    "does not run": pods(replace(P, runs=False, reason="CreateContainerError")),
    "still being deleted": pods(replace(P, deleting=True)),
    "failed for ever": pods(replace(P, phase="Failed", runs=False, reason="OutOfgpu-hook.io/memory-mib")),
    "w waits, though n1 has room": pods(replace(WAITS, asks=((16 * GIB, 0), (12 * GIB, 70)))),
    "has 0 of 1 pods": replace(GOOD, wanted={"ReplicaSet/d0": 1}),
    "nobody leads": replace(GOOD, free=None),
    "no controller leads": replace(GOOD, free=None),
    "the Service does not lead": replace(GOOD, routed=False),
    "reservations are left": replace(GOOD, reservations=1),
    "the leader sees": replace(GOOD, free={"A": 8 * GIB, "B": 16 * GIB, "C": 0}),
}
SAID = {"double booking": "decisions for A", "nobody leads": "no controller leads"}


@pytest.mark.parametrize("what", BAD)
def test_each_bad_state_is_found(what: str) -> None:
    assert any(SAID.get(what, what) in found for found in problems(BAD[what])), problems(BAD[what])


def test_what_may_never_be_is_apart_from_what_may_take_a_while() -> None:
    assert {what for what, seen in BAD.items() if wrong(seen)} == {
        *("ledger of A", "ledger of C", "101 %", "failed for ever")
    }


def test_a_pod_whose_containers_ended_is_the_kubelets_to_remove() -> None:
    ending = replace(P, deleting=True, runs=False)
    others = replace(
        pods(ending),
        grants=GRANTS[1:],
        told=frozenset({("n2", "u2", "c0")}),
        free={"A": 16 * GIB, "B": 16 * GIB, "C": 0},
        wanted={"StatefulSet/s0": 1},
    )
    seen = replace(others, pods=tuple(p for p in others.pods if p is not WAITS))
    assert check.only_ending(problems(seen)) and len(problems(seen)) == 2
    assert not check.only_ending(problems(replace(seen, grants=GRANTS))), "its share is not free"
    assert not check.only_ending([*problems(seen), "w waits, though n1 has room"])


def test_a_deleted_pod_may_be_failed_until_its_object_is_gone() -> None:
    ending = pods(replace(P, deleting=True, runs=False, phase="Failed", reason="Unknown"))
    assert not wrong(ending) and any(check.ENDING in found for found in problems(ending))


@pytest.mark.parametrize(
    ("asks", "fits"),
    [
        (((12 * GIB, 70),), True),
        (((16 * GIB, 100),), True),
        (((16 * GIB + 1, 0),), False),
        (((13 * GIB, 0), (13 * GIB, 0)), False),
        (((12 * GIB, 0), (4 * GIB, 0), (12 * GIB, 0)), True),
        (((13 * GIB, 0), (0, 0)), False),
        (((12 * GIB, 0), (0, 0)), True),
        (((0, 0), (0, 0)), False),
        (((1, 71), (1, 71)), False),
        ((), True),
    ],
)
def test_room_is_what_a_person_would_find(asks: tuple[tuple[int, int], ...], fits: bool) -> None:
    taken = check.sums(GPUS, (g.shares for g in GRANTS))
    assert check.room(GPUS, taken, "n1", asks) is fits


def test_what_is_read_from_objects() -> None:
    container = {"name": "c0"}
    text = json.dumps({"v": 1, "uid": "u", "node": "n1", "c": {"c0": [["A", 512, 5, 5]]}})
    notes = {"gpu-hook.io/memory.c0": "512", "gpu-hook.io/compute.c0": "5", read.ALLOC: text}
    waits = {"name": "c0", "state": {"waiting": {"reason": "RunContainerError", "message": "create: GH-201 no room"}}}
    item = {
        "metadata": {"uid": "u", "name": "p", "annotations": notes, "ownerReferences": [{"kind": "Job", "name": "j"}]},
        "spec": {"nodeName": "n1", "containers": [container]},
        "status": {"phase": "Pending", "containerStatuses": [waits]},
    }
    found = read.pod_of(item)
    assert found.asks == ((512, 5),) and found.decided == {"c0": (("A", 512, 5),)}
    assert found.refused == "GH-201" and found.of_job and not found.runs
    runs = {"name": "c0", "state": {"running": {}}, "lastState": {"terminated": {"message": "GH-606 no key"}}}
    assert read.pod_of({**item, "status": {"containerStatuses": [runs]}}).refused == ""


def test_a_step_is_the_same_again_by_seed_and_number() -> None:
    for step in range(50):
        one, other = (rounds.plan(7, step) for _ in range(2))
        assert one[0] is other[0]
        assert churn.draw(one[1], (P, WHOLE), ("j0",)) == churn.draw(other[1], (P, WHOLE), ("j0",))
    kinds = {rounds.plan(7, step)[0].name for step in range(1000)}
    assert kinds == set(FAULTS)


def test_changes_are_bounded_and_one_pod_is_sure_to_be_placed() -> None:
    chance = random.Random(3)
    full = tuple(Pod(f"u{n}", name) for n, name in enumerate(churn.NAMES))
    crowd = (*full, *(Pod(f"d{n}", f"d{n}", owner="ReplicaSet/d0") for n in range(churn.MOST)))
    for _ in range(200):
        for here in ((), full, crowd):
            operations = churn.draw(chance, here, churn.JOB_NAMES[:1], bind=True)
            assert 1 < len(operations) <= 10
            created = [o for o in operations if o.method == "POST" and o.path == churn.PODS]
            assert created[0].body["metadata"]["annotations"]["gpu-hook.io/memory.c0"] == str(churn.SMALL[0])
            if here is crowd:
                deleted = [o for o in operations if o.method == "DELETE" and o.path.startswith(churn.PODS)]
                assert len(created) <= 1 + len(deleted)
