"""Fetches what clients are made of, pinned by version and sha256, into the user's cache, and says how large it was.

pins/NAME.txt lists wheels as pip's requirements with `--hash`. pins/NAME.debs lists Debian packages: a line
`suite component package=version sha256` each.
"""

import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from testbed.debian import alone, unpack
from testbed.packages import cached, debs

PINS = Path(__file__).resolve().parent / "pins"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]


def place_of(pin: Path) -> Path:
    """A folder of its own for each text of a pin file, and each Python."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return cached(f"client-{pin.stem}-{version}-{sha256(pin.read_bytes()).hexdigest()[:12]}")


def wheels(name: str) -> Path:
    """The folder to put in PYTHONPATH."""
    pin = PINS / f"{name}.txt"
    place = place_of(pin)
    with alone(place):
        if not place.exists():
            _fetch_wheels(pin, place)
    return place / "root"


def _fetch_wheels(pin: Path, place: Path) -> None:
    new = place.with_name(place.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    got = new / "wheels"
    got.mkdir(parents=True)
    download = [
        *PIP,
        "download",
        "--no-deps",
        "--require-hashes",
        "-d",
        str(got),
        "-r",
        str(pin),
    ]
    done = subprocess.run(download, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the wheels of {pin.stem} cannot be had: {done.stderr.strip()[-200:]}")
    files = sorted(got.iterdir())
    (new / "bytes").write_text(str(sum(file.stat().st_size for file in files)))
    install = [
        *PIP,
        "install",
        "--no-deps",
        "--no-compile",
        "--target",
        str(new / "root"),
        *map(str, files),
    ]
    subprocess.run(install, check=True)
    shutil.rmtree(got)
    new.rename(place)


def packages(name: str) -> Path:
    """The folder with what is in the Debian packages."""
    pin = PINS / f"{name}.debs"
    place = place_of(pin)
    with alone(place):
        if not place.exists():
            _fetch_debs(pin, place)
    return place / "root"


def _fetch_debs(pin: Path, place: Path) -> None:
    new = place.with_name(place.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    (new / "root").mkdir(parents=True)
    size = 0
    wanted: dict[tuple[str, str], dict[str, str]] = {}
    for line in pin.read_text().splitlines():
        if line and not line.startswith("#"):
            suite, component, package, digest = line.split()
            wanted.setdefault((suite, component), {})[package] = digest
    for (suite, component), hashes in wanted.items():
        for file in debs(new / suite, suite, tuple(hashes), component):
            data = file.read_bytes()
            assert sha256(data).hexdigest() in hashes.values(), f"{file.name} is not the pinned one"
            size += len(data)
            unpack([file], new / "root")
        shutil.rmtree(new / suite)
    (new / "bytes").write_text(str(size))
    new.rename(place)


def size_of(pins: tuple[str, ...], packed: tuple[str, ...]) -> int:
    """Bytes that were downloaded for these, now or before."""
    files = [PINS / f"{name}.txt" for name in pins] + [PINS / f"{name}.debs" for name in packed]
    return sum(int((place_of(file) / "bytes").read_text()) for file in files)


def chosen() -> tuple[bool, frozenset[str]]:
    """(long lists too, heavy clients by name), as `scripts/test --clients[=NAMES]` says."""
    words = os.environ.get("GPU_HOOK_CLIENTS", "")
    return bool(words), frozenset(words.split(",")) - {"", "none"}
