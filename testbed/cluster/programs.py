"""The programs of a cluster: where they are cached, and the names they have there.

GPU_HOOK_KUBERNETES=1.36: of that version, which `scripts/cluster build --kubernetes DIR` has taken from DIR into VERSION/bin;
VERSION/KEY has them beside those of Debian sid. Else of 1.20, which is built from Debian's packages, in KEY.
"""

import os
import re
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = HERE / "packages.txt"
PACKAGES_OF_TODAY = HERE / "packages-sid.txt"  # beside the programs of a Kubernetes release of today
BUILT_HERE = "1.20"
CHOICE = "GPU_HOOK_KUBERNETES"
PATCH = HERE / "preempting-extenders.patch"
RECIPE = "1"  # higher when go_build.py builds something else from the same packages

BUILT = ("kubelet", "kube-apiserver", "kube-scheduler", "kube-controller-manager")
TAKEN = (
    "usr/bin/etcd",
    "usr/bin/kubectl",
    "usr/bin/containerd",
    "usr/bin/containerd-shim-runc-v2",
    "usr/bin/ctr",
    "usr/sbin/runc",
)


class CannotRun(Exception):
    """Names what this machine lacks, in a sentence for the user."""


def cache() -> Path:
    """The folder of every build, outside the checkout."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gpu-hook-cluster"


def key(*made_from: Path) -> str:
    """A digest of everything that the programs are built from; those of 1.20 where nothing is named."""
    made_of = RECIPE.encode() + b"".join(file.read_bytes() for file in made_from or (PACKAGES, PATCH))
    return sha256(made_of).hexdigest()[:16]


def version() -> str:
    return os.environ.get(CHOICE) or BUILT_HERE


def versions() -> list[str]:
    """Those whose programs are cached, the newest last."""
    names = [folder.parent.name for folder in cache().glob("*/bin")]
    found = [name for name in names if re.fullmatch(r"\d+\.\d+", name)] + [BUILT_HERE] * (key() in names)
    return sorted(found, key=lambda name: [int(part) for part in name.split(".")])


def minor() -> int:
    return int(version().partition(".")[2])


def given(version: str) -> Path:
    """The folder of what was taken from a release."""
    return cache() / version / "bin"


def use(version: str) -> None:
    """Chooses the version for this process and those that it starts. Raises CannotRun."""
    if version != BUILT_HERE and not given(version).is_dir():
        raise CannotRun(f"Kubernetes {version} is not there; scripts/cluster build --kubernetes DIR takes it from DIR")
    os.environ[CHOICE] = version


def home() -> Path:
    """The folder of the programs: bin/ and cni/, and lib/ of today's. It exists only when it is complete."""
    return cache() / key() if version() == BUILT_HERE else cache() / version() / key(PACKAGES_OF_TODAY)


def ready() -> bool:
    return (home() / "bin").is_dir()


def program(name: str) -> str:
    return str(home() / "bin" / name)
