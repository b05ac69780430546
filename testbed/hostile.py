"""A hostile tenant beside honest ones: real containers on simulated GPUs."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testbed.stage import CC, GLIBC, Edit, Stage
from testbed.until import until

HERE = Path(__file__).resolve().parent
ATTACKS = ("leases", "locks", "watches", "fill", "places", "readers")
# What dockerd gives a container's root (docs.docker.com, "Runtime privilege and Linux capabilities").
DOCKER = "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE SYS_CHROOT KILL"


def build(out: Path) -> Path:
    """The hostile tenant's program, for images with a C library: zig compiles all of musl for a static one."""
    subprocess.run([*CC, *GLIBC, "-o", str(out), str(HERE / "hostile_tenant.c")], check=True)
    return out


def half_a_core(spec: dict[str, Any]) -> None:
    """As docker --cpus 0.5: what is left to compare is what the attacks do, not that they are busy."""
    as_docker(spec)
    spec["linux"]["resources"]["cpu"] = {"quota": 50000, "period": 100000}


def as_docker(spec: dict[str, Any]) -> None:
    names = [f"CAP_{name}" for name in (*DOCKER.split(), "AUDIT_WRITE")]
    spec["process"]["capabilities"] = dict.fromkeys(("bounding", "effective", "permitted"), names)


@contextmanager
def hostile(
    stage: Stage, image: Path, attacks: Sequence[str], ask: dict[str, str], edit: Edit = as_docker
) -> Iterator[str]:
    """The id of a container that attacks from its begin to the end of the block."""
    told = stage.folder / f"hostile{time.monotonic_ns()}"
    args = ["/bin/sh", "-c", f"exec /bin/tenant {' '.join(attacks)} >/tmp/{told.name}"]
    id = stage.start(image, *args, annotations=ask, edit=edit)
    said = image / "tmp" / told.name
    until(lambda: said.exists() and said.read_text() == "ready\n", "the hostile tenant begins")
    try:
        yield id
    finally:
        stage.runc("delete", "--force", id)
