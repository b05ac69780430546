"""Debian packages as parts of images: fetched once, unpacked, and kept in the user's cache."""

import os
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from testbed import REPO, debian
from testbed.debian import alone

NVIDIA = ("libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1", "nvidia-smi")
# containerd 1.7, docker 26, podman 5, Python 3.13
DEBIAN_13 = ("containerd", "docker.io", "docker-cli", "podman", "crun", "runc")
DEBIAN_13 += ("python3", "python3-click", "python3-yaml", "python3-tomlkit", "rpm")


def mirror() -> str:
    """The Debian mirror that this machine's apt uses. Skips where there is none."""
    try:
        return debian.mirror()
    except debian.CannotFetch as e:
        pytest.skip(str(e))


def cached(name: str) -> Path:
    """A folder of that name in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "gpu-hook-tests" / name


def cached_build(name: str) -> Path:
    """A place below build/ of this checkout."""
    return REPO / "build" / name


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
    debian.unpack(debs(place, suite, packages, component, architecture), place / "new")
    (place / "new").rename(place / "root")


def debs(place: Path, suite: str, packages: tuple[str, ...], component: str, architecture: str = "") -> list[Path]:
    """Download these packages (`name` or `name=version`) into a folder of `place`; the files. Skips where they cannot be had."""
    shutil.rmtree(place / "debs", ignore_errors=True)
    (place / "debs").mkdir(parents=True)
    try:
        with debian.apt(suite, component, architecture) as get:
            get(place / "debs", "download", *packages)
    except debian.CannotFetch as e:
        pytest.skip(str(e))
    return sorted((place / "debs").glob("*.deb"))


def nvidia() -> Path:
    """NVIDIA's own libraries and nvidia-smi, of Debian's non-free component. Skips where they cannot be had."""
    return unpacked("trixie", *NVIDIA, component="non-free")


def compose(architecture: str = "") -> Path:
    """Compose 2.26 of Debian 13: one program, which asks the daemon what it can. Skips where it cannot be had."""
    found = unpacked("trixie", "docker-compose", architecture=architecture)
    files = [path for path in found.rglob("docker-compose") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def debian_13() -> Path:
    """A Debian 13 with its engines and what our packages depend on. Made once, in a minute or two."""
    return _whole("13", "trixie")


def debian_sid() -> Path:
    """As debian_13, with containerd 2, docker 28 and newer."""
    return _whole("sid", "sid")


def _whole(name: str, suite: str) -> Path:
    root = cached_build(f"debian-{name}-{sha256(' '.join(DEBIAN_13).encode()).hexdigest()[:8]}")
    with alone(root):
        if not root.exists():
            half = root.with_name(f"{root.name}.half")
            shutil.rmtree(half, ignore_errors=True)
            try:
                debian.bootstrap(half, suite, DEBIAN_13)
            except debian.CannotFetch as e:
                pytest.skip(str(e))
            half.rename(root)
    return root
