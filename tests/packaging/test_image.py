"""The image that installs onto its machine: run by runc with a Debian's root as that machine's, and read by podman."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from oci_hook.kube.link import kubeconfig
from testbed import REPO
from testbed.until import until
from tests.packaging.conftest import built_twice
from tests.packaging.machine import Machine

pytestmark = [pytest.mark.root, pytest.mark.slow]
PREFIX = "/opt/gpu-hook"
NO_HOST = "/none has no etc; mount the machine's / there"  # where all before it is well


@pytest.fixture(scope="module")
def archive(packages: Path) -> Path:
    (file,) = packages.glob("gpu-hook-install_*.tar")
    return file


@pytest.fixture(scope="module")
def bundle(archive: Path, packages: Path) -> Path:
    """The image's files and a spec such as a privileged Pod's, in the folder that machines see as /packages."""
    folder = packages / "bundle"
    rootfs = folder / "rootfs"
    if (folder / "config.json").exists():  # of another module's tests in this process
        return folder
    rootfs.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        (image,) = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
        config = json.load(tar.extractfile(image["Config"]))  # type: ignore[arg-type]
        for name in image["Layers"]:
            layer = tar.extractfile(name)
            assert layer
            subprocess.run(["tar", "-xz", "-C", str(rootfs)], input=layer.read(), check=True)
    for name in ("host", "proc", "dev"):
        (rootfs / name).mkdir()
    subprocess.run(["runc", "spec"], cwd=folder, check=True)
    spec = json.loads((folder / "config.json").read_text())
    process = spec["process"]
    process.update(terminal=False, args=config["config"]["Entrypoint"])
    process["capabilities"] = {
        kind: [*sets, "CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_DAC_OVERRIDE", "CAP_SYS_PTRACE"]
        for kind, sets in process["capabilities"].items()
    }
    spec["root"]["readonly"] = False
    spec.pop("hostname")
    spec["mounts"] = [m for m in spec["mounts"] if m["destination"] in ("/proc", "/dev")]
    spec["mounts"].append({"destination": "/host", "source": "/", "type": "bind", "options": ["rbind", "rslave", "rw"]})
    spec["linux"]["namespaces"] = [{"type": "mount"}]
    spec["linux"].pop("maskedPaths")
    spec["linux"].pop("readonlyPaths")
    spec["linux"].pop("resources")
    process["env"] = config["config"]["Env"]
    (folder / "config.json").write_text(json.dumps(spec))
    return folder


class Pod:
    """The image, running as the DaemonSet would run it."""

    def __init__(self, machine: Machine, bundle: Path, verb: str = "", **environment: str) -> None:
        self.id = f"gh-image{verb}-{machine.keeper.pid}"
        self.machine = machine
        self.log = bundle.parent / f"log{verb}"
        spec = json.loads((bundle / "config.json").read_text())
        spec["process"]["env"] = ["PATH=/bin", *(f"{key}={value}" for key, value in environment.items())]
        spec["process"]["args"] += [verb] if verb else []
        spec["linux"]["cgroupsPath"] = f"/{self.id}"
        own = bundle.parent / f"own{verb}"
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        spec["root"]["path"] = "/packages/bundle/rootfs"
        (own / "config.json").write_text(json.dumps(spec))
        with open(self.log, "w") as log:
            command = machine.command("runc", "run", "--bundle", f"/packages/own{verb}", self.id)
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def ready(self) -> None:
        until(lambda: "SIGTERM removes it" in self.log.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()

    def read(self) -> str:
        """What it said, once it has ended."""
        self.process.wait(60)
        return self.log.read_text()

    def stop(self) -> int:
        """SIGTERM, as a kubelet or `docker stop` sends it; the exit status."""
        self.machine.sh(f"runc kill {self.id} TERM")
        return self.process.wait(60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.machine.run("runc", "kill", self.id, "KILL")
        self.process.wait(60)
        self.machine.run("runc", "delete", "--force", self.id)


@pytest.fixture
def pods(machine: Machine, bundle: Path) -> Iterator[Any]:
    made: list[Pod] = []

    def start(verb: str = "", **environment: str) -> Pod:
        made.append(Pod(machine, bundle, verb, **environment))
        return made[-1]

    yield start
    for pod in made:
        pod.close()


def test_digests_and_sizes_are_those_of_the_blobs(archive: Path) -> None:
    with tarfile.open(archive) as tar:

        def read(entry: dict[str, Any]) -> bytes:
            data = tar.extractfile("blobs/" + entry["digest"].replace(":", "/")).read()  # type: ignore[union-attr]
            assert len(data) == entry["size"] and entry["digest"] == "sha256:" + hashlib.sha256(data).hexdigest()
            return bytes(data)

        index = json.load(tar.extractfile("index.json"))  # type: ignore[arg-type]
        manifest = json.loads(read(index["manifests"][0]))
        read(manifest["config"])
        (layer,) = map(read, manifest["layers"])
    assert layer


def test_the_same_sources_give_the_same_bytes(packages: Path, tmp_path: Path) -> None:
    one, other = built_twice("image", packages, tmp_path)
    assert one == other


def test_podman_loads_it_under_the_name_in_the_daemonset(archive: Path) -> None:
    folder = tempfile.mkdtemp(prefix="gh-", dir="/tmp")  # a short path
    podman = ["podman", f"--root={folder}/root", f"--runroot={folder}/run", "--storage-driver=vfs"]
    try:
        for kind in ("docker-archive", "oci-archive"):
            r = subprocess.run([*podman, "pull", "-q", f"{kind}:{archive}"], capture_output=True, text=True)
            assert r.returncode == 0, r.stderr
        daemonset = yaml.safe_load((REPO / "packaging/kubernetes/daemonset.yaml").read_text())
        name = daemonset["spec"]["template"]["spec"]["containers"][0]["image"]
        r = subprocess.run([*podman, "image", "inspect", name], capture_output=True, text=True)
        assert r.returncode == 0, r.stderr
        assert json.loads(r.stdout)[0]["Config"]["Entrypoint"] == ["/install"]
    finally:
        subprocess.run([*podman, "system", "reset", "--force"], capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def test_the_daemonset_says_what_the_image_understands() -> None:
    daemonset = yaml.safe_load((REPO / "packaging/kubernetes/daemonset.yaml").read_text())
    spec = daemonset["spec"]["template"]["spec"]
    text = (REPO / "packaging/image/install").read_text()
    for container in spec["containers"]:
        for variable in container["env"]:
            # POD_UID is for the manifest's own lines
            assert f"${{{variable['name']}" in text or variable["name"] == "POD_UID"
    for verb in (*spec["containers"][1]["args"], spec["containers"][0]["readinessProbe"]["exec"]["command"][1]):
        assert f"  {verb})" in text
    labels = daemonset["spec"]["template"]["metadata"]["labels"]
    assert daemonset["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert [m["name"] for m in spec["containers"][1]["volumeMounts"]] == [v["name"] for v in spec["volumes"]]


def test_installs_onto_its_machine_and_cleans_up_when_stopped(machine: Machine, pods: Any) -> None:
    machine.sh("touch /usr/bin/dockerd")
    before = machine.files()
    pod = pods(ENGINES="docker")
    pod.ready()
    assert machine.sh(f"{PREFIX}/bin/gpu-hook-runtime --version").startswith("runc ")
    assert PREFIX in machine.sh("cat /etc/docker/daemon.json")
    machine.is_roots_alone(PREFIX, f"{PREFIX}-cli")
    assert "gpu-hook-simulator" in machine.fails(f"{PREFIX}-cli/gpu-hook sim up")
    machine.simulator_beside(f"{PREFIX}-cli")
    machine.sh(f"{PREFIX}-cli/gpu-hook sim up --gpus 2")
    assert machine.sh(f"{PREFIX}-cli/gpu-hook gpus").count("GPU-") == 2
    assert pod.stop() == 0, pod.log.read_text()
    assert machine.files() - before <= {"/etc/docker"}


def test_kept_where_asked_and_renewed_by_the_next_start(machine: Machine, pods: Any) -> None:
    pod = pods(ENGINES="none", KEEP="true")  # as the chart has it for `keep: yes`
    pod.ready()
    assert pod.stop() == 0
    pod.close()
    machine.sh(f"sed -i 's/placement: by-class/placement: spread/' {PREFIX}/etc/settings.yaml")
    machine.sh(f"rm {PREFIX}/bin/oci-gpu-hook")
    pod = pods(ENGINES="none")
    pod.ready()
    assert machine.exists(f"{PREFIX}/bin/oci-gpu-hook")
    assert "placement: spread" in machine.sh(f"cat {PREFIX}/etc/settings.yaml")
    assert pod.stop() == 0
    assert not machine.exists(PREFIX)


def test_settings_that_come_before_what_they_name(machine: Machine, pods: Any) -> None:
    """Kubernetes fills in only variables that stand before. A node that needs keys is ready when it has them."""
    settings = "cluster=required agent.controller_token=/pods/$(POD_UID)/token"
    pods(ENGINES="none", KEEP="yes", POD_UID="u-1", SETTINGS=settings).ready()
    assert "/pods/u-1/token" in machine.sh(f"cat {PREFIX}/etc/settings.yaml")
    assert "has no keys yet" in pods("ready", ENGINES="none", POD_UID="u-1").read()
    machine.sh(f"touch {PREFIX}/etc/cluster.json")
    assert pods("ready", ENGINES="none", POD_UID="u-1").process.wait(60) == 0


def test_the_account_of_its_pod(machine: Machine, pods: Any, tmp_path: Path) -> None:
    """A kubeconfig of the token, which is below the kubelet's folder wherever that is."""
    asked = {"POD_UID": "u-1", "KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    pods(ENGINES="none", SETTINGS="agent.kubeconfig=$(ACCOUNT)", **asked).ready()
    written = machine.sh(f"cat {PREFIX}-cli/account.json")
    assert f"kubeconfig: {PREFIX}-cli/account.json" in machine.sh(f"cat {PREFIX}/etc/settings.yaml")
    function = re.search(r"^account\(\) \{.*?^\}$", (REPO / "packaging/image/install").read_text(), re.M | re.S)
    assert function is not None
    (tmp_path / "mounts").write_text("".join(f"1 2 0:5 / {path} rw - tmpfs tmpfs rw\n" for path in MOUNTS))
    elsewhere = f"{function[0].replace('/proc/1/mountinfo', str(tmp_path / 'mounts'))}\naccount"
    done = subprocess.run(["sh", "-euc", elsewhere], env={**os.environ, **asked}, capture_output=True, text=True)
    for text, folder in ((written, "/var/lib/kubelet"), (done.stdout, "/var/lib/k0s/kubelet")):
        (tmp_path / "conf").write_text(text)
        known = kubeconfig.of_files([str(tmp_path / "conf")])
        at = f"{folder}/pods/u-1/volumes/kubernetes.io~projected/account"
        assert (known.server, known.token_file, known.ca) == ("https://[fd00::1]:443", f"{at}/token", f"{at}/ca.crt")


MOUNTS = [
    "/proc",
    *(f"/var/lib/k0s/kubelet/pods/{pod}/volumes/kubernetes.io~projected/account" for pod in ("u-2", "u-1")),
]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("KEEP=off", "KEEP=off is neither yes nor no"),
        ("RESTART=1", "RESTART=1 is neither yes nor no"),
        *((f"{name}={word}", NO_HOST) for name in ("KEEP", "RESTART") for word in ("Yes", "TRUE", "False", "nO", "")),
    ],
)
def test_a_switch_is_yes_or_no_in_any_letters(said: str, error: str) -> None:
    command = ["sh", REPO / "packaging/image/install"]
    done = subprocess.run(
        command, env={**os.environ, "HOST_ROOT": "/none", **dict([said.split("=")])}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, f"gpu-hook: {error}\n")


