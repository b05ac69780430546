"""NVIDIA's own driver libraries, several versions of them: packages of Debian's non-free component, by version and hash.

They are kept in the user's cache, never in the repository. docs/internals/real-drivers.md says which versions can be had
and which cannot.
"""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from testbed.debian import alone, unpack
from testbed.packages import cached, mirror

HELPER = "/usr/lib/apt/apt-helper"  # of the package apt: fetches one file and checks its hash
POOL = "pool/non-free/n"
# version: the packages with libcuda and libnvidia-ml, as they lie on every mirror, with their sha256
DRIVERS = {
    "470.256.02": (  # bullseye
        (
            "nvidia-graphics-drivers/libcuda1_470.256.02-2_amd64.deb",
            "4a6d2dcd33042c215bd1ae4754504e487c39f56e8b7395f9c879b3e127e23de7",
        ),
        (
            "nvidia-graphics-drivers/libnvidia-ml1_470.256.02-2_amd64.deb",
            "535cef1384d34cdb32360c07275d55740905de78ebe8d3b2ef01caae2a37d3f4",
        ),
    ),
    "525.147.05": (  # bookworm
        (
            "nvidia-graphics-drivers-tesla/libnvidia-tesla-cuda1_525.147.05-15~deb12u1_amd64.deb",
            "93dd22409393521d911cfebeedf59201244d1196464f36a2631dceb3f99f2097",
        ),
        (
            "nvidia-graphics-drivers-tesla/libnvidia-tesla-ml1_525.147.05-15~deb12u1_amd64.deb",
            "187321f507c01d4fa63bf7a66f6ba93b688772c087b64e063654ff144b114da9",
        ),
    ),
    "535.261.03": (  # bookworm
        (
            "nvidia-graphics-drivers/libcuda1_535.261.03-1_amd64.deb",
            "de1e9ca34164a5983b3f752e6699cf1ad924790f1a843b7d582bab6f99206e1e",
        ),
        (
            "nvidia-graphics-drivers/libnvidia-ml1_535.261.03-1_amd64.deb",
            "c729da6ab729309dc3f481fe4d38f04ea03b0793154b0962b60117d2f37d082e",
        ),
    ),
    "550.163.01": (  # trixie
        (
            "nvidia-graphics-drivers/libcuda1_550.163.01-2_amd64.deb",
            "8feff97aac61d6f27ded96a3c25b9e68025a680476e6072ff7eaf10623509135",
        ),
        (
            "nvidia-graphics-drivers/libnvidia-ml1_550.163.01-2_amd64.deb",
            "01c1b67d511d7f52c6aa60e14ed56a8eb725d5dc85784a08214d6cb0f4fd1f89",
        ),
    ),
    "555.58.02": (  # experimental
        (
            "nvidia-graphics-drivers/libcuda1_555.58.02-4_amd64.deb",
            "3f2c5cb91c88b5f6ce05c81de553ce3ff72e0772dcd07c7e0a85b8cd408b4457",
        ),
        (
            "nvidia-graphics-drivers/libnvidia-ml1_555.58.02-4_amd64.deb",
            "b731d4ae7f68bd940e6f4c7f072a17b58f38685f875087e61f29c1f23dc7972b",
        ),
    ),
}


def libraries(version: str) -> dict[str, Path]:
    """The files of that version: "libcuda" and "libnvidia-ml". Skips where they cannot be had."""
    if platform.machine() != "x86_64":
        pytest.skip("the packages are for x86-64")
    place = cached(f"driver-{version}")
    with alone(place):
        if not place.exists():
            new = place.with_name(place.name + ".new")
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            for path, digest in DRIVERS[version]:
                _fetch(path, digest, new)
            new.rename(place)
    return {name: place / f"{name}.so.{version}" for name in ("libcuda", "libnvidia-ml")}


def _fetch(path: str, digest: str, place: Path) -> None:
    """Take the library out of the package."""
    package = place / "package.deb"
    if not Path(HELPER).exists() or not shutil.which("dpkg-deb"):
        pytest.skip("Debian's packages need apt and dpkg")
    command = [HELPER, "-q", "-oAcquire::http::Timeout=20", "download-file", f"{mirror()}/{POOL}/{path}", str(package)]
    done = subprocess.run([*command, f"SHA256:{digest}"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{path} cannot be fetched: {done.stderr.strip()[-200:]}")
    unpack([package], place / "root")
    for library in (place / "root").rglob("lib*.so.*.*"):
        if library.is_file() and not library.is_symlink():
            library.rename(place / library.name)
    shutil.rmtree(place / "root")
    package.unlink()
