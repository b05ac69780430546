"""The decision's text: one form, read back as written, refused in every other form."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_hook.core.decision import DecidedShare, DecidedTerms, Decision, read, signed_text, text

SIG = "ab" * 32
NAMES = st.text("abcxyz019-./_", min_size=1, max_size=20)
SHARES = st.builds(DecidedShare, NAMES, st.integers(0, 1 << 24), st.integers(0, 100), st.integers(0, 100))


def decision() -> Decision:
    shares = (DecidedShare("GPU-1", 6144, 30, 50), DecidedShare("GPU-2", 0))
    return Decision(
        "uid-1",
        "n1",
        3,
        (("a", shares), ("b", ())),
        (("a", DecidedTerms("fixed-share", "online")), ("b", DecidedTerms("burst-share", "default"))),
        SIG,
    )


def test_the_text_is_json_in_one_form() -> None:
    made = decision()
    whole = json.loads(text(made))
    assert whole.pop("sig") == SIG
    assert signed_text(made) == json.dumps(whole, separators=(",", ":"), sort_keys=True)
    assert read(text(made), json.loads) == made


@given(st.dictionaries(NAMES, st.lists(SHARES, max_size=3).map(tuple), max_size=4), NAMES, NAMES, st.integers(0, 99))
def test_what_is_written_is_read_back(
    containers: dict[str, tuple[DecidedShare, ...]], uid: str, node: str, gen: int
) -> None:
    terms = tuple((name, DecidedTerms("best-effort", "offline")) for name in sorted(containers))
    made = Decision(uid, node, gen, tuple(sorted(containers.items())), terms, SIG)
    assert read(text(made), json.loads) == made


def changed(**parts: Any) -> str:
    return json.dumps({**json.loads(text(decision())), **parts})


@pytest.mark.parametrize(
    "value",
    [
        *("", "[]", "{}", "{", "1", "null", '{"v":1}', "[" * 100_000, "x" * 70_000),
        *(
            changed(v=2),
            changed(v=True),
            changed(more=1),
            changed(uid=""),
            changed(uid='a"b'),
            changed(uid=1),
            changed(node="n 1"),
        ),
        *(
            changed(gen=-1),
            changed(gen=1.0),
            changed(gen=True),
            changed(sig="AB" * 32),
            changed(sig=""),
            changed(sig=None),
        ),
        *(changed(c={}), changed(c={"a": []}), changed(c={"a": 1, "b": []}), changed(c={"a": [["G", 1, 2]], "b": []})),
        *(
            changed(c={"a": [["G", -1, 0, 0]], "b": []}),
            changed(c={"a": [["G", 1, 101, 0]], "b": []}),
            changed(c={"a": [["G", True, 0, 0]], "b": []}),
        ),
        *(changed(t={"a": ["x", "online"], "b": ["best-effort", "online"]}), changed(t={"a": 1, "b": 2})),
    ],
)
def test_other_text_is_refused(value: str) -> None:
    with pytest.raises(ValueError):
        read(value, json.loads)