def test_settings_that_are_lists(machine: Machine, pods: Any) -> None:
    pods(ENGINES="none", SETTINGS="memory_reserve=1Gi dialects=[t9k,  nvidia] agent.interval=7").ready()
    said = machine.sh(f"cat {PREFIX}/etc/settings.yaml")
    assert all(line in said for line in ("memory_reserve: 1Gi", "dialects: [t9k, nvidia]", "interval: 7")), said


def test_the_agent_waits_until_its_own_pod_has_installed(machine: Machine, pods: Any) -> None:
    """An earlier Pod's install is replaced below an agent that starts from it, and has the earlier Pod's settings."""
    first = pods(ENGINES="none", KEEP="yes", POD_UID="first")
    first.ready()
    assert first.stop() == 0
    agent = pods("agent", POD_UID="second")
    time.sleep(5)
    assert "started for" not in agent.log.read_text()
    assert "not installed yet" in pods("ready", ENGINES="none", POD_UID="second").read()
    pods(ENGINES="none", POD_UID="second").ready()
    until(lambda: "started for" in agent.log.read_text(), agent.log.read_text)
    assert agent.stop() == 0
    assert "Traceback" not in agent.log.read_text()


def test_stays_while_containers_hold_shares(machine: Machine, pods: Any, packages: Path) -> None:
    pod = pods(ENGINES="none")
    pod.ready()
    machine.simulator_beside(f"{PREFIX}-cli")
    machine.sh(f"{PREFIX}-cli/gpu-hook sim up")
    with machine.container_with_a_share(packages, PREFIX):
        assert pod.stop() == 1
        assert "GH-504" in pod.log.read_text() and "stays in" in pod.log.read_text()
        assert "sleeper" in machine.sh(f"{PREFIX}-cli/gpu-hook ps")
    pod.close()
    pod = pods(ENGINES="none")
    pod.ready()
    assert pod.stop() == 0, pod.log.read_text()
    assert not machine.exists(PREFIX) and not machine.exists(f"{PREFIX}-cli")


