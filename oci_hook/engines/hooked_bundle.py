"""Our OCI hooks in the text of a config.json; every other byte stays as it is. Pure."""

from pathlib import Path
from typing import Any

from oci_hook.engines import json_text
from oci_hook.engines.containerd_spec import STAGES, entry
from oci_hook.errors import refuse


def with_hooks(text: str, path: Path, program: str) -> str:
    """The text with our hooks, each the last of its stage, once. Raises SettingsError GH-506."""
    hooks = _hooks(text, path)
    for stage in STAGES:
        entries = [*_others(hooks.get(stage), program), entry(program, stage)]
        if hooks.get(stage) != entries:
            keys = ("hooks", stage) if json_text.parse(text, path).get("hooks") is not None else ("hooks",)
            text = json_text.put(text, keys, entries if len(keys) == 2 else {stage: entries})
    return text


def without_hooks(text: str, path: Path, program: str) -> str:
    """The text without our program, in whatever stage, and without what is empty then. Raises SettingsError GH-506."""
    for stage, entries in _hooks(text, path).items():
        left = _others(entries, program)
        if left == (entries or []):
            continue
        text = json_text.put(text, ("hooks", stage), left) if left else json_text.take(text, ("hooks", stage))
        if not _hooks(text, path):
            text = json_text.take(text, ("hooks",))
    return text


def _hooks(text: str, path: Path) -> dict[str, Any]:
    hooks = json_text.parse(text, path).get("hooks")
    hooks = {} if hooks is None else hooks  # Go writes null for what is empty
    if not isinstance(hooks, dict) or not all(e is None or isinstance(e, list) for e in hooks.values()):
        raise refuse("GH-506", f"{path}: hooks is not an object of lists; correct it first")
    return hooks


def _others(entries: Any, program: str) -> list[Any]:
    return [e for e in entries or () if not isinstance(e, dict) or e.get("path") != program]
