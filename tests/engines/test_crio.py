"""CRI-O for real: handler and hooks as the kubelet uses them, over CRI; limits seen from inside.

GPU_HOOK_CRIO names the folders (by :) of the versions to run, each with its programs crio and pinns. conmon, runc, crun and
skopeo are the machine's.
"""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from testbed.engines import box
from testbed.engines.box import IMAGE, PAUSE, Place
from testbed.engines.cri import CONTAINER, NODE, POD, Cri
from testbed.engines.pods import Pods
from testbed.packages import debian_13
from tests.engines.test_pages import Page

pytestmark = [pytest.mark.root, pytest.mark.slow]

FOLDERS = [folder for folder in os.environ.get("GPU_HOOK_CRIO", "").split(":") if folder]
# What a machine without systemd and a network needs.
MACHINE = """\
[crio]
root = "{dir}/storage"
runroot = "{dir}/runroot"
storage_driver = "vfs"
[crio.runtime]
conmon_cgroup = "pod"
cgroup_manager = "cgroupfs"
pinns_path = "{dir}/programs/pinns"
[crio.image]
pause_image = "{pause}"
pause_command = ""
"""
# As CRI-O's own packages have it: its programs are in none of the folders of its PATH.
PACKAGED = """\
[crio.runtime]
default_runtime = "plain"
[crio.runtime.runtimes.plain]
runtime_path = "{folder}/{runtime}"
runtime_root = "/run/plain"
monitor_path = "{folder}/conmon"
allowed_annotations = ["io.kubernetes.cri-o.ShmSize"]
"""
# Root of some machines may not lower oom_score_adj, which CRI-O asks for a pod's first container.
FRONT = """\
#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
bundle=.
past=
for word; do
  case $past in -b | --bundle) bundle=$word ;; esac
  past=$word
done
[ ! -f "$bundle/config.json" ] || sed -i 's/"oomScoreAdj": *-[0-9]*/"oomScoreAdj": 0/' "$bundle/config.json"
exec {runtime} "$@"
"""
DROP_INS = "etc/crio/crio.conf.d"
HOOKS = "usr/share/containers/oci/hooks.d"
SHARE = {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": "1Gi", "gpu-hook.io/compute": "30"}


class Crio(Pods):
    namespaces = {"network": NODE, "pid": CONTAINER}  # CRI-O makes no pause container then

    def __init__(self, place: Place, programs: str, runtime: str) -> None:
        self.root = Path(f"/proc/{place.hideout.keeper.pid}/root")
        self.folder = place.dir / "libexec"
        self.folder.mkdir()
        (self.folder / "conmon").symlink_to("/usr/bin/conmon")
        self.runtime = self.folder / runtime
        self.runtime.write_text(FRONT.format(runtime=shutil.which(runtime)))
        self.runtime.chmod(0o755)
        self.path = place.dir / "path"  # CRI-O's, with no more than it needs
        self.path.mkdir()
        for program in ("nsenter", "iptables"):
            if found := shutil.which(program):
                (self.path / program).symlink_to(found)
        own = place.dir / "programs"
        own.mkdir()
        (self.root / "opt/bin").mkdir()
        for program in ("crio", "pinns"):
            shutil.copy(f"{programs}/{program}", own)
        (self.root / "opt/bin/crio").symlink_to(own / "crio")
        self.write("etc/crio/crio.conf", MACHINE.format(dir=place.dir, pause=PAUSE))
        self.write(f"{DROP_INS}/10-crio.conf", PACKAGED.format(folder=self.folder, runtime=runtime))
        self.before = self.files()
        place.gpu_hook("settings", "set", f"runtime={self.runtime}")
        super().__init__(place, Cri(f"{self.root}/run/crio/crio.sock"))
        for image in (IMAGE, PAUSE):
            to = f"containers-storage:[vfs@{place.dir}/storage+{place.dir}/runroot]{image}"
            done = box.run("skopeo", "copy", "--quiet", f"docker-archive:{place.archive}:{image}", to)
            assert done.returncode == 0, done.stderr

    def remove_pods(self) -> None:
        for id in self.started:  # else CRI-O waits 10 s, since nothing in them minds SIGTERM
            self.cri.call("StopContainer", id=id, timeout=0)
        self.started.clear()
        super().remove_pods()

    def write(self, file: str, text: str) -> Path:
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def files(self) -> dict[str, bytes]:
        """All that `install` might write for CRI-O."""
        folders = (self.root / "etc/crio", self.root / "etc/containers", self.root / HOOKS)
        paths = (path for folder in folders for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.root)): path.read_bytes() for path in paths}

    def install(self, *options: str) -> str:
        return self.place.gpu_hook("install", "--engine", "crio", *options)

    def uninstall(self) -> None:
        self.place.gpu_hook("uninstall", "--engine", "crio")

    def start(self) -> None:
        command = self.place.hideout.command("env", f"PATH={self.path}", "/opt/bin/crio")
        self.process = box.serve(command, self.place.dir / "crio.log", self.cri.answers)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(box.WAIT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def spec(self, id: str) -> Any:
        return json.loads(self.bundle(id, "config.json").read_text())

    def bundle(self, id: str, file: str) -> Path:
        return self.place.dir / f"runroot/vfs-containers/{id}/userdata" / file


# runc of this machine; crun of Debian 13, since an older one does not know the new CRI-O's config.json.
GIVEN = [(folder, runtime) for folder in FOLDERS or [""] for runtime in ("runc", "crun")]
ONE_HIERARCHY = "umount /sys/fs/cgroup/unified 2>/dev/null || true"  # crun refuses the hybrid layout


@pytest.fixture(scope="module", params=GIVEN, ids=lambda given: f"{Path(given[0]).name}-{given[1]}")
def daemon(native: Path, request: pytest.FixtureRequest) -> Iterator[Crio]:
    folder, runtime = request.param
    if not folder:
        pytest.skip("GPU_HOOK_CRIO names no folder with CRI-O's programs")
    place = Place(native, debian_13(), ONE_HIERARCHY) if runtime == "crun" else Place(native)
    try:
        crio = Crio(place, folder, runtime)
        crio.install()
        crio.start()
        try:
            yield crio
            crio.remove_pods()
        finally:
            crio.stop()
    finally:
        place.close()


@pytest.fixture
def crio(daemon: Crio) -> Iterator[Crio]:
    yield daemon
    daemon.remove_pods()
    assert daemon.place.no_grants()


def test_two_containers_of_a_pod_have_limits_of_their_own(crio: Crio) -> None:
    pod = crio.pod({"gpu-hook.io/devices": "0", "gpu-hook.io/memory": "1Gi", "gpu-hook.io/memory.trainer": "2Gi"})
    assert crio.place.grants() == []
    server, trainer = crio.container(pod, "server"), crio.container(pod, "trainer")
    box.saw_its_share(crio.look(server), 1024)
    box.saw_its_share(crio.look(trainer), 2048)
    for id, mib in ((server, 1024), (trainer, 2048)):  # as `kubectl exec`
        env = crio.cri.exec(id, "env")[1].splitlines()
        assert f"GPU_HOOK_MEMORY_MIB={mib}" in env and any(e.startswith("NVIDIA_VISIBLE_DEVICES=GPU-") for e in env)
    who = {grant["name"]: grant for grant in crio.place.grants()}
    assert set(who) == {"server", "trainer"}
    expected = {"engine": "crio", "namespace": "default", "pod": "pod", "pod_uid": "uid-0", "id": server}
    assert {key: who["server"][key] for key in expected} == expected


def test_commands_say_whose_container_it_is(crio: Crio) -> None:
    pod = crio.pod(SHARE, name="web-0")
    crio.container(pod, "main")
    for words in (("ps",), ("top", "--once"), ("events", "-c", "default/web-0/main"), ("why", "default/web-0/main")):
        assert "default/web-0/main" in crio.place.gpu_hook(*words)
    with pytest.raises(grpc.RpcError, match="GH-201"):
        crio.container(crio.pod({**SHARE, "gpu-hook.io/memory": "99Gi"}, name="big-0"), "main")
    assert "GH-201" in crio.place.gpu_hook("why", "default/big-0/main")


def test_a_pod_cannot_pass_for_another(crio: Crio) -> None:
    """CRI-O hands a pod's own annotations on, all but a few, and writes its own over them."""
    own = {"io.kubernetes.cri-o.Name": "k8s_x_x_kube-system_x_0", "io.kubernetes.cri-o.ContainerType": "sandbox"}
    other = {"io.kubernetes.cri.sandbox-namespace": "kube-system", "io.kubernetes.cri.container-name": "x"}
    id = crio.container(crio.pod({**SHARE, **own, **other}), "main")
    assert crio.spec(id)["annotations"]["io.kubernetes.cri.container-name"] == "x"
    ((engine, namespace, name),) = [(g["engine"], g["namespace"], g["name"]) for g in crio.place.grants()]
    assert (engine, namespace, name) == ("crio", "default", "main")


def test_the_pause_container_has_no_share(crio: Crio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crio, "namespaces", {"network": NODE, "pid": POD})
    pod = crio.pod(SHARE)
    assert crio.place.grants() == []
    box.saw_its_share(crio.look(crio.container(pod, "main")), 1024)
    os.kill(int(crio.bundle(crio.pods[-1], "pidfile").read_text()), signal.SIGKILL)


def test_every_spelling_reaches_the_runtime(crio: Crio) -> None:
    pod = crio.pod({"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_PERCENT": "25"})
    box.saw_its_share(crio.look(crio.container(pod, "main")), box.MEMORY_MIB // 4)


@pytest.mark.parametrize("handler", ("gpu-hook", ""))
def test_a_pod_that_asks_nothing_has_no_gpu(crio: Crio, handler: str) -> None:
    pod = crio.pod({"somebody.else/key": "1"}, handler=handler)
    id = crio.container(pod, "main", env={"NVIDIA_VISIBLE_DEVICES": "all"})
    assert "nvidia" not in crio.cri.exec(id, "ls", "/dev", "/run")[1]


@pytest.mark.parametrize("handler", ("gpu-hook", ""))
def test_annotations_that_crio_allows(crio: Crio, handler: str) -> None:
    """Those that CRI-O itself obeys need leave; our handler has that of the node's own one."""
    pod = crio.pod({**SHARE, "io.kubernetes.cri-o.ShmSize": "1Mi", "io.kubernetes.cri-o.Devices": "/dev/fuse"}, handler)
    id = crio.container(pod, "main")
    assert "size=1024k" in crio.cri.exec(id, "grep", " /dev/shm ", "/proc/mounts")[1]
    assert "io.kubernetes.cri-o.Devices" not in crio.spec(id)["annotations"]
    box.saw_its_share(crio.look(id), 1024)


def test_hooks_serve_the_usual_handler(crio: Crio) -> None:
    pod = crio.pod({**SHARE, "gpu-hook.io/memory.trainer": "2Gi"}, handler="")
    server, trainer = crio.container(pod, "server"), crio.container(pod, "trainer")
    box.saw_its_share(crio.look(server), 1024)
    box.saw_its_share(crio.look(trainer), 2048)
    assert "GPU_HOOK" not in crio.cri.exec(server, "env")[1]
    assert {(g["engine"], g["pod"], g["name"]) for g in crio.place.grants()} == {
        ("crio", "pod", "server"),
        ("crio", "pod", "trainer"),
    }


@pytest.mark.parametrize("handler", ("gpu-hook", ""))
def test_a_refusal_reaches_the_kubelet(crio: Crio, handler: str) -> None:
    pod = crio.pod({**SHARE, "gpu-hook.io/memory": "99Gi"}, handler)
    with pytest.raises(grpc.RpcError) as refused:
        crio.container(pod, "main")
    told = str(refused.value.details())  # type: ignore[attr-defined]
    if handler or crio.runtime.name == "runc":
        assert "GH-201: " in told
    else:  # crun keeps to itself what a hook says
        assert "oci-gpu-hook` (exit code: 1)" in told
    assert "GH-201" in crio.place.gpu_hook("why", "default/pod/main")


def test_a_restarted_container_gets_its_share_again(crio: Crio) -> None:
    pod = crio.pod({**SHARE, "gpu-hook.io/memory": "5Gi"})
    first = crio.container(pod, "main")
    crio.cri.call("StopContainer", id=first, timeout=0)
    crio.cri.call("RemoveContainer", id=first)
    crio.started.remove(first)
    again = crio.container(pod, "main")
    box.saw_its_share(crio.look(again), 5120)
    assert [g["id"] for g in crio.place.grants()] == [again]


@pytest.mark.parametrize("handler", ("gpu-hook", ""))
def test_reload_and_restart_keep_containers(crio: Crio, handler: str) -> None:
    id = crio.container(crio.pod(SHARE, handler), "main")
    before = crio.place.holders()
    crio.process.send_signal(signal.SIGHUP)
    box.saw_its_share(crio.look(id), 1024)
    crio.restart()
    box.saw_its_share(crio.look(id), 1024)
    assert crio.place.holders() == before
    crio.cri.call("StopContainer", id=id, timeout=0)
    assert crio.place.no_grants()


def doctor(crio: Crio) -> dict[str, str]:
    """doctor's lines about CRI-O, by their state."""
    done = crio.place.hideout.run(
        crio.place.hideout.python, "-m", "oci_hook", "doctor", "--json", "--prefix", str(crio.place.prefix)
    )
    return {
        check["state"]: check["message"] for check in json.loads(done.stdout)["findings"] if check["check"] == "crio"
    }


def test_install_and_uninstall(crio: Crio) -> None:
    """In the life of one node: to and fro under a running share, the default runtime, drop-ins before and after ours."""
    crio.container(crio.pod(SHARE), "main")
    assert set(doctor(crio)) == {"ok"}
    installed = crio.files()
    crio.install()
    assert crio.files() == installed

    crio.install("--set-default")
    assert "has not read" in doctor(crio)["warn"]
    crio.restart()
    assert set(doctor(crio)) == {"ok"}
    other = crio.container(crio.pod(SHARE, handler="", name="by-default"), "main")
    box.saw_its_share(crio.look(other), 1024)
    assert "GPU_HOOK_MEMORY_MIB=1024\n" in crio.cri.exec(other, "env")[1]

    with pytest.raises(AssertionError, match="GH-511: .*crio: pod default/pod"):
        crio.uninstall()
    crio.remove_pods()
    crio.uninstall()
    assert crio.files() == crio.before
    crio.restart()
    with pytest.raises(grpc.RpcError, match="failed to find runtime handler gpu-hook"):
        crio.pod(SHARE)
    crio.install()
    crio.restart()


def test_hooks_in_the_folder_that_a_drop_in_names(crio: Crio) -> None:
    crio.uninstall()
    named = crio.write(
        f"{DROP_INS}/00-default", f'[crio.runtime]\nhooks_dir = ["/{HOOKS}", "/etc/containers/oci/site.d"]\n'
    )
    crio.install()
    crio.restart()
    assert len(list((crio.root / "etc/containers/oci/site.d").iterdir())) == 2
    box.saw_its_share(crio.look(crio.container(crio.pod(SHARE, handler=""), "main")), 1024)
    crio.uninstall()
    named.unlink()
    assert crio.files() == crio.before
    crio.install()
    crio.restart()


def test_the_page(crio: Crio) -> None:
    """docs/guide/crio.md: every command, as a reader types it, with an install of its own in /opt/gpu-hook."""
    crio.uninstall()
    page = Page(crio.place, "crio")
    ran = ""
    for label, text in page.blocks:
        if label == "yaml":
            document = yaml.safe_load(text)
            handler = document["spec"]["runtimeClassName"]
            pod = crio.pod(document["metadata"]["annotations"], handler, document["metadata"]["name"])
            seen = [crio.look(crio.container(pod, each["name"])) for each in document["spec"]["containers"]]
            box.saw_its_share(seen[0], 4096)
            box.saw_its_share(seen[1], 6144)
            continue
        for line in text.splitlines():
            if line.startswith("gpu-hook uninstall"):
                assert "GH-511: " in page.sh(line).stderr
                crio.remove_pods()
            if line.startswith("systemctl restart crio"):
                crio.restart()
            else:
                ran += page.run(label, line)
    assert "all is well" in ran and ran.count("default/two-shares/trainer") >= 2
    assert crio.files() == crio.before
    crio.install()
    crio.restart()