def test_a_stop_waits_for_containers_that_end_just_now(machine: Machine, pods: Any, packages: Path) -> None:
    """As where everything is deleted at once, and a pod with no grace period goes before its container does."""
    pod = pods(ENGINES="none", STOP_SECONDS="60")
    pod.ready()
    machine.simulator_beside(f"{PREFIX}-cli")
    machine.sh(f"{PREFIX}-cli/gpu-hook sim up")
    status: list[int] = []
    with machine.container_with_a_share(packages, PREFIX):
        stopping = threading.Thread(target=lambda: status.append(pod.stop()))
        stopping.start()
        time.sleep(3)
        assert stopping.is_alive()
    stopping.join()
    assert status == [0], pod.log.read_text()
    assert not machine.exists(PREFIX) and not machine.exists(f"{PREFIX}-cli")


def test_a_removal_that_is_refused_leaves_the_install(machine: Machine, pods: Any) -> None:
    machine.sh("touch /usr/bin/dockerd")
    pod = pods(ENGINES="docker")
    pod.ready()
    machine.sh("echo '{' >/etc/docker/daemon.json")
    assert pod.stop() == 1
    assert "GH-50" in pod.log.read_text() and "stays in" in pod.log.read_text()
    assert machine.exists(f"{PREFIX}/bin/gpu-hook-runtime") and machine.exists(f"{PREFIX}-cli/gpu-hook")
