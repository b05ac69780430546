"""podman for real: `--runtime gpu-hook`, and hooks.d with the usual runtime; limits seen from inside."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.engines import box
from tests.engines.box import IMAGE, LOOK, Place

pytestmark = [pytest.mark.root, pytest.mark.slow]
ONE_GIB = ("--annotation", "gpu-hook.io/devices=0", "--annotation", "gpu-hook.io/memory=1Gi")
# podman's own choice is more than a test machine's root may set.
ULIMITS = ("--ulimit=nofile=1000:1000", "--ulimit=nproc=1000:1000")


class Podman:
    """podman on a machine whose /etc/containers has what `gpu-hook install` wrote there."""

    def __init__(self, place: Place) -> None:
        self.place = place
        place.gpu_hook("install", "--engine", "podman")
        self.flags = (
            f"--root={place.dir}/root",
            f"--runroot={place.dir}/runroot",
            "--cgroup-manager=cgroupfs",
            "--events-backend=none",
        )

    def __call__(self, *args: str, flags: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
        return self.place.hideout.run("podman", *self.flags, *flags, *args)

    def run(self, *args: str, runtime: str = "gpu-hook", script: str = LOOK) -> "subprocess.CompletedProcess[str]":
        more = ("run", "--rm", "--network=none", "--cap-add=mknod", f"--cgroup-parent=/{self.place.cgroup}", *ULIMITS)
        return self(
            *more, *args, IMAGE, "sh", "-c", f"exec 2>&1; {script}", flags=(f"--runtime={runtime}",) * bool(runtime)
        )


@pytest.fixture(scope="module")
def engine(place: Place) -> Iterator[Podman]:
    podman = Podman(place)
    try:
        loaded = podman("load", "--input", str(place.archive))
        assert loaded.returncode == 0, loaded.stderr
        yield podman
    finally:
        podman("rm", "--all", "--force", "--time=0")


@pytest.fixture
def podman(engine: Podman) -> Iterator[Podman]:
    yield engine
    engine("rm", "--all", "--force", "--time=0")
    assert box.until(lambda: engine.place.grants() == [])


def test_a_container_has_its_share_and_nothing_else(podman: Podman) -> None:
    done = podman.run(*ONE_GIB)
    assert done.returncode == 0, done.stdout + done.stderr
    box.saw_its_share(done.stdout, 1024)


@pytest.mark.parametrize("runtime", ("gpu-hook", "runc"))
def test_a_container_that_asks_nothing_has_no_card(podman: Podman, runtime: str) -> None:
    done = podman.run("--env=NVIDIA_VISIBLE_DEVICES=all", script="ls /dev /run", runtime=runtime)
    assert done.returncode == 0, done.stderr
    assert "nvidia" not in done.stdout and "gpu-hook" not in done.stdout


def test_hooks_serve_the_usual_runtime(podman: Podman) -> None:
    """No spec is edited there: the share is put into the live container, before its program starts."""
    done = podman.run(*ONE_GIB, runtime="runc")
    assert done.returncode == 0, done.stdout + done.stderr
    box.saw_its_share(done.stdout, 1024)


@pytest.mark.parametrize("runtime", ("gpu-hook", "runc"))
def test_a_refusal_is_said(podman: Podman, runtime: str) -> None:
    done = podman.run("--annotation", "gpu-hook.io/memory=99Gi", runtime=runtime)
    assert done.returncode != 0 and "GH-201: " in done.stderr, done.stderr


def test_detached_exec_and_end(podman: Podman) -> None:
    done = podman.run("--detach", "--name=one", *ONE_GIB, script="exec sleep 1000")
    assert done.returncode == 0, done.stderr
    (grant,) = podman.place.grants()
    assert grant["container"] == done.stdout.strip()
    seen = podman("exec", "one", "sh", "-c", f"exec 2>&1; {LOOK}", flags=("--runtime=gpu-hook",))
    box.saw_its_share(seen.stdout, 1024)
    assert podman("kill", "one", flags=("--runtime=gpu-hook",)).returncode == 0
    assert box.until(lambda: podman.place.grants() == [])


def test_set_default(podman: Podman) -> None:
    place = podman.place
    place.gpu_hook("install", "--engine", "podman", "--set-default")
    done = podman.run(*ONE_GIB, runtime="")
    assert done.returncode == 0, done.stderr
    box.saw_its_share(done.stdout, 1024)
    assert "GPU_HOOK_MEMORY_MIB=1024" in podman.run(*ONE_GIB, runtime="", script="env").stdout  # not by the hooks alone
    place.gpu_hook("uninstall", "--engine", "podman")
    assert place.hideout.run("grep", "-rl", "gpu-hook", "/etc/containers").stdout == ""
