"""docs/reference/json.md lists the keys that commands print with --json: no more, no less."""

import json
import re
from typing import Any

import pytest

from oci_hook.core.grant import Share
from tests.cli.box import Install
from tests.conftest import REPO

PAGE = (REPO / "docs/reference/json.md").read_text()
OPEN = {  # their insides depend on the node
    "gpus[].tier",
    "containers[].findings",
    "containers[].gpus[].gate",
    "annotated_containers",
    "agent.problems",
}
RUNS: dict[str, list[tuple[str, ...]]] = {
    "ps": [("ps",)],
    "gpus": [("gpus",)],
    "explain": [("explain", "-a", "gpu-hook.io/memory=1Gi")],
    "set": [("set", "one", "--memory", "2Gi")],
    "freeze": [("freeze", "one")],
    "release": [("release", "--force", "one")],
    "why": [("why", "one"), ("why", "-a", "gpu-hook.io/memory=30Gi")],
    "top": [("top",)],
    "doctor": [("doctor",)],
}


def keys(data: Any, path: str = "") -> set[str]:
    found: set[str] = set()
    if isinstance(data, dict):
        for key, value in data.items():
            found |= {f"{path}{key}"}
            found |= keys(value, f"{path}{key}.") if f"{path}{key}" not in OPEN else set()
    if isinstance(data, list):
        for item in data:
            found |= keys(item, f"{path.removesuffix('.')}[].")
    return found


def documented(command: str) -> set[str]:
    (section,) = re.findall(rf"^## {command}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    cells = re.findall(r"^\| (`.*?`) \|", section, re.M)
    return {key for cell in cells for key in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize("command", RUNS)
def test_the_page_lists_the_keys(install: Install, command: str) -> None:
    install.grant("one", Share("GPU-0", 4096, 30, slot=1))
    printed: set[str] = set()
    for words in RUNS[command]:
        printed |= keys(json.loads(install.run(*words, "--json").stdout))
    assert printed == documented(command)


def test_a_refusal(install: Install) -> None:
    assert keys(install.data("why", "nobody", status=1)) == {"errors", "errors[].code", "errors[].message"}
