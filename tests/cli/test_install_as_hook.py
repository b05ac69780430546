"""`install --as hook` for engines that have no such way: refused before anything is installed. (containerd: tests/engines.)"""

import json
from pathlib import Path

import pytest

from oci_hook.engines import containerd_spec
from oci_hook.engines.edits import Registration
from oci_hook.errors import GhError
from tests.cli.box import Install


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "--as hook is for one engine; name it: --engine containerd"),
        (("--engine", "docker"), "docker adds no OCI hooks to containers"),
        (("--engine", "podman"), "podman gets hooks and the runtime by a plain"),
        (("--engine", "crio"), "CRI-O gets hooks and the runtime by a plain"),
        (("--engine", "runc"), "runc has no configuration; `gpu-hook bundle DIR` adds hooks to a bundle"),
        (("--engine", "containerd", "--engine", "docker"), "docker adds no OCI hooks"),
    ],
)
def test_engines_without_that_way(install: Install, args: tuple[str, ...], says: str) -> None:
    before = sorted(install.prefix.rglob("*"))
    assert f"GH-506: {says}" in install.text("install", "--as", "hook", *args, status=1)
    assert sorted(install.prefix.rglob("*")) == before


def test_which_way(tmp_path: Path) -> None:
    """As said; else as it is."""
    found = {way: Registration(str(tmp_path), way=way) for way in ("", "runtime", "hook")}
    assert [containerd_spec.is_used(r) for r in found.values()] == [False, False, True]
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/containerd-base-spec.json").write_text("{}")
    assert containerd_spec.is_used(found[""]) and containerd_spec.is_used(found["hook"])
    with pytest.raises(GhError, match="GH-508: containerd is registered by hooks"):
        containerd_spec.is_used(found["runtime"])


@pytest.mark.parametrize("ctr", ["exit 1", "echo []", "echo junk", None])
def test_without_a_spec_to_begin_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ctr: str | None) -> None:
    if ctr is not None:
        (tmp_path / "ctr").write_text(f"#!/bin/sh\n{ctr}\n")
        (tmp_path / "ctr").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GhError, match="GH-505: `ctr oci spec`"):
        containerd_spec.document(Registration(str(tmp_path)))


def test_the_spec_that_it_begins_with_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ctr").write_text('#!/bin/sh\necho \'{"ociVersion": "1.0.2", "process": {"cwd": "/"}}\'\n')
    (tmp_path / "ctr").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    spec = json.loads(containerd_spec.document(Registration("/p")))
    assert spec.pop("hooks") == containerd_spec.hooks("/p/bin/oci-gpu-hook")
    assert spec == {"ociVersion": "1.0.2", "process": {"cwd": "/"}}
