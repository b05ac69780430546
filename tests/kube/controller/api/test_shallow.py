"""Objects of thousands of levels can be read: values that are too deep become null, and nothing else changes."""

import json
import random
from typing import Any

import msgspec
import pytest

from oci_hook.kube.controller.api.objects import EVENTS, PODS
from oci_hook.kube.controller.api.shallow import decode
from oci_hook.kube.formats.shallow import MOST, loads, shallow


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
    assert decode(text.encode())["metadata"]["name"] == loads(text.encode())["metadata"]["name"] == "p"


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
    with pytest.raises(ValueError, match="ends too early|Expecting"):
        loads(text)
