"""docs/reference/json.md has the keys that the commands print, and no others."""

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from testbed import REPO
from tests.e2e.test_readme import ENTER, NAMESPACE
from tests.e2e.test_troubleshooting import NODE

COMMANDS = {
    "ps": "ps",
    "gpus": "gpus",
    "top": "top --once --processes",
    "set": "set web --memory 6Gi",
    "freeze": "freeze web",
    "suspend": "suspend web",
    "why": "why web",
    "explain": "explain -a gpu-hook.io/memory=4Gi",
    "doctor": "doctor",
    "events": "events",
    "install": "install --engine podman --config /tmp/containers.conf",
    "settings": "settings show",
}

# No process of that node uses a GPU; tests/cli/test_top.py compares these.
OF_PROCESSES = {"pid", "start", "user", "command", "percent_of_limit"}


def keys(value: Any) -> Iterator[str]:
    """Of objects at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


def words(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", text))


@pytest.mark.root
def test_the_keys_of_each_command() -> None:
    page = (REPO / "docs/reference/json.md").read_text()
    sections = dict(re.findall(r"^## (\w[^\n]*)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    script = f"{NAMESPACE}cd '{REPO}'\n{NODE}"
    for name, command in COMMANDS.items():
        script += f"echo '@@ {name}'\ngpu-hook {command} --json\n"
    argv = [*ENTER, script]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=300)
    printed = dict(re.findall(r"^@@ (\w+)\n(.*?)(?=^@@|\Z)", done.stdout, re.M | re.S))
    common = words(sections.pop("Common keys"))
    assert list(sections) == list(COMMANDS) == list(printed)
    for name, text in printed.items():
        found = json.loads(text) if text.startswith("{\n") else [json.loads(line) for line in text.splitlines()]
        if name == "settings":  # tests/cli/test_error_pages.py compares the settings with their page
            found = {"settings": {"rules": found["settings"]["rules"] and None}}
        missing = set(keys(found)) - words(sections[name]) - common
        assert not missing, f"{name}: not on the page: {missing}"
        other = (
            words(sections[name])
            - set(keys(found))
            - common
            - {"resume", "events", "granted", "changed", "slot", "false", "null", "uninstall", "check", "set"}
            - (OF_PROCESSES | {"page"} if name == "top" else set())  # page: of an agent that runs
            - ({"stopped_by_agent"} if name == "why" else set())  # of one that has ended
            - ({"place", "text", "left"} if name == "install" else set())  # of --print and uninstall
        )
        assert not other, f"{name}: on the page alone: {other}"
