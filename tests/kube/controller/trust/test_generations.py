"""Generations of the nodes' keys, and the controller's Secret."""

import base64
import json

import pytest

from oci_hook.config import cluster
from oci_hook.core.decision import Decision
from oci_hook.kube.controller.trust import generations, own_secret
from oci_hook.kube.formats.signing import Signer

DAY = 86_400.0


def grown(count: int) -> generations.Secrets:
    have = generations.Secrets()
    for n in range(count):
        have = generations.rotated(have, DAY, n * DAY + 1, bytes([n]) * 32)
    return have


def test_a_new_generation_is_made_when_the_newest_is_old_and_not_before() -> None:
    have = grown(1)
    assert have.newest == 1
    assert generations.rotated(have, DAY, DAY, b"x" * 32) is have
    assert generations.rotated(have, DAY, DAY + 1, b"x" * 32).newest == 2


def test_a_node_is_told_all_generations_since_pods_run_longer_than_keys() -> None:
    have = grown(5)
    assert have.node_keys("n1").keys() == {"1", "2", "3", "4", "5"}
    assert have.node_keys("n1") != have.node_keys("n2")
    first, now = Signer(dict(grown(1).generations)), Signer(dict(have.generations))
    old = first.sign(Decision("uid", "n1", 0, (), ()), 0)
    assert old.generation == 1 and now.holds(old)  # for a pod that runs for months
    assert now.sign(Decision("uid", "n1", 0, (), ()), 1).generation == 5  # for a node with unusable keys only


@pytest.mark.parametrize(
    ("said", "believed"),
    [
        ([], 0),
        ([0, 0], 0),
        ([7], 7),
        ([6, 7], 7),
        ([7] * 9 + [8], 7),  # one node reports a generation that it was not given
        ([7] * 9 + [1 << 40], 7),
        ([1 << 40], 0),
    ],
)
def test_one_node_does_not_say_which_generation_is_the_newest(said: list[int], believed: int) -> None:
    """Otherwise one node could cause a new generation at each look, or one whose number no decision may have."""
    assert generations.believed(said) == believed
    have = generations.rotated(grown(3), DAY, 2 * DAY + 2, b"x" * 32, generations.believed(said))
    assert generations.from_text(generations.to_text(have), have.since) == have


def test_a_generation_made_by_a_clock_far_ahead_is_followed_by_the_next_in_time() -> None:
    have = generations.rotated(grown(2), DAY, 50 * DAY, b"x" * 32)
    right = generations.rotated(have, DAY, 3 * DAY, b"y" * 32)
    assert right.newest == have.newest == 3 and right.since == 3 * DAY
    assert generations.rotated(right, DAY, 3 * DAY + 1, b"y" * 32) is right
    assert generations.rotated(right, DAY, 4 * DAY, b"y" * 32).newest == 4
    assert generations.rotated(right, DAY, 3 * DAY - 299, b"y" * 32) is right


def test_a_secret_that_was_lost_takes_no_number_that_nodes_have() -> None:
    assert generations.rotated(generations.Secrets(), DAY, 0, b"x" * 32, above=7).newest == 8
    assert generations.rotated(grown(3), DAY, 2 * DAY + 2, b"x" * 32, above=3).newest == 3


def test_not_more_than_sixty_four_generations_are_kept() -> None:
    assert len(grown(80).generations) == generations.KEPT and grown(80).newest == 80
    # A node can read its file of them.
    told = {"node": "n" * 253, "keys": grown(80).node_keys("n" * 253)}
    assert len(cluster.parsed(json.dumps(told).encode()).keys) == generations.KEPT


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"1":"00"}', '{"x":"' + "00" * 32 + '"}', '{"0":"' + "00" * 32 + '"}', "7"]
)
def test_what_is_not_generations_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        generations.from_text(text, 0)


def test_the_secret_s_data_comes_back_as_it_was() -> None:
    made = own_secret.renewed(own_secret.Own(), ("a.svc",), DAY, DAY, 1_700_000_000, bytes(range(64)), 0)
    assert own_secret.read(own_secret.data(made)) == made
    assert len(made.webhook_token) == len(made.extender_token) == own_secret.TOKEN
    assert made.webhook_token != made.extender_token
    assert own_secret.renewed(made, ("a.svc",), DAY, DAY, 1_700_000_001, bytes(64), 0) is made


@pytest.mark.parametrize("key", list(own_secret.data(own_secret.Own())))
@pytest.mark.parametrize(
    "value", [None, "", "!", base64.b64encode(b"\xff\xfe").decode(), base64.b64encode(b"[]").decode()]
)
def test_a_damaged_entry_is_made_anew(key: str, value: str | None) -> None:
    made = own_secret.renewed(own_secret.Own(), ("a.svc",), DAY, DAY, 1_700_000_000, bytes(range(64)), 0)
    data = own_secret.data(made)
    data[key] = value  # type: ignore[assignment]
    repaired = own_secret.renewed(own_secret.read(data), ("a.svc",), DAY, DAY, 1_700_000_001, bytes(range(64, 128)), 0)
    assert (
        repaired.certificates.serving
        and repaired.secrets.generations
        and repaired.webhook_token
        and repaired.extender_token
    )


@pytest.mark.parametrize("given", ["", "x", "a" * 31, "a" * 33, "é" * 16])
def test_only_the_token_is_the_token(given: str) -> None:
    assert own_secret.same("a" * 32, "a" * 32)
    assert not own_secret.same("a" * 32, given) and not own_secret.same("", given)
