"""A container whose processes leave their memory to a kernel that is long in releasing it never holds more than its limit."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed import agent as agents
from testbed.stage import CC, CONTEXT_MIB, GLIBC, LIMIT_MIB, Stage
from testbed.until import until

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
SOURCE = Path(__file__).resolve().parents[1] / "shim/outlive.c"


@pytest.fixture(scope="module")
def stage(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    place = Stage(tmp_path_factory.mktemp("slow"))
    yield place
    place.close()


@pytest.fixture(scope="module")
def image(stage: Stage, native: Path) -> Path:
    root = agents.image(stage.folder)
    link = [str(native / "libcuda.so.1"), "-Wl,--allow-shlib-undefined", "-ldl", "-lpthread"]
    subprocess.run([*CC, *GLIBC, "-o", str(root / "bin/outlive"), str(SOURCE), *link], check=True)
    shutil.copymode(root / "bin/gpu-probe", root / "bin/outlive")
    return root


def nobody(spec: dict[str, Any]) -> None:
    """User 65534, without a capability."""
    spec["process"]["user"] = {"uid": 65534, "gid": 65534}
    spec["process"]["capabilities"] = {}


@pytest.mark.parametrize("children", [3, 5])
def test_lingering_sockets_and_exec(stage: Stage, image: Path, children: int) -> None:
    told = image / f"tmp/told{children}"
    told.touch()
    told.chmod(0o666)
    mib = LIMIT_MIB - children * CONTEXT_MIB
    command = f"exec /bin/outlive storm {mib} {children} >/tmp/{told.name} 2>&1"
    with agents.running(stage, "--policy", "protect") as agent:
        id = stage.start(image, "/bin/sh", "-c", command, edit=nobody)
        for n in range(1, 4):
            until(lambda n=n: told.read_text().count("taken\n") >= n)  # type: ignore[misc]
            assert stage.used_mib() <= LIMIT_MIB
        assert not agent.kinds(id) and id in stage.runc.living()
        stage.runc("delete", "--force", id)
    assert "GH-" not in told.read_text()
