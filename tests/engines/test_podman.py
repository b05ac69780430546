"""podman for real: `--runtime gpu-hook`, and hooks.d with the usual runtime; limits seen from inside."""

from collections.abc import Iterator
from typing import Any

import pytest

from oci_hook.observe.event_log import Follower
from testbed.engines import box
from testbed.engines.box import IMAGE, LOOK, Place
from testbed.engines.podman import ULIMITS, Podman

pytestmark = [pytest.mark.root, pytest.mark.slow]
ONE_GIB = ("--annotation", "gpu-hook.io/devices=0", "--annotation", "gpu-hook.io/memory=1Gi")
RUNC = "--runtime=runc"


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
    assert engine.place.no_grants()


def test_a_container_has_its_share_and_nothing_else(podman: Podman) -> None:
    done = podman.run(*ONE_GIB)
    assert done.returncode == 0, done.stdout + done.stderr
    box.saw_its_share(done.stdout, 1024)


@pytest.mark.parametrize("runtime", ("gpu-hook", "runc"))
def test_a_container_that_asks_nothing_has_no_gpu(podman: Podman, runtime: str) -> None:
    done = podman.run("--env=NVIDIA_VISIBLE_DEVICES=all", script="ls /dev /run", runtime=runtime)
    assert done.returncode == 0, done.stderr
    assert "nvidia" not in done.stdout and "gpu-hook" not in done.stdout


def test_hooks_serve_the_usual_runtime(podman: Podman) -> None:
    """The spec is edited at podman's own stage precreate, so the environment is right as well."""
    done = podman.run(*ONE_GIB, runtime="runc", script=f"env; {LOOK}")
    assert done.returncode == 0, done.stdout + done.stderr
    box.saw_its_share(done.stdout, 1024)
    assert "GPU_HOOK_MEMORY_MIB=1024" in done.stdout


def test_a_runtime_that_fails_leaves_no_grant(podman: Podman) -> None:
    """precreate has booked the share before; podman has ended, so nobody will have it."""
    done = podman("run", *podman.where, *ONE_GIB, IMAGE, "true", flags=("--runtime=/bin/false",))
    assert done.returncode != 0
    assert podman.place.grants() == []
    assert "precreate" in podman.place.hideout.run("ls", "/etc/containers/oci/podman-hooks.d").stdout


def test_without_precreate(podman: Podman) -> None:
    """As if its file is in no folder of hooks_dir: the hook changes the live container instead."""
    hooks = "--hooks-dir=/etc/containers/oci/hooks.d"
    script = f"exec 2>&1; env; {LOOK}"
    done = podman("run", "--rm", *podman.where, *ONE_GIB, IMAGE, "sh", "-c", script, flags=(hooks, RUNC))
    assert done.returncode == 0, done.stdout + done.stderr
    box.saw_its_share(done.stdout, 1024)
    assert "GPU_HOOK" not in done.stdout


def test_detached_by_the_hooks(podman: Podman) -> None:
    """The grant of precreate becomes the container's, as `ps` shows, and ends with it; a restart gives another."""
    done = podman("run", "--name=one", "--detach", *podman.where, *ONE_GIB, IMAGE, "sleep", "1000", flags=(RUNC,))
    assert done.returncode == 0, done.stderr
    for _ in range(2):
        (grant,) = podman.place.grants()
        inspected = podman("inspect", "--format={{.Id}} {{.State.Pid}}", "one").stdout.split()
        assert [grant["id"], str(grant["pid"])] == inspected
        assert podman("restart", "--time=0", "one", flags=(RUNC,)).returncode == 0
    assert podman("kill", "one", flags=(RUNC,)).returncode == 0
    assert podman.place.no_grants()


