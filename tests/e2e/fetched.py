"""Debian packages and Python wheels as parts of images: fetched once, unpacked, and kept in the user's cache."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


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


def wheel(*names: str) -> Path:
    """A folder to put in PYTHONPATH: these packages of the Python index, with what they need. Skips without network."""
    root = cached(f"python{sys.version_info[0]}.{sys.version_info[1]}-{names[0]}")
    if root.exists():
        return root
    new = root.with_name(root.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target", str(new)]
    done = subprocess.run([*command, *names], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{', '.join(names)} cannot be installed: {done.stderr.strip()[-100:]}")
    new.rename(root)
    return root


def unpacked(suite: str, package: str) -> Path:
    """The folder with what is in the package of that suite. Skips where it cannot be had."""
    cache = cached(f"{suite}-{package}")
    root = cache / "root"
    if root.exists():
        return root
    if not shutil.which("apt-get") or not shutil.which("dpkg") or not KEYRING.exists():
        pytest.skip("Debian's packages need apt-get, dpkg and Debian's keyring")
    for folder in ("lists/partial", "archives/partial", "debs"):
        (cache / folder).mkdir(parents=True, exist_ok=True)
    shutil.rmtree(cache / "new", ignore_errors=True)
    (cache / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror()} {suite} main\n")
    options = [
        f"-oDir::State::Lists={cache}/lists",
        f"-oDir::Etc::SourceList={cache}/sources.list",
        "-oDir::Etc::SourceParts=/dev/null",
        f"-oDir::Cache={cache}",
        "-oDir::State::status=/dev/null",
        "-oAPT::Sandbox::User=root",
        "-oAcquire::http::Timeout=20",
        "-oAcquire::Retries=0",
    ]
    for command in (["update"], ["download", package]):
        r = subprocess.run(["apt-get", *options, *command], cwd=cache / "debs", capture_output=True, text=True)
        if r.returncode != 0:
            pytest.skip(f"{package} of Debian {suite} cannot be fetched: {r.stderr.strip()[-100:]}")
    (deb,) = (cache / "debs").glob("*.deb")
    subprocess.run(["dpkg", "-x", str(deb), str(cache / "new")], check=True)
    (cache / "new").rename(root)
    return root
