"""The node's check of a decision: only the one that was made for this pod, this node and this request is obeyed."""

import hashlib
import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_hook.core import decision, hmac_sha256
from oci_hook.core.allocate import Allocation, allocate
from oci_hook.core.decided import NodeKeys, decided_share, pinned, shares_of, verify
from oci_hook.core.decision import DecidedShare
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.request import Request, parse
from oci_hook.core.rules import Rules
from oci_hook.errors import GhError
from tests.decisions import KEYS, NODE, OTHER_UID, UID, decided

KNOWN = NodeKeys(NODE, tuple((number, bytes.fromhex(key)) for number, key in KEYS.items()))
GPUS = tuple(f"GPU-{n}" for n in range(4))
RULES = Rules()


@given(st.binary(max_size=200), st.binary(max_size=300))
def test_hmac_is_that_of_the_standard_library(key: bytes, data: bytes) -> None:
    assert hmac_sha256.hexdigest(key, data) == hmac.new(key, data, hashlib.sha256).hexdigest()


def inventory(memory: tuple[int, ...] = (16384, 16384, 8192, 24576)) -> Inventory:
    gpus = tuple(Gpu(GPUS[i], i, i, mib, "G", simulated=True) for i, mib in enumerate(memory))
    return Inventory("", "1", "", True, gpus, (), (), "", "")


def request(**asks: str) -> Request:
    found = parse({f"gpu-hook.io/{key}": value for key, value in asks.items()}, {}, "a", RULES)
    assert found is not None
    return found


def code(call: Any, *arguments: Any) -> str:
    with pytest.raises(GhError) as e:
        call(*arguments)
    (problem,) = e.value.problems
    assert len(str(problem)) < 300 and "\n" not in str(problem)
    return str(problem.code)


def read(text: str) -> decision.Decision:
    return decision.read(text, json.loads)


SHARES = {"a": [DecidedShare("GPU-1", 4096, 30, 100)]}


def test_the_controllers_decision_is_valid_with_each_key() -> None:
    for generation in KEYS:
        verify(read(decided(SHARES, generation=generation)), UID, KNOWN)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (decided(SHARES, uid=OTHER_UID), "GH-603"),  # of another pod
        (decided(SHARES, node="n2"), "GH-603"),  # of another node, whose key may be known to the one who copies it
        (decided(SHARES, key="33" * 32), "GH-602"),
        (decided(SHARES, generation=0, key=KEYS[1]), "GH-602"),  # a key that was dropped
        (decided(SHARES, generation=3, key=KEYS[2]), "GH-606"),  # a key that has not arrived
        (decided(SHARES, generation=1, key=KEYS[2]), "GH-602"),
    ],
)
def test_another_decision_is_not(text: str, expected: str) -> None:
    assert code(verify, read(text), UID, KNOWN) == expected


@pytest.mark.parametrize("part", ["uid", "node", "gen", "c", "t", "sig"])
def test_no_part_can_be_changed(part: str) -> None:
    """Each part of a valid decision is replaced by another one's."""
    data = json.loads(decided(SHARES))
    other = {
        "uid": OTHER_UID,
        "node": "n2",
        "gen": 1,
        "c": {"a": [["GPU-1", 4097, 30, 100]]},
        "t": {"a": ["burst-share", "online"]},
        "sig": "0" * 64,
    }
    changed = read(json.dumps({**data, part: other[part]}))
    assert code(verify, changed, UID, KNOWN) in ("GH-602", "GH-603")


def test_a_pod_of_unknown_uid_has_no_decision() -> None:
    assert code(verify, read(decided(SHARES)), "", KNOWN) == "GH-603"


def test_a_container_must_be_named() -> None:
    found = read(decided(SHARES))
    assert shares_of(found, "a") == tuple(SHARES["a"])
    for name in ("", "b", "A", "a\n", "x" * 1000):
        assert code(shares_of, found, name) == "GH-604"


