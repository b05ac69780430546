"""The images for arm64, built on another machine: what is in them is for arm64, and their programs run under qemu-user."""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from oci_hook.install import prefix
from oci_hook.linux import elf
from testbed import REPO
from testbed.long import long

QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64") or ""
pytestmark = pytest.mark.slow


def build(out: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-B", str(REPO / "packaging/build.py"), *words, "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env})


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("arm64")
    done = build(out, "image", "--arch", "arm64", SOURCE_DATE_EPOCH="1700000000")
    if "apt here has no busybox-static" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    (file,) = out.glob("gpu-hook-install_*_arm64.tar")
    assert done.stdout == f"{file}\n"
    return file


@pytest.fixture(scope="module")
def root(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's files."""
    return unpacked(archive, tmp_path_factory.mktemp("root"))


def unpacked(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as tar:
        manifest: Any = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
        (layer,) = manifest[0]["Layers"]
        data = tar.extractfile(layer)
        assert data
        with tarfile.open(fileobj=io.BytesIO(data.read())) as files:
            files.extractall(folder, filter="tar")
    return folder


def programs(root: Path) -> dict[str, int]:
    """The machine of each ELF file of an image."""
    found = {}
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with open(path, "rb") as f:
                if facts := elf.read(f.fileno()):
                    found[str(path.relative_to(root))] = facts.machine
    return found


def test_every_program_in_it_is_for_arm64(root: Path) -> None:
    native = "gpu-hook/oci_hook/native/aarch64"
    names = (*prefix.PROGRAMS, *prefix.SHIMS)  # what an install copies
    found = programs(root)
    own = {name for name in found if name.startswith("gpu-hook/python-")}
    assert set(found) - own == {"bin/busybox", "gpu-hook/gpu-hook", *(f"{native}/{name}" for name in names)}
    assert len(own) > 15 and set(found.values()) == {elf.MACHINES["aarch64"]}


def test_it_says_so(archive: Path) -> None:
    with tarfile.open(archive) as tar:

        def read(name: str) -> Any:
            return json.load(tar.extractfile(name))  # type: ignore[arg-type]

        (entry,) = read("index.json")["manifests"]
        assert entry["platform"] == {"architecture": "arm64", "os": "linux"}
        assert read(read("manifest.json")[0]["Config"])["architecture"] == "arm64"


@pytest.mark.skipif(not QEMU, reason="no qemu-aarch64: Debian has it in qemu-user-static")
def test_its_busybox_runs_and_reads_the_program(root: Path) -> None:
    def busybox(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [QEMU, str(root / "bin/busybox"), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert busybox("sh", "-n", str(root / "install")).returncode == 0
    applets = set(busybox("--list").stdout.split())
    linked = {path.name for path in (root / "bin").iterdir() if path.is_symlink()}
    assert linked and linked <= applets
    said = busybox("sh", "-c", f'HOST_ROOT=/none PREFIX=/opt . "{root}/install"')
    assert said.returncode == 1 and "PREFIX=/opt is not a path like /opt/gpu-hook" in said.stdout


if long():  # it downloads 40 MB and takes half a minute of a processor

    def test_the_controllers_image(tmp_path: Path) -> None:
        done = build(tmp_path, "controller-image", "--arch", "arm64")
        assert done.returncode == 0, done.stderr
        (file,) = tmp_path.glob("gpu-hook-controller_*_arm64.tar")
        root = unpacked(file, tmp_path / "root")
        found = programs(root)
        assert len(found) > 20 and set(found.values()) == {elf.MACHINES["aarch64"]}
        if not QEMU:
            pytest.skip("no qemu-aarch64: Debian has it in qemu-user-static")
        start = [QEMU, "-L", str(root), str(root / "usr/bin/python3.11"), "-I"]
        modules = "aiohttp, cryptography.x509, msgspec, yaml, click, oci_hook.kube.controller.controller"
        program = (
            f"import sys; sys.path.insert(0, {str(root / 'gpu-hook')!r}); import {modules}; print(sys.version_info[:2])"
        )
        ran = subprocess.run([*start, "-c", program], capture_output=True, text=True, timeout=300)
        assert ran.stdout == "(3, 11)\n", ran.stderr


def test_the_same_sources_give_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    assert build(tmp_path, "image", "--arch", "aarch64", SOURCE_DATE_EPOCH="1700000000").returncode == 0
    assert (tmp_path / archive.name).read_bytes() == archive.read_bytes()


@pytest.mark.parametrize(
    ("contents", "why"),
    [(None, "cannot be read"), (b"#!/bin/sh\n", "is no program for aarch64"), (b"", "is no program for aarch64")],
)
def test_a_busybox_that_is_none(tmp_path: Path, contents: bytes | None, why: str) -> None:
    file = tmp_path / "busybox"
    if contents is not None:
        file.write_bytes(contents)
    done = build(tmp_path, "image", "--arch", "arm64", GPU_HOOK_BUSYBOX=str(file))
    assert done.returncode == 1 and f"{file} {why}" in done.stderr and "Traceback" not in done.stderr


def test_a_busybox_of_this_machine_or_with_a_loader(tmp_path: Path) -> None:
    arch = os.uname().machine
    other = "arm64" if arch == "x86_64" else "amd64"
    done = build(tmp_path, "image", "--arch", other, GPU_HOOK_BUSYBOX=sys.executable)
    assert done.returncode == 1 and "is no program for" in done.stderr
    done = build(tmp_path, "image", GPU_HOOK_BUSYBOX=os.path.realpath(shutil.which("env") or "/usr/bin/env"))
    assert done.returncode == 1 and "needs a dynamic loader" in done.stderr


def test_wheels_are_for_this_machine(tmp_path: Path) -> None:
    other = "arm64" if os.uname().machine == "x86_64" else "amd64"
    done = build(tmp_path, "wheel", "--arch", other)
    assert done.returncode == 2 and "build it on such a machine" in done.stderr
    assert "invalid choice: 'sparc'" in build(tmp_path, "image", "--arch", "sparc").stderr
