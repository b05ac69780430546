"""Debian packages as parts of images: fetched with apt-get once, unpacked, and kept in the user's cache."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

KEYRINGS = Path("/usr/share/keyrings")


def unpacked(suite: str, package: str) -> Path:
    """The folder with what is in the package of that suite. Skips where it cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-hook-tests" / f"{suite}-{package}"
    root = cache / "root"
    if root.exists():
        return root
    keyring = KEYRINGS / "debian-archive-keyring.gpg"
    if not shutil.which("apt-get") or not shutil.which("dpkg") or not keyring.exists():
        pytest.skip("Debian's packages need apt-get, dpkg and Debian's keyring")
    for folder in ("lists/partial", "archives/partial", "debs"):
        (cache / folder).mkdir(parents=True, exist_ok=True)
    shutil.rmtree(cache / "new", ignore_errors=True)
    (cache / "sources.list").write_text(f"deb [signed-by={keyring}] http://deb.debian.org/debian {suite} main\n")
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
