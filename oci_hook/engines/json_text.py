"""Inserts, replaces and removes single members of a JSON text; every other byte stays as it was written. Of members that are
there twice, the last is meant."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from oci_hook.errors import refuse

_decoder = json.JSONDecoder()
_WHITE = " \t\r\n"
Pairs = list[tuple[str, Any]]


class Member(NamedTuple):
    key: str
    start: int  # of the key
    value: int  # start of the value
    end: int  # after the value


def parse(text: str, path: Path, pairs: Callable[[Pairs], dict[str, Any]] | None = None) -> dict[str, Any]:
    """The object in the text. pairs: makes an object of its members; None refuses those that are there twice. Raises SettingsError
    GH-506 with line and column."""
    try:
        data = json.loads(text, object_pairs_hook=pairs or _unique)
    except json.JSONDecodeError as e:
        raise refuse("GH-506", f"{path}:{e.lineno}:{e.colno}: not JSON: {e.msg}; correct it first") from None
    except RecursionError:
        raise refuse("GH-506", f"{path}: nested too deeply; correct it first") from None
    except ValueError as e:
        raise refuse("GH-506", f"{path}: {e}; remove one of the two") from None
    if not isinstance(data, dict):
        raise refuse("GH-506", f"{path}:1:1: not a JSON object; correct it first")
    return data


def as_go(pairs: Pairs) -> dict[str, Any]:
    """As Go reads members that are there twice (encoding/json): the last counts, to which an object adds those before."""
    data: dict[str, Any] = {}
    for key, value in pairs:
        both = isinstance(value, dict) and isinstance(data.get(key), dict)
        data[key] = {**data[key], **value} if both else value
    return data


def _unique(pairs: Pairs) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        names = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in names if names.count(key) > 1)!r} appears twice")
    return data


def put(text: str, keys: tuple[str, ...], value: object) -> str:
    """Set the member at `keys`; missing objects on the way are created."""
    start = _skip(text, 0)
    outer = ""  # the indentation of the object that `start` is in
    for depth, key in enumerate(keys):
        members, close = _members(text, start)
        found = next((m for m in reversed(members) if m.key == key), None)
        indent = _indent(text, start, members, outer)
        if found is None:
            for name in reversed(keys[depth + 1 :]):
                value = {name: value}
            return _insert(text, start, close, members, key, value, indent, outer)
        if depth == len(keys) - 1:
            return text[: found.value] + _dump(value, indent, outer) + text[found.end :]
        start, outer = found.value, indent or outer
    raise AssertionError("no keys")


def take(text: str, keys: tuple[str, ...]) -> str:
    """Remove the member at `keys`, which must exist."""
    start = _skip(text, 0)
    for key in keys[:-1]:
        start = next(m.value for m in reversed(_members(text, start)[0]) if m.key == key)
    members, close = _members(text, start)
    i = max(i for i, m in enumerate(members) if m.key == keys[-1])
    if i > 0:
        return text[: members[i - 1].end] + text[members[i].end :]
    if len(members) > 1:
        return text[: members[0].start] + text[members[1].start :]
    return text[: start + 1] + text[close:]


def _insert(
    text: str, start: int, close: int, members: list[Member], key: str, value: object, indent: str | None, outer: str
) -> str:
    if indent is None:  # all on one line
        entry = f"{json.dumps(key)}: {json.dumps(value)}"
        at = members[-1].end
        return f"{text[:at]}, {entry}{text[at:]}"
    entry = f"\n{indent}{json.dumps(key)}: {_dump(value, indent, outer)}"
    if members:
        at = members[-1].end
        return f"{text[:at]},{entry}{text[at:]}"
    return f"{text[: start + 1]}{entry}\n{outer}{text[close:]}"


def _indent(text: str, start: int, members: list[Member], outer: str) -> str | None:
    """The indentation of this object's members; None if they are on the line of the brace."""
    if not members:
        return outer + ("\t" if outer.startswith("\t") else outer or "  ")
    before = text[start + 1 : members[0].start]
    return before.rpartition("\n")[2] if "\n" in before else None


def _dump(value: object, indent: str | None, outer: str) -> str:
    if indent is None:
        return json.dumps(value)
    step = indent[len(outer) :] if indent.startswith(outer) else ""
    return json.dumps(value, indent=step or "  ").replace("\n", "\n" + indent)


def _members(text: str, start: int) -> tuple[list[Member], int]:
    """The members of the object that begins at `start`, and the place of its closing brace. The text is valid JSON."""
    members: list[Member] = []
    i = _skip(text, start + 1)
    while text[i] != "}":
        key, after = _decoder.raw_decode(text, i)
        value = _skip(text, _skip(text, after) + 1)
        _, end = _decoder.raw_decode(text, value)
        members.append(Member(key, i, value, end))
        i = _skip(text, end)
        if text[i] == ",":
            i = _skip(text, i + 1)
    return members, i


def _skip(text: str, i: int) -> int:
    while text[i] in _WHITE:
        i += 1
    return i