def test_a_build_is_not_disturbed(podman: Podman) -> None:
    """`podman build` reads the usual hook folders and fails on unknown stages, so precreate is not in them."""
    context = podman.place.dir / "context"
    context.mkdir(exist_ok=True)
    (context / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo built > /built\n")
    more = ("build", "--no-cache", "--network=none", "--isolation=oci", *ULIMITS, "--tag=gh-built", str(context))
    done = podman(*more, flags=(RUNC,))
    assert done.returncode == 0, done.stdout + done.stderr
    assert podman("rmi", "gh-built").returncode == 0


def refusals(podman: Podman) -> list[dict[str, Any]]:
    return [e for e in Follower(str(podman.place.state), old=True).read() if e["event"] == "refused"]


@pytest.mark.parametrize("runtime", ("gpu-hook", "runc"))
def test_a_refusal_is_said(podman: Podman, runtime: str) -> None:
    before = len(refusals(podman))
    done = podman.run("--name=greedy", "--annotation", "gpu-hook.io/memory=99Gi", runtime=runtime)
    assert done.returncode != 0 and "GH-201: " in done.stderr, done.stderr
    (told,) = refusals(podman)[before:]  # once, whatever number of stages saw it
    assert told["codes"] == ["GH-201"] and told["id"] and told["name"] == "greedy"


def test_detached_exec_and_end(podman: Podman) -> None:
    done = podman.run("--detach", "--name=one", *ONE_GIB, script="exec sleep 1000")
    assert done.returncode == 0, done.stderr
    (grant,) = podman.place.grants()
    assert grant["id"] == done.stdout.strip()
    seen = podman("exec", "one", "sh", "-c", f"exec 2>&1; {LOOK}", flags=("--runtime=gpu-hook",))
    box.saw_its_share(seen.stdout, 1024)
    env = podman("exec", "-e", "NVIDIA_VISIBLE_DEVICES=all", "one", "env", flags=("--runtime=gpu-hook",)).stdout
    assert "GPU_HOOK_MEMORY_MIB=1024" in env and "NVIDIA_VISIBLE_DEVICES=GPU-" in env and "=all" not in env
    assert podman("kill", "one", flags=("--runtime=gpu-hook",)).returncode == 0
    assert podman.place.no_grants()


@pytest.mark.parametrize("runtime", ("gpu-hook", "runc"))
@pytest.mark.parametrize("more", ((), ("--rm",)))
def test_names(podman: Podman, runtime: str, more: tuple[str, ...]) -> None:
    """podman's names, by runtime and by hooks."""
    place, flags = podman.place, (f"--runtime={runtime}",)
    done = podman(
        "run", "--detach", "--name=trainer", *more, *podman.where, *ONE_GIB, IMAGE, "sleep", "1000", flags=flags
    )
    assert done.returncode == 0, done.stderr
    (grant,) = place.grants()
    assert (grant["id"], grant["name"]) == (done.stdout.strip(), "trainer")
    assert "container trainer (" in place.gpu_hook("set", "trainer", "--memory", "512Mi")
    assert podman("rename", "trainer", "tuner", flags=flags).returncode == 0
    assert [c["name"] for c in place.grants()] == ["tuner"]


def test_uninstall_names_what_would_not_start_again(podman: Podman) -> None:
    place = podman.place
    done = podman("create", "--name=kept", *podman.where, IMAGE, "true", flags=("--runtime=gpu-hook",))
    assert done.returncode == 0, done.stderr
    assert podman("create", "--name=other", *podman.where, IMAGE, "true", flags=(RUNC,)).returncode == 0
    place.hideout.run("mkdir", "-p", "/etc/containers")
    storage = f'[storage]\ndriver = "overlay"\ngraphroot = "{place.dir}/root"\nrunroot = "{place.dir}/runroot"\n'
    place.hideout.run("sh", "-c", f"printf '{storage}' >/etc/containers/storage.conf")
    command = (place.hideout.python, "-m", "oci_hook", "uninstall", "--prefix", str(place.prefix))
    done = place.hideout.run(*command, "--engine", "podman")
    assert "GH-511: " in done.stdout + done.stderr and "(podman: kept)" in done.stdout + done.stderr
    assert podman("rm", "kept").returncode == 0
    assert "will not start" not in place.gpu_hook("uninstall", "--engine", "podman")
    place.gpu_hook("install", "--engine", "podman")


def test_set_default(podman: Podman) -> None:
    place = podman.place
    place.gpu_hook("install", "--engine", "podman", "--set-default")
    done = podman.run(*ONE_GIB, runtime="")
    assert done.returncode == 0, done.stderr
    box.saw_its_share(done.stdout, 1024)
    assert "GPU_HOOK_MEMORY_MIB=1024" in podman.run(*ONE_GIB, runtime="", script="env").stdout  # not by the hooks alone
    place.gpu_hook("uninstall", "--engine", "podman")
    assert place.hideout.run("grep", "-rl", "gpu-hook", "/etc/containers").stdout == ""