def test_exactly_these_gpus_and_no_others() -> None:
    asked = request(memory="4Gi", compute="30", gpus="2")
    for names in (("GPU-3", "GPU-1"), ("GPU-0", "GPU-1"), ("GPU-2", "GPU-0")):
        shares = tuple(DecidedShare(name, 4096, 30, 100) for name in names)
        found = allocate(pinned(asked, shares, inventory(), RULES), inventory(), (), RULES)
        assert isinstance(found, Allocation) and tuple(map(decided_share, found.shares)) == shares


@pytest.mark.parametrize(
    ("asks", "shares", "expected"),
    [
        ({"memory": "4Gi"}, [("GPU-9", 4096)], "GH-202"),
        ({"memory": "8Gi"}, [("GPU-0", 4096)], "GH-604"),
        ({"memory": "4Gi"}, [("GPU-0", 4095)], "GH-604"),
        ({"memory": "4Gi"}, [("GPU-0", 4096, 1)], "GH-604"),
        ({"memory": "4Gi", "compute": "9", "compute-limit": "50"}, [("GPU-0", 4096, 9, 100)], "GH-604"),
        ({"memory": "4Gi"}, [("GPU-0", 0)], "GH-604"),
        ({"memory": "4Gi"}, [], "GH-604"),
        ({"memory": "4Gi"}, [("GPU-0", 4096), ("GPU-1", 4096)], "GH-604"),
        ({"memory": "4Gi", "gpus": "2"}, [("GPU-0", 4096), ("GPU-0", 4096)], "GH-604"),
        ({"gpus": "1"}, [("GPU-0", 4096)], "GH-604"),
        ({"memory": "4Gi", "devices": "1"}, [("GPU-0", 4096)], "GH-604"),
        ({"memory": "30%"}, [("GPU-0", 2457)], "GH-604"),
        ({"memory": "4Gi", "devices": "GPU-7"}, [("GPU-0", 4096)], "GH-202"),
        ({"memory": "4Gi", "gpus": "9"}, [("GPU-0", 4096)] * 9, "GH-203"),
    ],
)
def test_a_request_that_is_not_the_decided_one(asks: dict[str, str], shares: list[Any], expected: str) -> None:
    given_shares = tuple(DecidedShare(*share) for share in shares)
    assert code(pinned, request(**asks), given_shares, inventory(), RULES) == expected


def grant(uuid: str, mib: int) -> Grant:
    return Grant(uuid + str(mib), Identity("", uuid, ""), Life(""), (Share(uuid, mib),))


ASKS: list[dict[str, str]] = [
    {"memory": "4Gi"},
    {"memory": "30%", "compute": "20"},
    {"compute": "50", "policy": "fixed-share"},
    {"gpus": "2"},
    {"gpus": "2", "memory": "2Gi"},
    {"gpus": "all", "memory": "1Gi"},
    {"devices": "2,0", "memory": "1Gi"},
    {"exclusive": "true"},
    {"request": '{"a": [{"memory": "6Gi"}, {"memory": "9Gi"}]}'},
]


@given(
    st.sampled_from(ASKS),
    st.lists(st.tuples(st.sampled_from(GPUS), st.integers(1, 8192)), max_size=4),
    st.sampled_from(
        (Rules(), Rules(memory_reserve=500, memory_step=256), Rules(whole_gpus="shared", placement="spread"))
    ),
)
def test_whatever_the_controller_decides_its_node_grants(
    asks: dict[str, str], held: list[tuple[str, int]], rules: Rules
) -> None:
    """What `allocate` chose is, on the same grants, granted again, in the same order; and on an empty node too."""
    asked = parse({f"gpu-hook.io/{key}": value for key, value in asks.items()}, {}, "a", rules, decode=json.loads)
    assert asked is not None
    grants = tuple(grant(uuid, mib) for uuid, mib in held)
    chosen = allocate(asked, inventory(), grants, rules)
    if not isinstance(chosen, Allocation):
        return
    shares = tuple(map(decided_share, chosen.shares))
    again = allocate(pinned(asked, shares, inventory(), rules), inventory(), grants, rules)
    assert isinstance(again, Allocation)
    assert (again.shares, again.exclusive) == (chosen.shares, chosen.exclusive)
    assert isinstance(allocate(pinned(asked, shares, inventory(), rules), inventory(), (), rules), Allocation)
