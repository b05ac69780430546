"""The programs of a cluster: where they are cached, and the names they have there."""

import os
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parent.parent
PACKAGES = HERE / "packages.txt"
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
    """What this machine lacks, in a sentence for the person who asked."""


def cache() -> Path:
    """The folder of every build, outside the checkout."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gpu-hook-cluster"


def key() -> str:
    """Changes with everything that the programs are made of."""
    made_of = RECIPE.encode() + PACKAGES.read_bytes() + PATCH.read_bytes()
    return sha256(made_of).hexdigest()[:16]


def home() -> Path:
    """The folder of the programs of this checkout's recipe: bin/ and cni/. It exists only when it is complete."""
    return cache() / key()


def ready() -> bool:
    return (home() / "bin").is_dir()


def program(name: str) -> str:
    return str(home() / "bin" / name)
