"""Attacks on the memory limit from real containers, with the agent beside them where the library alone cannot hold it."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed import agent as agents
from testbed.agent import surcharge
from testbed.sim.gpus import build_simulated
from testbed.stage import CC, CONTEXT_MIB, GLIBC, LIMIT_MIB, SHARE, Stage
from testbed.until import until
from tests.memory.conftest import Gpu

HERE = Path(__file__).parent
pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@pytest.fixture(scope="module")
def stage(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    place = Stage(tmp_path_factory.mktemp("attacks"))
    yield place
    place.close()


@pytest.fixture(scope="module")
def image(stage: Stage) -> Path:
    """With the attackers; /shared is a folder that containers have in common."""
    root = agents.image(stage.folder)
    cuda = str(build_simulated() / "sim/libcuda.so.1")
    storm = HERE.parents[1] / "simulator/tests/capture_storm.c"
    for name, source in (("tenant", HERE / "tenant.c"), ("storm", storm)):
        subprocess.run([*CC, *GLIBC, "-w", "-o", str(root / "bin" / name), str(source), cuda, "-lpthread"], check=True)
    (root / "shared").mkdir()
    return root


def share(folder: Path) -> Callable[[dict[str, Any]], None]:
    """A volume that several containers have."""

    def edit(spec: dict[str, Any]) -> None:
        folder.mkdir(exist_ok=True)
        mount = {"destination": "/shared", "type": "bind", "source": str(folder), "options": ["rbind", "rw"]}
        spec["mounts"].append(mount)

    return edit


def start(stage: Stage, image: Path, folder: Path, name: str, *args: str) -> str:
    """A container whose program says its line in the folder's file of that name."""
    script = f"exec {' '.join(args)} >/shared/{name}"
    return stage.start(image, "/bin/sh", "-c", script, annotations=SHARE, edit=share(folder))


def said(folder: Path, name: str) -> str:
    file = folder / name
    return file.read_text() if file.exists() else ""


def test_memory_that_another_container_holds_stays_charged(stage: Stage, image: Path, tmp_path: Path) -> None:
    """Exported over a socket in a shared volume, and released by its maker, which then takes all that it gets."""
    ids = [start(stage, image, tmp_path, "taker", "/bin/tenant", "import", "/shared/socket")]
    try:
        until(lambda: (tmp_path / "socket").exists())
        ids.append(start(stage, image, tmp_path, "maker", "/bin/tenant", "export", "/shared/socket", "600"))
        assert until(lambda: said(tmp_path, "taker")) == "imported\n"
        assert until(lambda: said(tmp_path, "maker")) == f"took {LIMIT_MIB - CONTEXT_MIB - 600}\n"
        assert stage.used_mib() <= LIMIT_MIB + CONTEXT_MIB
    finally:
        for id in ids:
            stage.runc("delete", "--force", id)


def test_captures_and_allocations_of_many_threads(stage: Stage, image: Path, tmp_path: Path) -> None:
    """Six threads take 300 MiB each, in streams that others capture: at no moment is the container above its limit."""
    gpu = Gpu(stage.state / "sim/gpus/0")
    id = start(stage, image, tmp_path, "storm", "/bin/storm", "2", "10000", "300")
    most = 0
    try:
        end = time.monotonic() + 60
        while not said(tmp_path, "storm") and time.monotonic() < end:
            most = max(most, *(gpu.counted() >> 20 for _ in range(50)))
        succeeded, captured, _, odd = map(int, said(tmp_path, "storm").split())
        assert succeeded and captured and not odd
        assert 300 < most <= LIMIT_MIB
    finally:
        stage.runc("delete", "--force", id)
        gpu.close()


def test_variables_of_a_module_count_as_surcharge_within_two_looks(stage: Stage, image: Path, tmp_path: Path) -> None:
    """Nobody knows their size before they are there. A container that so takes what others were granted is killed, see
    tests/agent/act/test_protecting.py; here nobody is harmed."""
    interval = 1.0
    with agents.running(stage, "--policy", "report", "--interval", str(interval)):
        id = start(stage, image, tmp_path, "tenant", "/bin/tenant", "module", "2048")
        try:
            assert until(lambda: said(tmp_path, "tenant")) == "loaded 2048\n"
            began = time.monotonic()
            until(lambda: surcharge(stage, id) >= 2048)
            print(f"counted {time.monotonic() - began:.1f} s after it was loaded, with looks every {interval} s")
            refused = stage.runc.exec(id, "/bin/gpu-probe", "alloc", "1")
            assert refused.returncode and "OUT_OF_MEMORY" in refused.stdout + refused.stderr
        finally:
            stage.runc("delete", "--force", id)
