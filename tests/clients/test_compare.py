"""The judge of the two sides, with results made up for it."""

import pytest

from tests.clients import page
from tests.clients.all import clients
from tests.clients.compare import judge
from tests.clients.frame import Case, Known, Limit, Steps, json_steps
from tests.clients.known import KNOWN

CASE = Case("one", ("true",), "nothing", 1, {"free": Limit(8, 1), "pid": Limit(lambda v: v > 0, lambda v: v > 0)})
BOTH: Steps = {"free": 8, "pid": 5, "name": "GPU", "denied": "failed: no"}
SHARE: Steps = BOTH | {"free": 1, "pid": 7}


def test_only_limits_may_differ() -> None:
    verdict = judge("c", CASE, BOTH, SHARE, ())
    assert (verdict.faults, verdict.steps, verdict.succeeded, verdict.stopped, verdict.limits) == ((), 4, 3, 1, 2)


@pytest.mark.parametrize(
    ("bare", "share"),
    [
        (BOTH, SHARE | {"free": 2}),  # not what the limit is
        (BOTH | {"free": 7}, SHARE),
        (BOTH, SHARE | {"free": True}),  # equal to 1, and no number
        (BOTH, SHARE | {"name": "gpu"}),
        (BOTH, SHARE | {"denied": "failed: otherwise"}),  # fails on both sides, in other words
        (BOTH, SHARE | {"more": 1}),
        (BOTH | {"more": 1}, SHARE),
        ({k: v for k, v in BOTH.items() if k != "free"}, {k: v for k, v in SHARE.items() if k != "free"}),
        ({"free": "failed: x"}, {"free": "failed: x"}),
        ({}, {}),
    ],
)
def test_anything_else_is_a_fault(bare: Steps, share: Steps) -> None:
    assert judge("c", CASE, bare, share, ()).faults


def test_a_known_difference_must_be_there_and_be_the_known_one() -> None:
    known = (Known("c", "one", "name", "GPU", "gpu", "because"),)
    assert judge("c", CASE, BOTH, SHARE | {"name": "gpu"}, known).faults == ()
    assert judge("c", CASE, BOTH, SHARE, known).faults
    assert judge("c", CASE, BOTH, SHARE | {"name": "x"}, known).faults
    assert judge("c", CASE, BOTH, SHARE, (Known("c", "one", "gone", 1, 2, "because"),)).faults
    assert judge("other", CASE, BOTH, SHARE | {"name": "gpu"}, known).faults


def test_steps_of_a_program() -> None:
    assert json_steps('talk\n{"step": "a", "is": [1]}\n {"step": "no"}\n') == {"a": [1]}
    with pytest.raises(AssertionError, match="twice"):
        json_steps('{"step": "a", "is": 1}\n{"step": "a", "is": 1}\n')


def test_each_known_difference_is_of_a_case_and_not_a_limit() -> None:
    cases = {(client.name, case.name): case for client in clients() for case in client.cases}
    assert [k for k in KNOWN if k.step in cases[k.client, k.case].limits] == []


def test_the_page_has_what_the_clients_state() -> None:
    text = page.PAGE.read_text()
    assert page.part(text, "differences") == page.differences()
    for client in clients():
        listed = page.part(text, "results").count(f"| {client.name} | {client.version} |")
        if listed or not client.heavy:  # a heavy one may not have run yet
            assert listed == len(client.cases), f"python -m tests.clients {client.name}"
            assert f"\n| {client.name} |" in page.part(text, "costs")
