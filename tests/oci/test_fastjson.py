import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_hook.oci import fastjson

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    max_leaves=20,
)


@given(VALUES)
def test_round_trip_and_agreement_with_the_package(value: object) -> None:
    assert fastjson.loads(fastjson.dumps(value).encode()) == value
    assert json.loads(fastjson.dumps(value)) == value
    assert fastjson.loads(json.dumps(value, indent=2).encode()) == value


@given(st.binary(max_size=40) | st.text('{}[]",:0tfn eE-+.\\u', max_size=20).map(str.encode))
def test_accepts_exactly_what_the_package_accepts(data: bytes) -> None:
    try:
        expected = json.loads(data.decode("utf-8"))
    except ValueError:
        with pytest.raises(ValueError):
            fastjson.loads(data)
    else:
        assert fastjson.loads(data) == expected


@pytest.mark.parametrize(
    "text", ["", " ", "{", "[1,]", "1 2", "NaN", "[Infinity]", "-", '{"a"}', "[" * 200_000, '"\x01"']
)
def test_refuses_with_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        fastjson.loads(text.encode())


def test_lone_surrogates_survive() -> None:
    assert fastjson.loads(fastjson.dumps(fastjson.loads(b'"\\ud800"')).encode()) == "\ud800"


def test_nan_is_not_written() -> None:
    with pytest.raises(ValueError):
        fastjson.dumps([float("nan")])
    with pytest.raises(TypeError):
        fastjson.dumps({"a": object()})


@pytest.mark.skipif(not hasattr(sys, "get_int_max_str_digits"), reason="before CPython 3.10.7 there is no limit")
def test_a_number_of_thousands_of_digits_is_refused_in_plain_words() -> None:
    with pytest.raises(ValueError, match="^a number has thousands of digits$"):
        fastjson.loads_unique(b'[{"device": ' + b"9" * 5000 + b"}]")
