"""`scripts/package push`: both images in a real registry, and the kustomization that names them there."""

import importlib.util
import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import REPO
from testbed.until import until

BASE = REPO / "packaging/kubernetes"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """HOST:PORT of docker-registry, without TLS."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{s.getsockname()[1]}"
    storage = {"filesystem": {"rootdirectory": str(tmp_path / "registry")}}
    file = tmp_path / "registry.yaml"
    file.write_text(yaml.safe_dump({"version": 0.1, "storage": storage, "http": {"addr": host}}))
    process = subprocess.Popen(["docker-registry", "serve", file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: answers(host))
        yield host
    finally:
        process.terminate()
        process.wait()


def answers(host: str) -> bool:
    try:
        return get(host, "") == {}
    except OSError:
        return False


def get(host: str, path: str) -> Any:
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    with urllib.request.urlopen(urllib.request.Request(f"http://{host}/v2/{path}", headers=accept)) as answer:
        return json.load(answer)


def with_small_images(monkeypatch: pytest.MonkeyPatch) -> Any:
    """packaging/build.py, with images of one file in place of the real ones, which other tests build."""
    monkeypatch.syspath_prepend(str(REPO / "packaging"))
    spec = importlib.util.spec_from_file_location("packaging_build", REPO / "packaging/build.py")
    assert spec and spec.loader
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    for module in (build.image, build.controller_image):
        layer = build.image.archive({"name": (module.NAME.encode(), 0o644)})
        monkeypatch.setattr(
            module,
            "build",
            lambda out, arch, n=module.NAME, x=layer: build.image.write(out, n, "amd64", x, {}, "a test"),
        )
    return build


def test_pushed_and_named(registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = with_small_images(monkeypatch)
    said = yaml.safe_load(build.push(tmp_path, "x86_64", f"{registry}/team", plain_http=True))
    assert get(registry, "_catalog") == {"repositories": ["team/gpu-hook/controller", "team/gpu-hook/install"]}
    given = yaml.safe_load((BASE / "kustomization.yaml").read_text())["images"]
    assert [(i["name"], i["newTag"]) for i in said["images"]] == [(i["name"], i["newTag"]) for i in given]
    for new in said["images"]:
        manifest = get(registry, new["newName"].removeprefix(f"{registry}/") + f"/manifests/{new['newTag']}")
        assert manifest["layers"][0]["size"]
    with pytest.raises(SystemExit, match="was not pushed"):
        build.push(tmp_path, "x86_64", "127.0.0.1:1/team", plain_http=True)


def test_every_image_that_we_name_is_nobodys() -> None:
    """Manifests, chart and pages: whoever owned such a name would be root on the nodes of those who apply them unread."""
    named = {i["name"] for i in yaml.safe_load((BASE / "kustomization.yaml").read_text())["images"]}
    used = set()
    for file in BASE.glob("*.yaml"):
        for line in file.read_text().splitlines():
            if line.strip().startswith("image: "):
                used.add(line.split()[1].rpartition(":")[0])
    assert used == named and all(name.startswith("your-registry.invalid/") for name in named)
    texts = [*REPO.glob("docs/**/*.md"), *REPO.glob("packaging/**/*.py"), *REPO.glob("runtime-config/**/*")]
    assert [str(path) for path in texts if path.is_file() and "docker.io/gpu-hook" in path.read_text()] == []


@pytest.mark.parametrize(
    "words", [["push"], ["push", "team"], ["push", "a b"], ["push", "http://x.y"], ["deb", "x.y/z"]]
)
def test_words_that_are_no_registry(words: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-B", str(REPO / "packaging/build.py"), *words, "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and not (tmp_path / "out").exists(), done.stderr
