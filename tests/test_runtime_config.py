"""The snippets that users copy: valid in their engine's format, and naming what an install really has."""

import json
from pathlib import Path

import tomlkit
import yaml

from oci_hook.core import layout

SNIPPETS = Path(__file__).resolve().parent.parent / "runtime-config"
RUNTIME = "/opt/gpu-hook/bin/gpu-hook-runtime"


def test_docker() -> None:
    assert json.loads((SNIPPETS / "docker/daemon.json").read_text()) == {"runtimes": {"gpu-hook": {"path": RUNTIME}}}


def test_containerd() -> None:
    config = tomlkit.parse((SNIPPETS / "containerd/config.toml").read_text()).unwrap()
    assert config["version"] == 2
    handler = config["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]["gpu-hook"]
    assert handler["runtime_type"] == "io.containerd.runc.v2"
    assert handler["options"]["BinaryName"] == RUNTIME
    assert handler["pod_annotations"][0] == layout.PREFIX_KEY + "*"


def test_runtime_class_names_the_handler() -> None:
    document = yaml.safe_load((SNIPPETS / "containerd/runtimeclass.yaml").read_text())
    assert (document["kind"], document["handler"]) == ("RuntimeClass", "gpu-hook")
