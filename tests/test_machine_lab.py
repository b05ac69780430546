"""scripts/machine: what it does without a machine."""

import importlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from testbed import REPO, debian
from testbed.debian import CannotFetch
from testbed.machine import image
from testbed.packages import unpacked

QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64") or ""


def test_modules_come_after_what_they_need(tmp_path: Path) -> None:
    (tmp_path / "modules.dep").write_text(
        "k/virtio_pci.ko.xz: k/virtio_ring.ko.xz k/virtio.ko.xz\nk/virtio.ko.xz:\nk/virtio_ring.ko.xz:\n"
        "k/virtio-blk.ko: k/virtio_ring.ko.xz\n"
    )
    found = list(image._needed(tmp_path, ("virtio_pci", "virtio_blk", "ext4")))
    assert found == ["k/virtio.ko.xz", "k/virtio_ring.ko.xz", "k/virtio_pci.ko.xz", "k/virtio-blk.ko"]


def test_too_little_space_is_said_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(image.os, "geteuid", lambda: 0)
    monkeypatch.setattr(image.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(image.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(image.shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 30))
    with pytest.raises(CannotFetch, match="has 1 GiB of space; a build needs 8 GiB"):
        image.build(image.SUITES["trixie"], print)
    assert not list((tmp_path / "gpu-hook-machine").iterdir())


@pytest.mark.parametrize(("words", "says"), [(["run", "sid", "true"], "sid is not up"), (["down", "sid"], "")])
def test_a_machine_that_is_not_up(words: list[str], says: str, tmp_path: Path) -> None:
    command = ["env", f"TMPDIR={tmp_path}", str(REPO / "scripts/machine"), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, says in done.stderr) == (2 if says else 0, True), done
    assert len(done.stderr.splitlines()) == bool(says) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "seconds", "command"),
    [
        (["--timeout", "5", "trixie", "uname", "-a"], 5, ["uname", "-a"]),
        (["trixie", "--timeout", "5", "uname", "-a"], 5, ["uname", "-a"]),
        (["trixie", "podman", "stop", "--timeout", "5", "box"], 600, ["podman", "stop", "--timeout", "5", "box"]),
    ],
)
def test_options_of_run_end_where_its_command_begins(
    words: list[str], seconds: float, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # the program puts the checkout there
    options = importlib.import_module("testbed.machine.__main__").parser().parse_args(["run", *words])
    assert (options.timeout, options.words) == (seconds, command)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.skipif(
    platform.machine() != "x86_64" or not QEMU, reason="no qemu-aarch64: Debian has it in qemu-user-static"
)
def test_programs_for_arm64_run_where_a_root_is_made_and_nowhere_else() -> None:
    """With this machine's users, since the root's files are theirs."""
    busybox = unpacked("bookworm", "busybox-static", architecture="arm64") / "bin/busybox"
    command = [str(busybox), "sh", "-c", "uname -m; cat /proc/self/uid_map; stat -c %u /etc/passwd"]
    done = debian.emulated(Path(QEMU), command)
    assert (done.returncode, done.stdout.split()) == (0, ["aarch64", "0", "0", "4294967295", "0"]), done
    assert debian.emulated(Path(QEMU), ["sh", "-c", "echo why >&2; exit 3"]).returncode == 3
    with pytest.raises(OSError):
        subprocess.run(command)
