"""`gpu-hook run` and compose files, with real docker and podman: the container has the share that was asked for."""

import subprocess
from pathlib import Path

import pytest
import yaml

from testbed import REPO
from testbed.engines import box
from testbed.engines.box import IMAGE, LOOK
from testbed.engines.docker import Docker
from testbed.engines.podman import Podman
from testbed.packages import compose
from tests.engines.test_docker import docker, dockerd  # noqa: F401  fixtures
from tests.engines.test_podman import engine, podman  # noqa: F401  fixtures

pytestmark = [pytest.mark.root, pytest.mark.slow]
ASKED = ("-m", "1Gi", "--devices=0")
LINES = f"exec 2>&1; env; {LOOK}"


def gpu_hook_run(place: box.Place, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """`gpu-hook run` on the engine's machine."""
    program = (place.hideout.python, "-m", "oci_hook", "run", "--prefix", str(place.prefix))
    return place.hideout.run("env", *(f"{name}={value}" for name, value in env.items()), *program, *words)


def test_docker(docker: Docker) -> None:  # noqa: F811
    docker.place.rules(trust_env=False)
    more = ("--rm", "--network=none", IMAGE, "sh", "-c", LINES)
    done = gpu_hook_run(docker.place, *ASKED, "-c", "30", *more, DOCKER_HOST=docker.socket)
    assert done.returncode == 0, done.stdout + done.stderr
    box.saw_its_share(done.stdout, 1024)
    assert "GPU_HOOK_COMPUTE=30\n" in done.stdout
    done = gpu_hook_run(docker.place, "-m", "99Gi", *more, DOCKER_HOST=docker.socket)
    assert done.returncode == 125 and "GH-201: " in done.stderr
    done = gpu_hook_run(
        docker.place, *ASKED, "--rm", "--network=none", IMAGE, "sh", "-c", "exit 7", DOCKER_HOST=docker.socket
    )
    assert done.returncode == 7


def test_podman(podman: Podman, tmp_path: Path) -> None:  # noqa: F811
    """Its usual flags come from a script in its place, as containers.conf would say them."""
    program = podman.place.dir / "bin/podman"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec /usr/bin/podman {" ".join(podman.flags)} "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:/usr/bin:/bin:/usr/sbin:/sbin"
    more = ("--engine=podman", "--rm", *podman.where, IMAGE, "sh", "-c", LINES)
    done = gpu_hook_run(podman.place, *ASKED, *more, PATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    box.saw_its_share(done.stdout, 1024)


def compose_files(docker: Docker) -> list[str]:  # noqa: F811
    return ["compose-before-24.yaml", *["compose.yaml"] * docker.annotations]


def test_compose(docker: Docker) -> None:  # noqa: F811
    program = docker.place.dir / "docker-compose"
    program.write_bytes(compose().read_bytes())
    program.chmod(0o755)
    docker.place.rules(trust_env=False)
    for name in compose_files(docker):
        given = yaml.safe_load((REPO / "runtime-config/docker" / name).read_text())
        given["services"]["half"].update(image=IMAGE, network_mode="none")
        folder = docker.place.dir / name.removesuffix(".yaml")
        folder.mkdir(exist_ok=True)
        (folder / "compose.yaml").write_text(yaml.safe_dump(given))
        call = (str(program), "--file", str(folder / "compose.yaml"))
        done = docker.place.hideout.run("env", f"DOCKER_HOST={docker.socket}", *call, "up", "--detach")
        assert done.returncode == 0, done.stdout + done.stderr
        (grant,) = docker.place.grants()
        assert [(s["memory_mib"], s["compute"]) for s in grant["gpus"]] == [(4096, 30)]
        assert grant["name"] == f"{folder.name}-half-1"
        done = docker.place.hideout.run("env", f"DOCKER_HOST={docker.socket}", *call, "down", "--timeout=0")
        assert done.returncode == 0, done.stderr
        assert docker.place.no_grants()
