"""containerd for real: a runtime handler as the kubelet uses it, over CRI, and `ctr`; limits seen from inside."""

from collections.abc import Iterator

import grpc
import pytest

from testbed.engines import box
from testbed.engines.box import IMAGE, LOOK, PAUSE, Place
from testbed.engines.containerd import ONE_GPU, Containerd
from testbed.until import until

pytestmark = [pytest.mark.root, pytest.mark.slow]


# Files that people have, and how a runtime handler must be told there.
SOCKET = """[grpc]\n  address = "{dir}/sock"\n"""
DIRS = """root = "{dir}/root"\nstate = "{dir}/run"\n"""
OPT = """[plugins."io.containerd.internal.v1.opt"]\n  path = "{dir}/opt"\n"""
CNI = """[plugins."io.containerd.grpc.v1.cri".cni]\n  bin_dir = "/usr/lib/cni"\n"""
OTHERS = {
    "debian": "version = 2\n" + DIRS + SOCKET + CNI + OPT,
    "version-1": DIRS + SOCKET + '[plugins.opt]\n  path = "{dir}/opt"\n[plugins.cri]\n  stats_collect_period = 20\n',
    "import": 'version = 2\nimports = ["{dir}/more/*.toml"]\n' + DIRS + SOCKET + CNI + OPT,
    "no-newline": ("version = 2\n" + DIRS + SOCKET + OPT).rstrip("\n"),
}
IMPORTED = """version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "other"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.other]
  runtime_type = "io.containerd.runc.v2"
"""


@pytest.fixture(scope="module")
def daemon(place: Place) -> Iterator[Containerd]:
    containerd = Containerd(place)
    place.gpu_hook("install", "--engine", "containerd", "--config", str(containerd.config))
    containerd.start()
    try:
        loaded = containerd.ctr("images", "import", str(place.archive))
        assert loaded.returncode == 0, loaded.stderr
        yield containerd
        containerd.remove_pods()
    finally:
        containerd.stop()


@pytest.fixture
def containerd(daemon: Containerd) -> Iterator[Containerd]:
    yield daemon
    daemon.remove_pods()
    assert daemon.place.no_grants()


@pytest.mark.parametrize("name", OTHERS)
def test_the_cri_plugin_starts_and_has_the_handler(place: Place, name: str) -> None:
    """Whatever the administrator's file looks like: containerd says itself what it understood."""
    containerd = Containerd(place, name, OTHERS[name])
    imported = containerd.dir / "more/50-other.toml"
    imported.parent.mkdir()
    imported.write_text(IMPORTED)
    before = containerd.config.read_text()
    default = ["--set-default"] if name == "debian" else []
    place.gpu_hook("install", "--engine", "containerd", "--config", str(containerd.config), *default)
    containerd.start()
    try:
        config = containerd.cri.config()["containerd"]
    finally:
        containerd.stop()
    other = {"other"} if name == "import" else {"runc"}
    assert {"gpu-hook"} | other <= set(config["runtimes"])  # containerd 2 always has runc too
    handler = config["runtimes"]["gpu-hook"]
    assert handler["options"]["BinaryName"] == place.program and "gpu-hook.io/*" in handler["PodAnnotations"]
    assert config["defaultRuntimeName"] == ("gpu-hook" if default else other.pop())
    place.gpu_hook("uninstall", "--engine", "containerd")
    assert containerd.config.read_text() == before and imported.read_text() == IMPORTED


def test_two_containers_of_a_pod_have_limits_of_their_own(containerd: Containerd) -> None:
    asked = {**ONE_GPU, "gpu-hook.io/memory": "1Gi", "gpu-hook.io/memory.trainer": "2Gi"}
    pod = containerd.pod(asked)
    assert containerd.place.grants() == []  # the pause container has the same annotations, and no share
    server, trainer = containerd.container(pod, "server"), containerd.container(pod, "trainer")
    box.saw_its_share(containerd.look(server), 1024)
    box.saw_its_share(containerd.look(trainer), 2048)
    for id, mib in ((server, 1024), (trainer, 2048)):  # as `kubectl exec`
        env = containerd.cri.exec(id, "env")[1].splitlines()
        assert f"GPU_HOOK_MEMORY_MIB={mib}" in env and any(e.startswith("NVIDIA_VISIBLE_DEVICES=GPU-") for e in env)
    who = {grant["name"]: grant for grant in containerd.place.grants()}
    assert set(who) == {"server", "trainer"}
    expected = {"engine": "containerd", "namespace": "default", "pod": "pod", "pod_uid": "uid-0", "id": server}
    assert {key: who["server"][key] for key in expected} == expected


