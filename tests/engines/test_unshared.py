"""What an engine says of a container that has no share. tests/engines/test_docker.py asks a real docker."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from oci_hook.core.rules import Rules
from oci_hook.engines import unshared

DOCKER = {
    "Id": "d" * 64,
    "State": {"Status": "running"},
    "HostConfig": {"Runtime": "runc", "DeviceRequests": None},
    "Config": {"Env": ["A=1", "odd"], "Labels": None},
    "Mounts": [],
}
PODMAN = {**DOCKER, "OCIRuntime": "/opt/gpu-hook/bin/gpu-hook-runtime", "HostConfig": {"Runtime": "oci"}}


def find(answers: dict[str, tuple[int, str]], name: str = "web") -> unshared.Container | None:
    def ask(command: Sequence[str]) -> tuple[int, str]:
        assert command[1:] == ("container", "inspect", name)
        return answers.get(command[0], (1, f"{command[0]}: No such file"))

    return unshared.find(name, ask)


def said(data: Any, before: str = "") -> tuple[int, str]:
    return 0, before + json.dumps([data], indent=4) + "\n"


def test_the_engine_that_knows_it() -> None:
    docker, podman = find({"docker": said(DOCKER)}), find({"podman": said(PODMAN, "WARN[0000] cgroups\n")})
    assert docker and (docker.engine, docker.runtime, docker.by_us, docker.env) == ("docker", "runc", False, {"A": "1"})
    assert podman and (podman.engine, podman.by_us) == ("podman", True)
    assert find({}) is None


@pytest.mark.parametrize("answer", ["", "[]", "[\n]", "[\nnull\n]", "[\n{}\n]", '[\n{"Id": "x", "HostConfig": 5}\n]'])
def test_an_answer_of_another_program(answer: str) -> None:
    assert find({"docker": (0, answer)}) is None
    assert find({"docker": (0, answer), "podman": said(PODMAN)}) is not None


@pytest.mark.parametrize("name", ["", "-v", "--help", "a b", "a/b", "é", "x\n"])
def test_names_that_are_no_containers(name: str) -> None:
    assert unshared.find(name, lambda command: pytest.fail(str(command))) is None


def test_whole_gpus_by_docker() -> None:
    wanted = {"DeviceRequests": [{"Capabilities": [["gpu"]]}], "Runtime": "gpu-hook"}
    found = find({"docker": said({**DOCKER, "HostConfig": wanted})})
    assert found and "--gpus asks NVIDIA's toolkit" in unshared.reasons(found, Rules())[0]


def test_podman_by_hooks() -> None:
    found = find({"podman": said({**PODMAN, "OCIRuntime": "crun"})})
    assert found and "register hooks" in unshared.reasons(found, Rules())[-1]
