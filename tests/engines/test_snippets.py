"""runtime-config/: what a user copies by hand is what `gpu-hook install` writes."""

import json
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from oci_hook.engines import register
from oci_hook.engines.edits import Registration, annotation_patterns
from tests.conftest import REPO

SNIPPETS = REPO / "runtime-config"


def parsed(name: str, text: str) -> Any:
    return json.loads(text) if name.endswith(".json") else tomlkit.parse(text).unwrap()


@pytest.mark.parametrize("engine", ("docker", "podman", "crio"))
def test_as_installed(engine: str) -> None:
    ((_, _, files),) = register.printed((engine,), Registration("/opt/gpu-hook"))
    names = {Path(path).name: text for path, text in files}
    assert {p.name for p in (SNIPPETS / engine).iterdir()} - {"README.md"} == set(names)
    for name, text in names.items():
        assert parsed(name, (SNIPPETS / engine / name).read_text()) == parsed(name, text)


def test_containerd() -> None:
    """But for SystemdCgroup, which is copied from the machine's own runc."""
    ((_, _, ((_, text),)),) = register.printed(("containerd",), Registration("/opt/gpu-hook"))
    path = ("plugins", "io.containerd.grpc.v1.cri", "containerd", "runtimes", "gpu-hook")
    ours, theirs = parsed("", text), parsed("", (SNIPPETS / "containerd/config.toml").read_text())
    for key in path:
        ours, theirs = ours[key], theirs[key]
    assert theirs["options"].pop("SystemdCgroup") is True
    assert theirs == ours
    assert ours["pod_annotations"] == annotation_patterns()
