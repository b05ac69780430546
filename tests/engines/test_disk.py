"""Registration on file systems that cannot be written to: refused with its code, and nothing is half done."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import REPO
from tests.engines.test_register import Host

pytestmark = pytest.mark.root


def in_namespace(script: str, host: Host, *engines: str) -> "subprocess.CompletedProcess[str]":
    """`gpu-hook install` after `script`, in a mount namespace; then the host's files, to look at."""
    engine = " ".join(f"--engine {name}" for name in engines)
    where = f"--prefix {host.prefix} --host-root {host.root} --state-dir {host.prefix}/state"
    install = f"{shlex.quote(sys.executable)} -m oci_hook install {engine} {where}"
    script = f"set -e; {script}; s=0; {install} || s=$?; find {host.root}/etc -type f -exec tail -n +1 {{}} +; exit $s"
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPO)


@pytest.fixture
def host(native: Path, tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_read_only_etc(host: Host) -> None:
    host.file("etc/docker/daemon.json", '{"debug": true}')
    done = in_namespace(f"mount --bind {host.root} {host.root}; mount -o remount,bind,ro {host.root}", host, "docker")
    assert done.returncode == 1
    assert done.stderr.startswith("GH-507: ") and done.stderr.endswith("is unchanged; use --print\n")
    assert '{"debug": true}' in done.stdout and "gpu-hook" not in done.stdout.partition("installed in")[0]


def test_a_drop_in_folder_that_is_a_mount(host: Host) -> None:
    """Of the same file system, as a container has the host's: the kernel renames no file into it all the same."""
    folder = host.root / "etc/containers/containers.conf.d"
    folder.mkdir(parents=True)
    done = in_namespace(f"mount --bind {folder} {folder}", host, "podman")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in folder.iterdir()] == ["gpu-hook.conf"]
    assert not list(folder.parent.glob(".*"))


def test_a_read_only_prefix(host: Host) -> None:
    done = in_namespace(f"mount -t tmpfs -o ro,mode=755 tmpfs {host.prefix}", host)
    said = done.stderr.splitlines()[0]
    assert done.returncode == 1
    assert said.startswith("GH-504: ") and "is mounted read-only; choose another --prefix" in said


def test_disk_full(host: Host) -> None:
    etc = host.root / "etc"
    etc.mkdir()
    script = (
        f"mount -t tmpfs -o size=16k tmpfs {etc}; mkdir {etc}/docker; printf '{{}}' >{etc}/docker/daemon.json;"
        f" dd if=/dev/zero of={etc}/full bs=4k 2>/dev/null || true"
    )
    done = in_namespace(script, host, "docker")
    assert done.returncode == 1
    assert "GH-507: " in done.stderr and "No space left" in done.stderr and "it is unchanged" in done.stderr
    assert "{}" in done.stdout and "gpu-hook-new" not in done.stdout and "runtimes" not in done.stdout
