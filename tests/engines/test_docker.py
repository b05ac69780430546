"""docker for real: dockerd with its own directories, registered by `gpu-hook install`; limits as containers see them."""

import json
import os
from collections.abc import Iterator

import pytest

from oci_hook.core.layout import ENV_SET
from testbed.engines import box
from testbed.engines.box import IMAGE, LOOK, Place
from testbed.engines.docker import Docker
from testbed.until import until

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(scope="module")
def dockerd(place: Place) -> Iterator[Docker]:
    docker = Docker(place)
    docker.config.write_text('{\n  "live-restore": true\n}\n')
    place.gpu_hook("install", "--engine", "docker", "--config", str(docker.config))
    if not docker.annotations:
        place.rules(trust_env=True)
    docker.start()
    try:
        loaded = docker("load", "--input", str(place.archive))
        assert loaded.returncode == 0, loaded.stderr
        yield docker
        docker.remove_all()
    finally:
        docker.stop()


@pytest.fixture
def docker(dockerd: Docker) -> Iterator[Docker]:
    yield dockerd
    dockerd.remove_all()
    assert dockerd.place.no_grants()


def started(docker: Docker, *args: str, mib: int = 1024, command: str = "exec sleep 1000") -> str:
    done = docker(
        "run", "-d", "--runtime=gpu-hook", "--network=none", *docker.ask(mib), *args, IMAGE, "sh", "-c", command
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def inspect(docker: Docker, id: str) -> object:
    return json.loads(docker("inspect", id).stdout)[0]


def test_registered_beside_what_was_there(docker: Docker) -> None:
    assert json.loads(docker.config.read_text())["live-restore"] is True
    info = json.loads(docker("info", "--format", "{{json .}}").stdout)
    assert "gpu-hook" in info["Runtimes"] and info["DefaultRuntime"] == "runc"


def test_a_container_has_its_share_and_nothing_else(docker: Docker) -> None:
    done = docker.run(*docker.ask(1024))
    assert done.returncode == 0, done.stdout + done.stderr
    box.saw_its_share(done.stdout, 1024)


def test_a_container_that_asks_nothing_has_no_gpu(docker: Docker) -> None:
    env = ("-e", "NVIDIA_VISIBLE_DEVICES=all") if docker.annotations else ()
    done = docker.run(*env, script="ls /dev; ls /run")
    assert done.returncode == 0 and "nvidia" not in done.stdout and "gpu-hook" not in done.stdout


def test_names(docker: Docker) -> None:
    """docker's names, also after `docker rename`. The data directory is not the usual one."""
    id = started(docker, "--name=trainer")
    place = docker.place
    (grant,) = place.grants()
    assert (grant["id"], grant["name"]) == (id, "trainer")
    assert "trainer" in place.gpu_hook("ps")
    assert f"container trainer ({id[:12]}): memory 512Mi" in place.gpu_hook("set", "trainer", "--memory", "512Mi")
    assert place.gpu_hook("freeze", "trainer") == f"container trainer ({id[:12]}) frozen\n"
    assert place.gpu_hook("why", "trainer").startswith(f"trainer ({id[:12]}) is frozen")
    assert "trainer" in place.gpu_hook("events", "-c", "trainer")
    assert docker("rename", "trainer", "tuner").returncode == 0
    assert place.gpu_hook("resume", "tuner") == f"container tuner ({id[:12]}) resumed\n"
    assert json.loads(place.gpu_hook("release", "--force", "--json", "tuner"))["released"] == [grant["key"]]


def test_what_cannot_be_given_is_said_by_docker_run(docker: Docker) -> None:
    done = docker.run("--name=greedy", *docker.ask(99999))
    assert done.returncode == 125 and "OCI runtime create failed" in done.stderr and "GH-201: " in done.stderr
    assert docker("ps", "-aq").stdout == "" and "was refused at" in docker.place.gpu_hook("why", "greedy")


def test_a_label_is_no_request_and_is_told_so(docker: Docker) -> None:
    done = docker.run("--label", "gpu-hook.io/memory=1Gi")
    assert done.returncode == 125 and "GH-108: gpu-hook.io/memory='1Gi' is a label" in done.stderr
    assert docker.run("--label", "team=gpu", script="true").returncode == 0


def test_privileged_is_refused(docker: Docker) -> None:
    done = docker.run("--privileged", *docker.ask(1024))
    assert done.returncode == 125 and "GH-403: " in done.stderr


def test_exec_sees_the_same(docker: Docker) -> None:
    id = started(docker)
    done = docker("exec", id, "sh", "-c", f"exec 2>&1; {LOOK}")
    box.saw_its_share(done.stdout, 1024)
    (grant,) = docker.place.grants()
    assert grant["id"] == id
    first = variables(docker("exec", id, "cat", "/proc/1/environ").stdout.split("\0"))
    assert first["GPU_HOOK_MEMORY_MIB"] == "1024" and first["NVIDIA_VISIBLE_DEVICES"] != "all"
    mine = ("-e", "NVIDIA_VISIBLE_DEVICES=all", "-e", "GPU_HOOK_CLASS=online")
    for flags in ((), ("-t",), ("-u", "1000"), mine):
        done = docker("exec", *flags, id, "env")
        assert done.returncode == 0 and variables(done.stdout.splitlines()) == first, (flags, done.stdout, done.stderr)
    assert docker("exec", "-d", id, "sh", "-c", "env > /tmp/new; mv /tmp/new /tmp/env").returncode == 0
    until(lambda: docker("exec", id, "cat", "/tmp/env").returncode == 0)
    assert variables(docker("exec", id, "cat", "/tmp/env").stdout.splitlines()) == first


def variables(lines: list[str]) -> dict[str, str]:
    """Those of the grant."""
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    return {name: value for name, value in found.items() if name in ENV_SET}


def test_a_second_container_finds_the_first_ones_memory_taken(docker: Docker) -> None:
    started(docker, mib=6144)
    done = docker.run(*docker.ask(4096))
    assert "GH-201: " in done.stderr
    docker.remove_all()
    assert docker.place.no_grants()


def test_stop_start_and_restart_policy(docker: Docker) -> None:
    """A restarted container is created again: it gets its share again, once."""
    id = started(docker, "--restart=always", "--stop-timeout=0")
    assert docker("restart", id).returncode == 0
    box.saw_its_share(docker("exec", id, "sh", "-c", f"exec 2>&1; {LOOK}").stdout, 1024)
    assert len(docker.place.grants()) == 1
    (first,) = docker.place.grants()
    os.kill(first["pid"], 9)
    until(lambda: [g["pid"] for g in docker.place.grants()] not in ([], [first["pid"]], [None]))
    box.saw_its_share(docker("exec", id, "sh", "-c", f"exec 2>&1; {LOOK}").stdout, 1024)
    assert docker("stop", id).returncode == 0
    assert docker.place.no_grants()
    assert docker("start", id).returncode == 0
    assert len(docker.place.grants()) == 1


def test_kill(docker: Docker) -> None:
    id = started(docker)
    assert docker("kill", id).returncode == 0
    assert docker.place.no_grants()


def test_update_keeps_the_device_rules(docker: Docker) -> None:
    id = started(docker)
    done = docker("update", "--memory=64m", "--memory-swap=64m", "--cpu-shares=200", id)
    assert done.returncode == 0, done.stderr
    box.saw_its_share(docker("exec", id, "sh", "-c", f"exec 2>&1; {LOOK}").stdout, 1024)


def test_health_checks(docker: Docker) -> None:
    """Health checks are `exec` calls."""
    id = started(docker, "--health-cmd=gpu-probe info", "--health-interval=1s")
    state = "{{.State.Health.Status}}"
    until(lambda: docker("inspect", "--format", state, id).stdout.strip() == "healthy")


def test_live_restore(docker: Docker) -> None:
    """dockerd ends and comes back while a container runs."""
    id = started(docker)
    before = docker.place.holders()
    docker.stop()
    assert docker.place.holders() == before
    docker.start()
    box.saw_its_share(docker("exec", id, "sh", "-c", f"exec 2>&1; {LOOK}").stdout, 1024)
    assert docker.place.holders() == before


def test_why_a_container_has_no_share(docker: Docker) -> None:
    """By `gpu-hook why NAME`, from docker's own knowledge of it: runtime, annotations, mounts, labels, environment."""
    hideout, place = docker.place.hideout, docker.place

    def why(*flags: str) -> str:
        done = docker("create", "--name=none", "--network=none", *flags, IMAGE, "true")
        assert done.returncode == 0, done.stderr
        command = (hideout.python, "-m", "oci_hook", "why", "none", "--prefix", str(place.prefix))
        said = hideout.run("env", f"DOCKER_HOST={docker.socket}", *command)
        docker("rm", "none")
        assert said.returncode == 0, said.stderr
        return " ".join(said.stdout.split())

    said = why()
    assert "(docker, " in said and "created) has no share:" in said and "no annotation or mount of it asks" in said
    assert "its runtime is runc, which gives no share; start it with --runtime=gpu-hook" in said
    if docker.annotations:
        assert "did you mean gpu-hook.io/memory?" in why("--annotation", "gpuhook.io/memory=4Gi")
        assert "GH-101: " in why("--annotation", "gpu-hook.io/memory=x")
        assert "use the annotation gpu-hook.io/devices" in why("-e", "NVIDIA_VISIBLE_DEVICES=0", "--runtime=gpu-hook")
    assert "labels ask for nothing" in why("--label", "gpu-hook.io/memory=4Gi")
    ours = why("--runtime=gpu-hook", *docker.ask(1024))
    assert "it asks for a share and holds none" in ours and "its runtime is" not in ours
    mounted = why("-v", "/dev/null:/run/gpu-hook/request/memory=4Gi")
    assert "asks for a GPU" not in mounted and "its runtime is runc" in mounted


def test_uninstall_names_what_would_not_start_again(docker: Docker) -> None:
    """Containers that have ended, by name or since it was the default; forced, docker does not start them."""
    hideout, place = docker.place.hideout, docker.place
    config = ("--engine", "docker", "--config", str(docker.config))
    for name, runtime in (("kept", "gpu-hook"), ("other", "runc")):
        done = docker("create", f"--name={name}", f"--runtime={runtime}", "--network=none", IMAGE, "true")
        assert done.returncode == 0, done.stderr
    command = (hideout.python, "-m", "oci_hook", "uninstall", "--prefix", str(place.prefix))
    for more in ((), config, ("--dry-run",)):
        done = hideout.run(*command, *more)
        assert done.returncode == 1 and "GH-511: " in done.stderr + done.stdout
        assert "(docker: kept); remove them" in done.stderr + done.stdout
    assert "gpu-hook" in docker.config.read_text()
    assert "docker: will not start again: kept" in place.gpu_hook("uninstall", *config, "--force")
    docker.stop()
    docker.start()
    said = docker("start", "kept").stderr
    assert "nknown runtime specified gpu-hook" in said or "unknown or invalid runtime name: gpu-hook" in said, said
    assert docker("start", "other").returncode == 0
    place.gpu_hook("install", *config, "--restart")
    assert docker("start", "kept").returncode == 0
    docker.remove_all()
    assert "will not start" not in place.gpu_hook("uninstall", *config)
    place.gpu_hook("install", *config, "--restart")


def test_reload_keeps_containers(docker: Docker) -> None:
    """What `install --restart` does to a running dockerd: SIGHUP, which also brings in a new default."""
    id = started(docker)
    docker.place.gpu_hook("install", "--engine", "docker", "--config", str(docker.config), "--set-default")
    os.kill(int((docker.dir / "pid").read_text()), 1)
    until(lambda: docker("info", "--format", "{{.DefaultRuntime}}").stdout.strip() == "gpu-hook")
    box.saw_its_share(docker("exec", id, "sh", "-c", f"exec 2>&1; {LOOK}").stdout, 1024)
    done = docker("run", "--rm", "--network=none", *docker.ask(1024), IMAGE, "sh", "-c", f"exec 2>&1; {LOOK}")
    box.saw_its_share(done.stdout, 1024)


def test_loaded_later_and_still_offered_when_uninstalled(place: Place) -> None:
    """Registered without --restart, a second install makes dockerd read its file, wherever that, its socket and its pid
    are. It keeps its last extra runtime over a reload, until it is restarted."""
    docker = Docker(place, "uninstalled")
    docker.config.write_text("{}\n")
    config = ("--engine", "docker", "--config", str(docker.config))
    docker.start()
    try:
        pid = (docker.dir / "pid").read_text()
        first, again = (place.gpu_hook("install", *config) for _ in range(2))
        late = f"docker: takes effect after `kill -HUP {pid}`"
        assert late in first and late in again and "unchanged" in again
        assert "docker: reloaded with its new configuration" in place.gpu_hook("install", *config, "--restart")
        assert "gpu-hook" in docker("info", "--format", "{{json .Runtimes}}").stdout
        assert len(place.gpu_hook("install", *config, "--restart").splitlines()) == len(again.splitlines()) - 1
        place.gpu_hook("uninstall", *config)
        os.kill(int((docker.dir / "pid").read_text()), 1)
        until(lambda: "reload" in docker.log.read_text().lower())
        assert "gpu-hook" in docker("info", "--format", "{{json .Runtimes}}").stdout
        docker.stop()
        docker.start()
        assert "gpu-hook" not in docker("info", "--format", "{{json .Runtimes}}").stdout
    finally:
        docker.stop()


@pytest.mark.parametrize("default", (False, True))
def test_a_reload_that_would_lose_what_flags_name_is_not_made(place: Place, default: bool) -> None:
    """A reload takes the file's runtimes in place of the flags'. docker 20.10 panics where the default is among these."""
    flags = ("--add-runtime=nvidia=/usr/bin/runc", *(("--default-runtime=nvidia",) if default else ()))
    docker = Docker(place, f"flags{default:d}", flags)
    docker.config.write_text("{}\n")
    config = ("--engine", "docker", "--config", str(docker.config))
    docker.start()
    try:
        said = place.gpu_hook("install", *config, "--restart")
        assert "docker: takes effect after `a restart of process" in said, said
        assert "its flags name the runtime nvidia, which a reload would drop" in said and "reloaded" not in said
        assert docker("info", "--format", "{{.DefaultRuntime}}").stdout.strip() == ("nvidia" if default else "runc")
        assert '"nvidia"' in docker("info", "--format", "{{json .Runtimes}}").stdout
        docker.stop()
        docker.start()
        offered = docker("info", "--format", "{{json .Runtimes}}").stdout
        assert '"nvidia"' in offered and '"gpu-hook"' in offered
        assert "unchanged" in place.gpu_hook("install", *config, "--restart")
        said = place.gpu_hook("uninstall", *config, "--restart")
        assert "takes effect after `a restart" in said and docker.answers()
    finally:
        docker.stop()


def test_a_file_that_contradicts_the_flags_is_not_reloaded(place: Place) -> None:
    docker = Docker(place, "contradicts", ("--label=a=b",))
    docker.config.write_text("{}\n")
    docker.start()
    try:
        docker.config.write_text('{"labels": ["c=d"]}\n')
        said = place.gpu_hook("install", "--engine", "docker", "--config", str(docker.config), "--restart")
        assert "and its flags both have labels, so that it would not start: remove one" in said, said
        place.gpu_hook("uninstall", "--engine", "docker", "--config", str(docker.config))
    finally:
        docker.stop()


def test_a_service_of_a_swarm_has_its_share(place: Place) -> None:
    """Services name no runtime and pass no annotations: the default runtime, and mounts."""
    docker = Docker(place, "swarm", ())
    docker.config.write_text("{}\n")
    place.gpu_hook("install", "--engine", "docker", "--config", str(docker.config), "--set-default")
    place.hideout.run("ip", "link", "set", "lo", "up")
    docker.start()
    try:
        assert docker("load", "--input", str(place.archive)).returncode == 0
        done = docker("swarm", "init", "--advertise-addr=127.0.0.1", "--listen-addr=127.0.0.1")
        assert done.returncode == 0, done.stderr
        asked = [
            f"type=bind,source=/dev/null,target=/run/gpu-hook/request/{word}" for word in ("devices=0", "memory=1Gi")
        ]
        mounts = [part for each in asked for part in ("--mount", each)]
        flags = ("--detach", "--name=web", "--network=host", "--no-resolve-image", "--cap-add=MKNOD", *mounts)
        done = docker("service", "create", *flags, IMAGE, "sh", "-c", f"exec 2>&1; {LOOK} sleep 1000")
        assert done.returncode == 0, done.stderr
        until(lambda: [g["pid"] for g in place.grants()] not in ([], [None]))
        seen = ""

        def told() -> bool:
            nonlocal seen
            seen = "".join(docker("logs", id).stdout for id in docker("ps", "-q").stdout.split())
            return "nvidia0" in seen

        until(told, lambda: seen)
        box.saw_its_share(seen, 1024)
        assert docker("service", "rm", "web").returncode == 0
        assert place.no_grants()
    finally:
        docker("swarm", "leave", "--force")
        docker.remove_all()
        docker.stop()
        place.gpu_hook("uninstall", "--engine", "docker", "--config", str(docker.config))
