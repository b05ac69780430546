"""Inserts and removes single keys and tables of a TOML text; every other byte stays as it was written.

The text is searched line by line, which can go wrong; callers parse the result and compare it with what they expect.
"""

import json
import re
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import ParseError, TOMLKitError

from oci_hook.errors import refuse

Keys = tuple[str, ...]

HEADER = re.compile(r"^[ \t]*\[(?!\[)(.+)\][ \t]*(#.*)?$")
ANY_HEADER = re.compile(r"^[ \t]*\[")
MARK = "  # gpu-hook"


def parse(text: str, path: Path) -> dict[str, Any]:
    """The whole document as plain values. Raises SettingsError GH-506 with line and column."""
    try:
        return tomlkit.parse(text).unwrap()
    except ParseError as e:
        why = str(e).partition(" at line ")[0]
        raise refuse("GH-506", f"{path}:{e.line}:{e.col}: not TOML: {why}; correct it first") from None
    except (TOMLKitError, ValueError, RecursionError) as e:
        raise refuse("GH-506", f"{path}: not TOML: {str(e)[:120]}; correct it first") from None


def header(keys: Keys) -> str:
    return f"[{'.'.join(map(bare, keys))}]"


def bare(key: str) -> str:
    """A key in TOML's syntax."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def value(item: Any) -> str:
    """A value in TOML's syntax, whose strings have the form of JSON's."""
    if isinstance(item, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {value(v)}" for key, v in item.items()) + "}"
    if isinstance(item, list):
        return "[" + ", ".join(value(v) for v in item) + "]"
    return json.dumps(item)


def table_lines(keys: Keys, table: dict[str, Any], indent: str = "") -> list[str]:
    """The lines of a table and its sub-tables, indented like containerd's own files."""
    lines = [indent + header(keys)]
    lines += [f"{indent}  {bare(key)} = {value(item)}" for key, item in table.items() if not isinstance(item, dict)]
    for key, item in table.items():
        if isinstance(item, dict):
            lines += table_lines((*keys, key), item, indent + "  ")
    return lines


def get(data: Any, keys: Keys) -> Any:
    """The value at `keys`, or None."""
    for key in keys:
        if not isinstance(data, dict):
            return None
        data = data.get(key)
    return data


def put(data: dict[str, Any], keys: Keys, item: Any) -> dict[str, Any]:
    """A copy of plain data with `item` at `keys`. Item None removes the key, and tables that become empty."""
    copy = dict(data)
    if len(keys) == 1:
        copy.pop(keys[0], None)
        if item is not None:
            copy[keys[0]] = item
        return copy
    inner = copy.get(keys[0])
    changed = put(inner if isinstance(inner, dict) else {}, keys[1:], item)
    if changed or item is not None:
        copy[keys[0]] = changed
    else:
        copy.pop(keys[0], None)
    return copy


def pruned(data: Any) -> Any:
    """The data without empty tables, which have no meaning here."""
    if not isinstance(data, dict):
        return data
    inner = {key: pruned(item) for key, item in data.items()}
    return {key: item for key, item in inner.items() if item != {}}


def has_header(text: str, table: Keys) -> bool:
    return any(_heads(line, table) for line in text.splitlines())


def set_string(text: str, table: Keys, key: str, item: str) -> str:
    """Set a string in a table that has a header. A new key is marked as ours; an existing key keeps its line."""
    lines = text.splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if _heads(line, table))
    found = _key_line(lines, at, key)
    if found is not None:
        lines[found] = re.sub(
            r"""(=[ \t]*)("(\\.|[^"\\])*"|'[^']*')""", lambda m: m[1] + json.dumps(item), lines[found], count=1
        )
        return "".join(lines)
    if not lines[at].endswith("\n"):
        lines[at] += "\n"
    indent = re.match(r"[ \t]*", lines[at])
    assert indent is not None
    lines.insert(at + 1, f"{indent[0]}  {key} = {json.dumps(item)}{MARK}\n")
    return "".join(lines)


def drop_key(text: str, table: Keys, key: str) -> str:
    lines = text.splitlines(keepends=True)
    at = next((i for i, line in enumerate(lines) if _heads(line, table)), None)
    found = None if at is None else _key_line(lines, at, key)
    if found is not None:
        del lines[found]
    return "".join(lines)


def drop_table(text: str, table: Keys) -> str:
    """The text without the table and its sub-tables; only tables with headers of their own are found."""
    kept, inside = [], False
    for line in text.splitlines(keepends=True):
        if ANY_HEADER.match(line):
            inside = table[-1] in line and (_header_keys(line) or ())[: len(table)] == table
        if not inside:
            kept.append(line)
    return "".join(kept)


def _key_line(lines: list[str], at: int, key: str) -> int | None:
    pattern = re.compile(rf"""^[ \t]*(?:{re.escape(key)}|"{re.escape(key)}"|'{re.escape(key)}')[ \t]*=""")
    for i in range(at + 1, len(lines)):
        if ANY_HEADER.match(lines[i]):
            return None
        if pattern.match(lines[i]):
            return i
    return None


def _heads(line: str, table: Keys) -> bool:
    return table[-1] in line and _header_keys(line) == table


def _header_keys(line: str) -> Keys | None:
    match = HEADER.match(line.rstrip("\r\n"))
    if match is None:
        return None
    try:
        data: Any = tomlkit.parse(f"[{match[1]}]\n").unwrap()
    except (TOMLKitError, ValueError):
        return None
    keys: list[str] = []
    while isinstance(data, dict) and len(data) == 1:
        ((key, data),) = data.items()
        keys.append(key)
    return tuple(keys)