def test_every_spelling_reaches_the_runtime(containerd: Containerd) -> None:
    pod = containerd.pod({"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_PERCENT": "25"})
    box.saw_its_share(containerd.look(containerd.container(pod, "main")), box.MEMORY_MIB // 4)


def test_a_pod_that_asks_nothing_has_no_gpu(containerd: Containerd) -> None:
    pod = containerd.pod({"somebody.else/key": "1"})
    id = containerd.container(pod, "main", env={"NVIDIA_VISIBLE_DEVICES": "all"})
    assert "nvidia" not in containerd.cri.exec(id, "ls", "/dev", "/run")[1]


def test_the_usual_handler_is_as_before(containerd: Containerd) -> None:
    pod = containerd.pod({**ONE_GPU, "gpu-hook.io/memory": "1Gi"}, handler="")
    id = containerd.container(pod, "main")
    assert "nvidia" not in containerd.cri.exec(id, "ls", "/dev")[1]
    assert containerd.place.grants() == []


def test_a_refusal_reaches_the_kubelet(containerd: Containerd) -> None:
    pod = containerd.pod({**ONE_GPU, "gpu-hook.io/memory": "99Gi"})
    with pytest.raises(grpc.RpcError) as refused:
        containerd.container(pod, "main")
    details = str(refused.value.details())  # type: ignore[attr-defined]
    assert "OCI runtime create failed" in details and "GH-201: " in details


def test_two_pods_share_the_gpu_until_it_is_full(containerd: Containerd) -> None:
    for _ in range(2):
        pod = containerd.pod({**ONE_GPU, "gpu-hook.io/memory": "3Gi"})
        box.saw_its_share(containerd.look(containerd.container(pod, "main")), 3072)
    pod = containerd.pod({**ONE_GPU, "gpu-hook.io/memory": "3Gi"})
    with pytest.raises(grpc.RpcError, match="GH-201"):
        containerd.container(pod, "main")


def test_a_restarted_container_gets_its_share_again(containerd: Containerd) -> None:
    pod = containerd.pod({**ONE_GPU, "gpu-hook.io/memory": "5Gi"})
    first = containerd.container(pod, "main")
    containerd.cri.call("StopContainer", id=first, timeout=0)
    containerd.cri.call("RemoveContainer", id=first)
    again = containerd.container(pod, "main")
    box.saw_its_share(containerd.look(again), 5120)
    assert [g["id"] for g in containerd.place.grants()] == [again]


def test_restart_of_containerd_keeps_containers(containerd: Containerd) -> None:
    pod = containerd.pod({**ONE_GPU, "gpu-hook.io/memory": "1Gi"})
    id = containerd.container(pod, "main")
    before = containerd.place.holders()
    containerd.stop()
    containerd.start()
    box.saw_its_share(containerd.look(id), 1024)
    assert containerd.place.holders() == before


def test_uninstall_names_what_would_not_start_again(containerd: Containerd) -> None:
    """Pods by their handler, and containers of ctr and nerdctl by their program."""
    place = containerd.place
    containerd.pod({}, name="kept")
    containerd.pod({}, handler="", name="other")
    flags = ("--address", f"{containerd.dir}/sock", "--namespace", "lab")
    assert place.hideout.run("ctr", *flags, "images", "import", str(place.archive)).returncode == 0
    options = ("--detach", "--runc-root", f"{containerd.dir}/ctr", "--cgroup", f"/{place.cgroup}/kept")
    for name, more in (("mine", ("--runc-binary", place.program)), ("plain", ())):
        done = place.hideout.run("ctr", *flags, "run", *options, *more, IMAGE, name, "true")
        assert done.returncode == 0, done.stderr
        until(lambda name=name: place.hideout.run("ctr", *flags, "task", "delete", name).returncode == 0)  # type: ignore
    try:
        command = (place.hideout.python, "-m", "oci_hook", "uninstall", "--prefix", str(place.prefix))
        done = place.hideout.run(*command, "--engine", "containerd", "--config", str(containerd.config))
        said = done.stdout + done.stderr
        assert "GH-511: " in said and "(containerd: lab/mine, pod default/kept)" in said, said
    finally:
        for name in ("mine", "plain"):
            place.hideout.run("ctr", *flags, "containers", "delete", name)
        place.hideout.run("ctr", *flags, "images", "rm", IMAGE, PAUSE)


def test_ctr(containerd: Containerd) -> None:
    flags = ["--rm", "--runc-binary", containerd.place.program, "--runc-root", f"{containerd.dir}/ctr"]
    flags += ["--cgroup", f"/{containerd.place.cgroup}/ctr"]
    asked = ["--annotation", "gpu-hook.io/devices=0", "--annotation", "gpu-hook.io/memory=1Gi"]
    # What a program prints at its end ctr may lose on a busy machine: it deletes the task before it has copied all.
    out = containerd.dir / "out"
    out.mkdir(exist_ok=True)
    flags += ["--mount", f"type=bind,src={out},dst=/out,options=rbind:rw"]
    done = containerd.ctr("run", *flags, *asked, IMAGE, "ctr-probe", "sh", "-c", f"exec > /out/run 2>&1; {LOOK}")
    assert done.returncode == 0, done.stderr
    box.saw_its_share((out / "run").read_text(), 1024)
    started = containerd.ctr("run", "--detach", *flags[1:], *asked, IMAGE, "ctr-exec", "sleep", "1000")
    assert started.returncode == 0, started.stderr
    try:
        seen = containerd.ctr("task", "exec", "--exec-id", "one", "ctr-exec", "sh", "-c", "env > /out/exec")
        assert "GPU_HOOK_MEMORY_MIB=1024" in (out / "exec").read_text(), seen.stderr
    finally:
        containerd.ctr("task", "kill", "--signal", "9", "ctr-exec")
        until(lambda: containerd.ctr("container", "delete", "ctr-exec").returncode == 0)
    refused = containerd.ctr("run", *flags, "--annotation", "gpu-hook.io/memory=x", IMAGE, "ctr-bad", "true")
    assert refused.returncode == 1 and "GH-101: " in refused.stderr
