"""runtime-config/: what a user copies by hand is what `gpu-hook install` writes."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import tomlkit

from oci_hook.core.request import parse
from oci_hook.core.rules import Rules
from oci_hook.engines import register
from oci_hook.engines.edits import Registration, pod_patterns
from oci_hook.oci import request_mounts
from testbed import REPO

SNIPPETS = REPO / "runtime-config"
COMPOSE = {"compose.yaml", "compose-before-24.yaml"}  # tests/engines/test_run_line.py


def parsed(name: str, text: str) -> Any:
    return json.loads(text) if name.endswith(".json") else tomlkit.parse(text).unwrap()


@pytest.mark.parametrize("engine", ("docker", "podman", "crio"))
def test_as_installed(engine: str) -> None:
    ((_, _, files),) = register.printed((engine,), Registration("/opt/gpu-hook"))
    names = {Path(path).name: text for path, text in files}
    assert {p.name for p in (SNIPPETS / engine).iterdir()} - {"README.md", *COMPOSE} == set(names)
    for name, text in names.items():
        assert parsed(name, (SNIPPETS / engine / name).read_text()) == parsed(name, text)


def test_containerd() -> None:
    """But for SystemdCgroup, which is copied from the machine's own runc."""
    ((_, _, ((_, text), *_)),) = register.printed(("containerd",), Registration("/opt/gpu-hook"))
    path = ("plugins", "io.containerd.grpc.v1.cri", "containerd", "runtimes", "gpu-hook")
    ours, theirs = parsed("", text), parsed("", (SNIPPETS / "containerd/config.toml").read_text())
    for key in path:
        ours, theirs = ours[key], theirs[key]
    assert theirs["options"].pop("SystemdCgroup") is True
    assert theirs == ours
    assert ours["pod_annotations"] == pod_patterns()


# The parts of k3s' own template (pkg/agent/templates) that ours must go with; rke2 has the same.
K3S = """version = {version}
[plugins.'{plugin}'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'{plugin}'.containerd.runtimes.runc.options]
  SystemdCgroup = {{{{ .SystemdCgroup }}}}
"""


@pytest.mark.parametrize(
    "name, version, plugin",
    (
        ("config.toml.tmpl", 2, "io.containerd.grpc.v1.cri"),
        ("config-v3.toml.tmpl", 3, "io.containerd.cri.v1.runtime"),
    ),
)
def test_k3s_template(name: str, version: int, plugin: str) -> None:
    """Rendered as k3s does it: one version line, and both runtimes with the same cgroup driver."""
    ((_, _, files),) = register.printed(("containerd",), Registration("/opt/gpu-hook"))
    (text,) = (text for path, text in files if path == f"/var/lib/rancher/k3s/agent/etc/containerd/{name}")
    text = text.replace('{{ template "base" . }}', K3S.format(version=version, plugin=plugin))
    data = parsed(name, text.replace("{{ .SystemdCgroup }}", "true"))
    assert "{{" not in text.replace("{{ .SystemdCgroup }}", "") and data["version"] == version
    runtimes = data["plugins"][plugin]["containerd"]["runtimes"]
    assert set(runtimes) == {"runc", "gpu-hook"}
    ours = runtimes["gpu-hook"]
    assert ours["options"] == {"BinaryName": "/opt/gpu-hook/bin/gpu-hook-runtime", "SystemdCgroup": True}
    assert ours["pod_annotations"] == pod_patterns()


def test_k0s_drop_in() -> None:
    """k0s 1.36 does not start beside a file of version 2; before, its containerd is 1.7, which knows no other."""
    ((_, _, files),) = register.printed(("containerd",), Registration("/opt/gpu-hook"))
    (new,) = (text for path, text in files if path.startswith("/etc/k0s/containerd.d/"))
    for text, version, plugin in (
        (files[0][1], 2, "io.containerd.grpc.v1.cri"),
        (new, 3, "io.containerd.cri.v1.runtime"),
    ):
        data = parsed("", text)
        assert data["version"] == version and set(data) == {"version", "plugins"} and set(data["plugins"]) == {plugin}
        assert "gpu-hook" in data["plugins"][plugin]["containerd"]["runtimes"]


def test_jupyterhub(monkeypatch: pytest.MonkeyPatch) -> None:
    """ml.md's two ways to ask from JupyterHub say the same."""
    for module in ("docker", "docker.errors", "dockerspawner", "tornado", "tornado.web"):
        monkeypatch.setitem(sys.modules, module, MagicMock(DockerSpawner=object))
    by_annotations, by_mounts, by_profile = re.findall(
        r"^```python\n(.*?)^```$", (REPO / "docs/guide/ml.md").read_text(), re.M | re.S
    )
    names: dict[str, Any] = {"c": MagicMock()}
    exec(by_annotations, names)
    config = names["c"]
    user = SimpleNamespace(user_options=config.Spawner.options_from_form({"size": ["half"]}), mounts=[])
    host = config.DockerSpawner.extra_create_kwargs(user)["host_config"]
    assert host["Runtime"] == "gpu-hook" and "<option>half" in config.Spawner.options_form
    request = parse(host["Annotations"], {}, "", Rules())
    assert request is not None and request.gpus[0].memory
    exec(by_mounts, names)
    config.Spawner.pre_spawn_hook(user)
    mounts = [{"destination": mount["target"], "source": mount["source"]} for mount in user.mounts]
    assert parse({}, {}, "", Rules(), request_mounts.mounts({"mounts": mounts})) == request
    exec(by_profile, names)
    (profile,) = config.KubeSpawner.profile_list
    asks = profile["kubespawner_override"]["extra_annotations"]
    assert parse(asks, {}, "notebook", Rules()) and not parse(asks, {}, "block-cloud-metadata", Rules())
