"""Calls between the shim's files go one way: computed from the symbols that each object defines and uses."""

import re
import subprocess
from pathlib import Path

import pytest

from oci_hook.shim import build
from testbed.compiled import ZIG, compiled

HERE = build.HERE
# What the gate is composed of: the member of struct gh_gate, and the files that may touch what is in it.
VALUES = {
    "peers": ["peers"],
    "inflight": ["inflight", "inflight_events", "inflight_tracks"],
    "usage": ["usage", "usage_duty"],
    "prequeue": ["prequeue"],
    "own_slot": ["slot_own"],
    "memory": ["gate_ask"],
    "pacer": ["pacer"],
}
TYPES = {"slot_own": "own_slot", "gate_memory": "memory", "gate_pacer": "pacer"}  # struct -> member; others: the same
# A folder includes headers of those to its left only.
ORDER = ["pages", "process", "account", "driver", "gate", "memory", "nvml", "lookup"]


def symbols(made: Path) -> tuple[set[str], set[str]]:
    """What an object defines, and what it leaves undefined."""
    said = subprocess.run(["nm", "-P", "-g", str(made)], capture_output=True, text=True, check=True).stdout
    rows = [line.split()[:2] for line in said.splitlines()]
    return {name for name, kind in rows if kind != "U"}, {name for name, kind in rows if kind == "U"}


def calls(library: build.Library, shim: Path) -> dict[str, set[str]]:
    """File -> the files of the same library whose functions or data it uses."""
    include = [f"-I{shim / 'shim' / library.soname.split('.')[0]}", f"-I{HERE}"]
    compiler = [*ZIG, "-std=c11", "-O0", "-fPIC", "-w", *include]
    defined, used = {}, {}
    for path in library.files():
        name = str(Path(path).relative_to(HERE))
        defined[name], used[name] = symbols(compiled(Path(path).stem + ".o", [*compiler, "-c", path]))
    owner = {symbol: name for name, found in defined.items() for symbol in found}
    return {name: {owner[s] for s in found if s in owner} - {name} for name, found in used.items()}


def circles(arrows: dict[str, set[str]]) -> list[set[str]]:
    """The sets of more than one file that reach each other."""

    def reach(start: str) -> set[str]:
        found, left = set(), [start]
        while left:
            for to in arrows[left.pop()] - found:
                found.add(to)
                left.append(to)
        return found

    reached = {name: reach(name) for name in arrows}
    tied = {name: {other for other in reached[name] if name in reached[other]} for name in arrows}
    return [set(found) for found in {frozenset(found) for found in tied.values() if len(found) > 1}]


@pytest.mark.parametrize("library", build.LIBRARIES, ids=lambda library: library.soname)
def test_calls_go_one_way(library: build.Library, shim: Path) -> None:
    arrows = calls(library, shim)
    assert len(arrows) == len(library.files())
    assert circles(arrows) == []


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]


def test_folders_include_downwards() -> None:
    wrong = []
    for path in sorted([*HERE.rglob("*.c"), *HERE.rglob("*.h")]):
        folder = path.relative_to(HERE).parts[0]
        for there in re.findall(r'#include "(\w+)/', path.read_text()):
            if ORDER.index(there) > ORDER.index(folder):
                wrong.append(f"{path.relative_to(HERE)} includes {there}/")
    assert wrong == []
    assert sorted(ORDER) == sorted(p.name for p in HERE.iterdir() if p.is_dir() and any(p.glob("*.c")))


def strangers(name: str, text: str) -> list[str]:
    """Where a file of the gate touches a member of a value that is not its own."""
    found = []
    for value, own in VALUES.items():
        if name in own:
            continue
        kinds = "|".join(kind for kind in {value, *TYPES} if TYPES.get(kind, kind) == value)
        named = set(re.findall(rf"\bstruct (?:{kinds}) \*?(\w+)\b", text)) | {f"g->{value}"}
        for variable in sorted(named):
            found += re.findall(rf"(?<![\w.>]){re.escape(variable)}(?:\.|->)(?![ch]\b)\w+", text)  # not a file name
    return found


def test_only_its_own_files_touch_a_value_of_the_gate() -> None:
    """struct gh_gate is no bag: whoever needs something of a value calls a function of it."""
    files = sorted([*(HERE / "gate").glob("*.c"), *(HERE / "gate").glob("*.h")])
    found = {path.name: strangers(path.stem, path.read_text()) for path in files}
    assert {name: where for name, where in found.items() if where} == {}
    assert {name for names in VALUES.values() for name in names} <= {path.stem for path in files}


def test_a_stranger_is_found() -> None:
    text = "struct inflight *f = &g->inflight; f->done++; g->usage.looks = own.inflight; peers_me(&g->peers);"
    assert strangers("gate", text) == ["f->done", "g->usage.looks"]
    assert strangers("inflight", text) == ["g->usage.looks"]
