"""The driver's limit of podman's containers on cgroup v2: with the wrapper as runtime, and with hooks.d and plain runc."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.boundary import DRIVER, Node

pytestmark = [pytest.mark.root, pytest.mark.slow]
# podman's own choice is more than a test machine's root may set.
ULIMITS = ("--ulimit=nofile=1000:1000", "--ulimit=nproc=1000:1000")
ASK = [f"--annotation={key}={value}" for key, value in DRIVER.items()]
Podman = Callable[..., str]


@pytest.fixture
def podman(node: Node) -> Iterator[Podman]:
    folder = tempfile.mkdtemp(prefix="gh-")  # podman wants a short path
    # Not the machine's containers.conf, which others may have edited.
    (Path(folder) / "containers.conf").write_text("")
    program = (
        "env",
        f"CONTAINERS_CONF={folder}/containers.conf",
        "podman",
        f"--root={folder}/root",
        f"--runroot={folder}/runroot",
        "--cgroup-manager=cgroupfs",
        "--events-backend=none",
    )

    def call(*args: str, runtime: str = "runc", hooks: str = "") -> str:
        more = (f"--runtime={runtime}", *([f"--hooks-dir={hooks}"] if hooks else ()))
        done = node.run(*program, *more, *args)
        assert done.returncode == 0, done
        return done.stdout.strip()

    yield call
    node.run(*program, "rm", "--all", "--force", "--time=0")
    node.run("umount", "-R", f"{folder}/root/overlay")
    shutil.rmtree(folder, ignore_errors=True)


def begin(podman: Podman, rootfs: Path, **how: str) -> int:
    where = ("--network=none", "--pids-limit=0", *ULIMITS, "--rootfs", str(rootfs))
    id = podman("run", "--detach", *ASK, *where, "sleep", "300", **how)
    return int(podman("inspect", "--format={{.State.Pid}}", id))


def cgroup(pid: int) -> str:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return "/sys/fs/cgroup" + next(line[3:] for line in lines if line.startswith("0::"))


def test_by_runtime(node: Node, podman: Podman, rootfs: Path) -> None:
    pid = begin(podman, rootfs, runtime=node.program)
    assert node.limits(cgroup(pid)) == [1024]
    podman("rm", "--all", "--force", "--time=0", runtime=node.program)
    assert node.records() == []


def test_by_hooks(node: Node, podman: Podman, rootfs: Path) -> None:
    """precreate books the share, the createRuntime hook sets the limit, poststop clears it."""
    hooks = node.folder / "hooks.d"
    hooks.mkdir()
    for stage in ("precreate", "createRuntime", "poststop"):
        hook = {"path": node.hook, "args": ["oci-gpu-hook", stage], "env": ["PATH=/usr/bin:/bin"], "timeout": 30}
        when = {"annotations": {"^gpu-hook\\.io/": ".*"}}
        text = json.dumps({"version": "1.0.0", "hook": hook, "when": when, "stages": [stage]})
        (hooks / f"gpu-hook-{stage}.json").write_text(text)
    pid = begin(podman, rootfs, hooks=str(hooks))
    path = cgroup(pid)
    assert node.limits(path) == [1024]
    podman("rm", "--all", "--force", "--time=0", hooks=str(hooks))
    assert node.limits(path) == [-2] and node.records() == [] and node.grants() == ()
