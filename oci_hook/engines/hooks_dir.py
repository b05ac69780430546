"""hooks.d of podman and CRI-O: hooks that the engine adds to every container whose annotations match."""

import json
import re
from pathlib import Path

from oci_hook.apply.to_spec import HOOK_TIMEOUT
from oci_hook.engines import json_text
from oci_hook.engines.edits import Notes, Registration, Target, annotation_patterns
from oci_hook.errors import refuse

STAGES = ("createRuntime", "poststop")


def paths(folder: Path, stages: tuple[str, ...] = STAGES) -> list[Path]:
    """One file per stage, because a file's hook has the same arguments at all its stages and ours needs the stage."""
    return [folder / f"gpu-hook-{stage}.json" for stage in stages]


def target(path: Path, registration: Registration) -> Target:
    stage = path.stem.rpartition("-")[2]

    def add(text: str | None, notes: Notes) -> str:
        if text is not None:
            raise refuse(
                "GH-508", f"{path} already exists and does not belong to {registration.prefix}; remove it first"
            )
        return document(stage, registration)

    def strip(text: str, notes: Notes) -> str | None:
        try:
            return None if json.loads(text)["hook"]["path"] == registration.hook else text
        except (ValueError, KeyError, TypeError):
            return text

    return Target(path, add, strip, json_text.parse)


def document(stage: str, registration: Registration) -> str:
    hook = {
        "version": "1.0.0",
        "hook": {
            "path": registration.hook,
            "args": ["oci-gpu-hook", stage],
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],  # without env, some runtimes pass the container's own
            "timeout": HOOK_TIMEOUT,
        },
        "when": {"annotations": {matching(): ".*"}},
        "stages": [stage],
    }
    return json.dumps(hook, indent=2) + "\n"


def matching() -> str:
    """One regular expression for all annotations that we read: of several, every one would have to match."""
    words = []
    for pattern in annotation_patterns():
        start, star, _ = pattern.partition("*")
        words.append(re.escape(start) if star else re.escape(pattern) + "$")
    return "^(" + "|".join(word.replace(r"\-", "-").replace(r"\/", "/") for word in dict.fromkeys(words)) + ")"
