"""Our OCI hooks in the text of a config.json; every other byte stays as it is. Pure.

Nothing else keeps what was there before, so what has no meaning says it: the order of our stages tells whether `hooks` was left out,
empty or null, and the order of an entry's members whether its stage was an empty list.
"""

from pathlib import Path
from typing import Any

from oci_hook.engines import json_text
from oci_hook.engines.containerd_spec import STAGES, entry
from oci_hook.errors import refuse

ABSENT = ""
ORDERS = {repr({}): STAGES[::-1], repr(None): STAGES[1:] + STAGES[:1]}


def with_hooks(text: str, path: Path, program: str) -> str:
    """The text with our hooks, each the last of its stage, once. Raises SettingsError GH-506."""
    hooks = _hooks(text, path)
    former = json_text.parse(text, path).get("hooks", ABSENT)
    for stage in ORDERS.get(repr(former), STAGES):
        ours = entry(program, stage)
        if hooks.get(stage) == []:
            ours = dict(reversed(ours.items()))
        entries = [*_others(hooks.get(stage), program), ours]
        if hooks.get(stage) != entries:
            keys = ("hooks", stage) if json_text.parse(text, path).get("hooks") is not None else ("hooks",)
            text = json_text.put(text, keys, entries if len(keys) == 2 else {stage: entries})
    return text


def without_hooks(text: str, path: Path, program: str) -> str:
    """The text without our program, in whatever stage, and without what is empty then. Raises SettingsError GH-506."""
    hooks = _hooks(text, path)
    former = next((value for value, order in ORDERS.items() if order == tuple(hooks)), ABSENT)
    for stage, entries in hooks.items():
        left = _others(entries, program)
        if left == (entries or []):
            continue
        if left or next(iter(entries[-1])) != next(iter(entry(program, stage))):
            text = json_text.put(text, ("hooks", stage), left)
        else:
            text = json_text.take(text, ("hooks", stage))
        if not _hooks(text, path) and former == ABSENT:
            text = json_text.take(text, ("hooks",))
        elif not _hooks(text, path):
            text = json_text.put(text, ("hooks",), {} if former == "{}" else None)
    return text


def _hooks(text: str, path: Path) -> dict[str, Any]:
    hooks = json_text.parse(text, path).get("hooks")
    hooks = {} if hooks is None else hooks  # Go writes null for what is empty
    if not isinstance(hooks, dict) or not all(e is None or isinstance(e, list) for e in hooks.values()):
        raise refuse("GH-506", f"{path}: hooks is not an object of lists; correct it first")
    return hooks


def _others(entries: Any, program: str) -> list[Any]:
    return [e for e in entries or () if not isinstance(e, dict) or e.get("path") != program]
