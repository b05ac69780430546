"""Debian packages as parts of images: fetched once, unpacked, and kept in the user's cache."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
NVIDIA = ("libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1", "nvidia-smi")
# containerd 1.7, docker 26, podman 5, Python 3.13
DEBIAN_13 = "containerd,docker.io,docker-cli,podman,crun,runc,python3,python3-click,python3-yaml,python3-tomlkit,rpm"


def mirror() -> str:
    """The Debian mirror that this machine's apt uses. Skips where there is none."""
    listed = subprocess.run(["apt-get", "--print-uris", "update"], capture_output=True, text=True).stdout
    for line in listed.splitlines():
        uri = line.split("'")[1] if "'" in line else ""
        if "/debian/dists/" in uri:
            return uri.partition("/dists/")[0]
    pytest.skip("no Debian mirror among apt's sources")


def cached(name: str) -> Path:
    """A folder of that name in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "gpu-hook-tests" / name


def cached_build(name: str) -> Path:
    """A place below build/ of this checkout."""
    return Path(__file__).resolve().parents[2] / "build" / name


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """Nobody else makes this meanwhile: tests may run in several workers."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.with_name(place.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def unpacked(suite: str, *packages: str, component: str = "main", architecture: str = "") -> Path:
    """The folder with what is in these packages of that suite. architecture: Debian's name of another machine's. Skips
    where they cannot be had."""
    place = cached("-".join(filter(None, (suite, architecture, *packages)))[:100])
    with alone(place):
        root = place / "root"
        if not root.exists():
            _unpack(place, suite, packages, component, architecture)
        return root


def _unpack(place: Path, suite: str, packages: tuple[str, ...], component: str, architecture: str) -> None:
    shutil.rmtree(place / "new", ignore_errors=True)
    (place / "new").mkdir(parents=True)
    for deb in debs(place, suite, packages, component, architecture):
        subprocess.run(["dpkg", "-x", str(deb), str(place / "new")], check=True)
    (place / "new").rename(place / "root")


def debs(place: Path, suite: str, packages: tuple[str, ...], component: str, architecture: str = "") -> list[Path]:
    """Download these packages (`name` or `name=version`) into a folder of `place`; the files. Skips where they cannot be had."""
    if not shutil.which("apt-get") or not shutil.which("dpkg") or not KEYRING.exists():
        pytest.skip("Debian's packages need apt-get, dpkg and Debian's keyring")
    shutil.rmtree(place / "debs", ignore_errors=True)
    for folder in ("lists/partial", "archives/partial", "debs"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    (place / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror()} {suite} {component}\n")
    options = [
        f"-oDir::State::Lists={place}/lists",
        f"-oDir::Etc::SourceList={place}/sources.list",
        "-oDir::Etc::SourceParts=/dev/null",
        f"-oDir::Cache={place}",
        "-oDir::State::status=/dev/null",
        "-oAPT::Sandbox::User=root",
        "-oAcquire::http::Timeout=20",
        "-oAcquire::Retries=0",
        *([f"-oAPT::Architecture={architecture}", f"-oAPT::Architectures={architecture}"] if architecture else []),
    ]
    for command in (["update"], ["download", *packages]):
        r = subprocess.run(["apt-get", *options, *command], cwd=place / "debs", capture_output=True, text=True)
        if r.returncode != 0:
            pytest.skip(f"{packages[0]} of Debian {suite} cannot be fetched: {r.stderr.strip()[-100:]}")
    return sorted((place / "debs").glob("*.deb"))


def nvidia() -> Path:
    """NVIDIA's own libraries and nvidia-smi, of Debian's non-free component. Skips where they cannot be had."""
    return unpacked("trixie", *NVIDIA, component="non-free")


def debian_13() -> Path:
    """A Debian 13 with its engines and what our packages depend on. Made once, in a minute or two."""
    root = cached_build(f"debian-13-{sha256(DEBIAN_13.encode()).hexdigest()[:8]}")
    with alone(root):
        if not root.exists():
            half = root.with_name(f"{root.name}.half")
            shutil.rmtree(half, ignore_errors=True)
            command = ["mmdebstrap", "-q", "--variant=minbase", f"--include={DEBIAN_13}", "trixie", str(half), mirror()]
            subprocess.run(command, check=True)
            half.rename(root)
    return root
