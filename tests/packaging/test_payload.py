"""Every command starts with nothing but Python's standard library and what a package brings."""

import importlib
import json
import platform
import subprocess
import tarfile
from pathlib import Path

import pytest

from oci_hook.cli.main import COMMANDS
from testbed import REPO

pytestmark = pytest.mark.slow
HELP = """
import sys
import tarfile
sys.path.insert(0, sys.argv[1])
import click
from oci_hook.cli.main import COMMANDS, Absent, cli

def walk(command, path):
    assert not isinstance(command, Absent), (path, command.why)
    with click.Context(command, info_name=path) as context:
        assert command.get_help(context)
        for name in command.list_commands(context) if isinstance(command, click.Group) else ():
            walk(command.get_command(context, name), f"{path} {name}")
    print(path)

for name in COMMANDS:
    if name != "sim":  # a package of its own
        walk(cli.get_command(click.Context(cli), name), name)
from oci_hook.cli.top import Screen
from rich.console import Console
from rich.table import Table
Console(file=sys.stderr).print(Table("what `top` draws"))
"""


@pytest.mark.parametrize("kind", ["rpm", "image"])
def test_every_command_starts(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPO / "packaging"))
    package, payload = importlib.import_module(kind), importlib.import_module("payload")
    payload.lay(tmp_path, package.contents(platform.machine()))
    (modules,) = [path.parent for path in tmp_path.rglob("oci_hook") if path.is_dir()]
    (python,) = modules.glob("python-*/bin/python3")
    run = [str(python), "-I", "-S", "-c", HELP, str(modules)]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} == set(COMMANDS) - {"sim"}


def test_an_rpm_without_rpmbuild_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPO / "packaging"))
    rpm = importlib.import_module("rpm")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"needs rpmbuild \(apt install rpm"):
        rpm.pack(tmp_path, "x86_64", "gpu-hook", tmp_path, {})


def test_an_image_says_what_it_is_and_offers_busyboxs_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPO / "packaging"))
    image, busybox = importlib.import_module("image"), importlib.import_module("busybox")
    with tarfile.open(image.write(tmp_path, image.NAME, "amd64", b"", {}, "scripts/package image")) as tar:
        described = json.loads(tar.extractfile("manifest.json").read())[0]  # type: ignore[union-attr]
        labels = json.loads(tar.extractfile(described["Config"]).read())["config"]["Labels"]  # type: ignore[union-attr]
    labels = {key.removeprefix("org.opencontainers.image."): text for key, text in labels.items()}
    assert labels["title"] == "gpu-hook/install" and labels["licenses"] == "Apache-2.0"
    assert labels["version"] == image.VERSION and labels["created"].endswith("Z")
    assert labels.get("revision", "") == importlib.import_module("payload").commit()
    text = busybox.source(b"\0BusyBox v1.35.0 (Debian 1:1.35.0-4+b5)\0")
    assert "BusyBox 1:1.35.0-4+b5, under" in text and "source package busybox" in text
