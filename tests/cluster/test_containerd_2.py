"""containerd 2 of a cluster of today reads what `install` writes, in files of version 2 and 3, in a drop-in, and after its own
migration of a file; `doctor` says so, and `uninstall` takes it out."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from oci_hook.engines import toml_text
from testbed import REPO
from testbed.cluster import lab

GPU_HOOK = str(REPO / ".venv/bin/gpu-hook")
TABLE = """[plugins."{plugin}".containerd]
  default_runtime_name = "runc"
[plugins."{plugin}".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."{plugin}".containerd.runtimes.runc.options]
    SystemdCgroup = true
"""
RUNTIME = "io.containerd.cri.v1.runtime"
FILES = {
    "version 2": "version = 2\n" + TABLE.format(plugin="io.containerd.grpc.v1.cri"),
    "version 3": "version = 3\n" + TABLE.format(plugin=RUNTIME),
    "version 4": "version = 4\n" + TABLE.format(plugin=RUNTIME),
    "drop-in": 'version = 3\nimports = ["conf.d/*.toml"]\n' + TABLE.format(plugin=RUNTIME),
    "drop-in of version 4": 'version = 4\nimports = ["conf.d/*.toml"]\n' + TABLE.format(plugin=RUNTIME),
}
FIRST_WITH_4 = (2, 3)


class Host:
    def __init__(self, folder: Path, text: str) -> None:
        self.root, self.prefix = folder / "host", folder / "prefix"
        self.config = self.root / "etc/containerd/config.toml"
        self.config.parent.mkdir(parents=True)
        self.config.write_text(text)
        (self.root / "usr/bin").mkdir(parents=True)
        (self.root / "usr/bin/containerd").touch()

    def gpu_hook(self, command: str, *options: str) -> str:
        at = [f"--prefix={self.prefix}", f"--host-root={self.root}"]
        done = subprocess.run([GPU_HOOK, command, *at, *options], capture_output=True, text=True)
        assert command == "doctor" or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def containerd(self, *words: str) -> str:
        """What containerd itself makes of the file."""
        command = [lab.programs.program("containerd"), "--config", str(self.config), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def handler(self) -> Any:
        read = toml_text.parse(self.containerd("config", "dump"), self.config)
        return toml_text.get(read, ("plugins", RUNTIME, "containerd", "runtimes", "gpu-hook"))

    def finding(self) -> str:
        return next(line for line in self.gpu_hook("doctor").splitlines() if " containerd " in line)


def newest() -> tuple[int, ...]:
    """The version of the cluster's containerd: 2.1."""
    said = subprocess.run([lab.programs.program("containerd"), "--version"], capture_output=True, text=True, check=True)
    return tuple(map(int, said.stdout.split()[2].lstrip("v").split(".")[:2]))


@pytest.mark.parametrize("name", FILES)
def test_each_version_of_its_configuration(runnable: None, native: Path, tmp_path: Path, name: str) -> None:
    if lab.programs.minor() < 36:
        pytest.skip("this cluster's containerd is 1.6, with which tests/engines has run")
    host = Host(tmp_path, FILES[name])
    if "version 4" in name and newest() < FIRST_WITH_4:
        pytest.skip(f"this cluster's containerd is {newest()}, which does not know version 4")
    host.gpu_hook("install", "--engine=containerd", f"--state-dir={tmp_path}/state")
    assert (host.config.read_text() == FILES[name]) == ("drop-in" in name)
    for migrated in (False, True)[: 1 if "drop-in" in name else 2]:  # with imports, a migrated file has all of them
        if migrated:
            before = host.containerd("config", "migrate")
            host.config.write_text(before)
        handler = host.handler()
        assert handler["options"] == {"BinaryName": f"{host.prefix}/bin/gpu-hook-runtime", "SystemdCgroup": True}
        assert "gpu-hook.io/*" in handler["pod_annotations"] and "gpu-hook.io/*" in handler["container_annotations"]
        assert host.finding().startswith("ok "), host.finding()
    host.gpu_hook("uninstall", "--engine=containerd")
    assert host.handler() is None
    assert toml_text.get(toml_text.parse(host.containerd("config", "dump"), host.config), ("plugins", RUNTIME))
