"""The state document: what a runtime sends is read; anything else is GH-406."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_hook.errors import ApplyError
from oci_hook.oci import state

GOOD = {
    "ociVersion": "1.0.2-dev",
    "id": "box",
    "status": "creating",
    "pid": 4242,
    "bundle": "/b",
    "annotations": {"gpu-hook.io/memory": "1Gi"},
}


def read(document: object) -> state.State:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return state.read(io.BytesIO(data))


def test_what_runc_sends():
    assert read(GOOD) == state.State("box", 4242, "/b", "creating", {"gpu-hook.io/memory": "1Gi"})


@pytest.mark.parametrize("annotations", [None, {}])
def test_what_is_left_out(annotations):
    stopped = {"ociVersion": "1.0.2", "id": "box", "status": "stopped", "bundle": "/b", "annotations": annotations}
    assert read(stopped) == state.State("box", 0, "/b", "stopped", {})


BAD = {
    "empty": b"",
    "garbage": b"\xff\xfe garbage",
    "truncated": json.dumps(GOOD).encode()[:-3],
    "two documents": json.dumps(GOOD).encode() * 2,
    "a list": b"[]",
    "a number": b"7",
    "deep": b"[" * 100_000,
    "large": b" " * (state.LIMIT + 1),
    "large annotations": {**GOOD, "annotations": {"x": "y" * state.LIMIT}},
    "no id": {**GOOD, "id": None},
    "id 7": {**GOOD, "id": 7},
    "id with NUL": {**GOOD, "id": "a\0b"},
    "empty id": {**GOOD, "id": ""},
    "no bundle": {k: v for k, v in GOOD.items() if k != "bundle"},
    "relative bundle": {**GOOD, "bundle": "b"},
    "bundle with NUL": {**GOOD, "bundle": "/b\0"},
    "bundle list": {**GOOD, "bundle": ["/b"]},
    "pid text": {**GOOD, "pid": "4242"},
    "pid negative": {**GOOD, "pid": -1},
    "pid true": {**GOOD, "pid": True},
    "pid fraction": {**GOOD, "pid": 1.5},
    "pid huge": {**GOOD, "pid": 10**30},
    "status list": {**GOOD, "status": []},
    "annotations list": {**GOOD, "annotations": []},
    "annotation number": {**GOOD, "annotations": {"gpu-hook.io/memory": 4}},
    "annotation null": {**GOOD, "annotations": {"gpu-hook.io/memory": None}},
}


@pytest.mark.parametrize("document", BAD.values(), ids=BAD.keys())
def test_refused(document):
    with pytest.raises(ApplyError) as e:
        read(document)
    [line] = str(e.value).splitlines()
    assert line.startswith("GH-406: ") and len(line) < 300


def test_a_state_that_is_too_large_is_read_to_its_end():
    """The runtime still writes it, and crun dies of SIGPIPE where nobody reads."""
    stdin = io.BytesIO(b" " * (3 * state.LIMIT))
    with pytest.raises(ApplyError, match=f"^GH-406: the container's state is larger than {state.LIMIT} bytes; give"):
        state.read(stdin)
    assert stdin.read() == b""


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda c: st.lists(c) | st.dictionaries(st.sampled_from([*GOOD, "x"]), c),
    )
)
def test_any_json(document):
    try:
        read(document)
    except ApplyError as e:
        assert e.problems[0].code == "GH-406"
