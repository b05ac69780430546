"""Containers with a hook of the NVIDIA toolkit are refused, since it mounts over the shims."""

import json
from pathlib import Path
from typing import Any

import pytest

from oci_hook.oci import nvidia_hooks
from testbed.containers import Bundle, Runc
from testbed.installs import Install

ASK = {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": "1Gi"}
# Found in real config.json files: the NVIDIA runtime's legacy mode and docker --gpus; CDI; hooks.d of podman.
RECORDED: dict[str, dict[str, Any]] = {
    "legacy": {
        "prestart": [
            {
                "path": "/usr/bin/nvidia-container-runtime-hook",
                "args": ["nvidia-container-runtime-hook", "prestart"],
                "env": ["PATH=/usr/bin"],
            }
        ]
    },
    "cdi": {
        "createContainer": [
            {
                "path": "/usr/bin/nvidia-cdi-hook",
                "args": ["nvidia-cdi-hook", "create-symlinks", "--link", "libcuda.so.1::/usr/lib/libcuda.so"],
                "env": ["NVIDIA_CTK_DEBUG=false"],
            }
        ]
    },
    "ctk": {"createContainer": [{"path": "/usr/bin/nvidia-ctk", "args": ["nvidia-ctk", "hook", "update-ldcache"]}]},
    "wrapped": {"createRuntime": [{"path": "/bin/env", "args": ["env", "/opt/nvidia-container-toolkit", "prestart"]}]},
}


@pytest.mark.parametrize("name", RECORDED)
def test_known(name: str) -> None:
    assert nvidia_hooks.hook({"hooks": RECORDED[name]}) == next(iter(RECORDED[name].values()))[0]["path"]


@pytest.mark.parametrize(
    "hooks",
    (
        None,
        {},
        [],
        {"prestart": None},
        {"prestart": [None, {}, {"path": 3, "args": [4]}, {"path": "/opt/gpu-hook/bin/oci-gpu-hook", "args": None}]},
        {"prestart": [{"path": "/usr/bin/netavark", "args": ["nvidia", "my-nvidia-ctk-wrapper"]}]},
    ),
)
def test_others(hooks: Any) -> None:
    assert nvidia_hooks.hook({"hooks": hooks}) == ""


@pytest.mark.root
@pytest.mark.parametrize("name", RECORDED)
def test_a_container_with_a_share_is_refused(prefix: Install, bundle: Bundle, runc: Runc, name: str) -> None:
    folder = bundle(ASK, edit=lambda spec: spec.update(hooks=RECORDED[name]))
    before = (folder / "config.json").read_bytes()
    log = folder / "log.json"
    done = runc.create(folder, prefix, flags=("--log", str(log), "--log-format", "json"))
    assert done.returncode == 1
    assert json.loads(log.read_text().splitlines()[-1])["msg"].startswith("GH-409: ")
    assert (folder / "config.json").read_bytes() == before and prefix.grants() == ()


@pytest.mark.root
def test_a_container_without_a_share_is_not_ours_to_judge(
    prefix: Install, bundle: Bundle, runc: Runc, tmp_path: Path
) -> None:
    program = tmp_path / "nvidia-container-runtime-hook"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    hooks = {"prestart": [{"path": str(program), "args": [program.name, "prestart"]}]}
    folder = bundle(args=("true",), edit=lambda spec: spec.update(hooks=hooks))
    done = runc.run(folder, prefix)
    assert done.returncode == 0, done.stderr
