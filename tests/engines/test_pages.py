"""docker.md, containerd.md, podman.md and crio.md of docs/guide: every command, as a reader types it, against real
engines.

What differs from a reader's machine: the GPUs are simulated (`sim up` where the page says `gpus --refresh`), `ubuntu`
is the test's own image, and `systemctl restart` is a script that does it.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import REPO
from testbed.engines import box
from testbed.engines.box import IMAGE, LOOK, PAUSE, Place
from testbed.engines.cri import NODE, Cri
from testbed.until import until

pytestmark = [pytest.mark.root, pytest.mark.slow]
UBUNTU = "docker.io/library/ubuntu:latest"
SYSTEMCTL = """#!/bin/sh
# restart of a daemon without systemd
[ "$1 $2" = "restart containerd" ] || exit 1
kill $(cat {dir}/containerd.pid) && while [ -e /proc/$(cat {dir}/containerd.pid) ]; do sleep 0.1; done
exec {dir}/start-containerd
"""
CONTAINERD = """#!/bin/sh
setsid containerd >>{dir}/containerd.log 2>&1 </dev/null & echo $! >{dir}/containerd.pid
for i in $(seq 300); do ctr version >/dev/null 2>&1 && exit 0; sleep 0.1; done; exit 1
"""
PODMAN = """[containers]
default_ulimits = ["nofile=1000:1000", "nproc=1000:1000"]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "runc"
"""


class Page:
    """The fenced blocks of a page in their order: (what follows the three ticks, text)."""

    def __init__(self, place: Place, name: str) -> None:
        text = (REPO / "docs/guide" / f"{name}.md").read_text()
        self.blocks = re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.M | re.S)
        self.place = place
        self.pods: list[str] = []
        self.bin = place.dir / "bin"
        self.bin.mkdir(exist_ok=True)
        python = shlex.quote(place.hideout.python)
        self.script("gpu-hook", f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(REPO))} exec {python} -m oci_hook "$@"\n')

    def script(self, name: str, text: str) -> Path:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def sh(self, text: str) -> "subprocess.CompletedProcess[str]":
        text = text.replace("gpu-hook gpus --refresh ", "gpu-hook sim up --gpus 2 ")
        script = f"set -e\nexport PATH={self.bin}:$PATH\ncd /\n{text}"
        return self.place.hideout.run("bash", "-c", script)

    def run(self, label: str, text: str) -> str:
        """One block; a label "... fails GH-x" says that its last command is refused with this code."""
        done = self.sh(text)
        _, fails, code = label.partition(" fails ")
        if fails:
            assert done.returncode != 0 and f"{code}: " in done.stderr, text + done.stdout + done.stderr
        else:
            assert done.returncode == 0, text + done.stdout + done.stderr
        return done.stdout

    def left(self) -> str:
        """Files in the engines' directories that name gpu-hook."""
        folders = ("/etc/docker", "/etc/containerd", "/etc/containers", "/etc/crio", "/usr/share/containers")
        return self.place.hideout.run("grep", "-rl", "gpu-hook", *folders).stdout


@pytest.fixture
def docker(place: Place) -> Iterator[Page]:
    page = Page(place, "docker")
    flags = (f"--data-root={place.dir}/data", f"--cgroup-parent=/{place.cgroup}", "--bridge=none")
    command = place.hideout.command("dockerd", *flags, "--iptables=false", "--ip-forward=false")
    ready = lambda: place.hideout.run("docker", "version").returncode == 0  # noqa: E731
    process = box.serve(command, place.dir / "dockerd.log", ready)
    try:
        page.run("", f"docker load --quiet --input {place.archive}; docker tag {IMAGE} ubuntu")
        yield page
    finally:
        page.sh("docker ps -aq | xargs -r docker rm -f")
        process.terminate()
        process.wait(box.WAIT)


def test_docker(docker: Page) -> None:
    version = int(docker.sh("dockerd --version").stdout.split()[2].partition(".")[0])
    way = "annotations" if version >= 24 else "environment"
    done = docker.sh("gpu-hook install --engine docker; gpu-hook sim up; gpu-hook doctor")
    assert done.returncode == 1 and "has not read /etc/docker/daemon.json" in done.stdout, done.stdout + done.stderr
    docker.run("", "gpu-hook uninstall")
    ran = ""
    for label, text in docker.blocks:
        words = label.split()
        if words[0] == "sh" and (len(words) == 1 or words[1] == way):
            if not ran:
                ran = docker.run(label, text)
                seen = docker.run("", of_the_readme("--annotation" if version >= 24 else "-v"))
                assert "GPU_HOOK_COMPUTE=30\n" in seen
                continue
            ran += docker.run(label, text)
    assert ran.count("GPU_HOOK_MEMORY_MIB=4096") == ran.count("/dev/nvidia0\n") == (1 if way == "annotations" else 2)
    assert "all is well" in ran
    assert "960 MiB, then CUDA_ERROR_OUT_OF_MEMORY\n" in ran
    assert docker.left() == ""


def of_the_readme(way: str) -> str:
    """README.md's first command for docker that asks in this way."""
    found = re.findall(r"^    (docker run .*) IMAGE$", (REPO / "README.md").read_text(), re.M)
    (command,) = [c for c in found if f" {way} " in c]
    return f"{command} --rm ubuntu env\n"


@pytest.fixture
def containerd(place: Place) -> Iterator[Page]:
    page = Page(place, "containerd")
    start = page.script("start-containerd", CONTAINERD.format(dir=page.bin))
    page.script("systemctl", SYSTEMCTL.format(dir=page.bin))
    # As Debian's file, with what root of a test machine needs.
    page.run(
        "",
        """file=/etc/containerd/config.toml
        sed -i '/^ *\\[plugins."io.containerd.grpc.v1.cri"\\]/a restrict_oom_score_adj = true' $file
        grep -q restrict_oom $file""",
    )
    page.run("", str(start))
    try:
        page.run("", f"ctr -n k8s.io images import {place.archive}; ctr -n k8s.io images tag {IMAGE} {UBUNTU}")
        yield page
    finally:
        remove_pods(page)
        page.sh(f"kill $(cat {page.bin}/containerd.pid)")


def test_containerd(containerd: Page) -> None:
    page = containerd
    handlers: dict[str, str] = {}
    said = []
    for label, text in page.blocks:
        if label == "sh":
            if text.startswith("gpu-hook uninstall"):
                refused = page.sh("gpu-hook uninstall --engine containerd").stderr
                assert "GH-511: " in refused and "pod default/two-shares" in refused
                remove_pods(page)
            said.append(page.run(label, text))
            # Where processors are busy, containerd's shim gives up after 2 s to copy what a container said.
            for _ in range(5 if text.startswith("ctr ") and not said[-1] else 0):
                said[-1] = said[-1] or page.run(label, text)
            continue
        document = yaml.safe_load(text)
        if document["kind"] == "RuntimeClass":
            handlers[document["metadata"]["name"]] = document["handler"]
            continue
        cri = connect(page)
        page.run("", f"ctr -n k8s.io images tag {PAUSE} {cri.config()['sandboxImage']}")
        seen = start(cri, document, handlers[document["spec"]["runtimeClassName"]], page.place.cgroup, page.pods)
        for name, mib in (("server", 4096), ("trainer", 6144)):
            box.saw_its_share(seen[name], mib)
    assert "all is well" in said[0]
    assert "default/two-shares/trainer" in said[1] and "6Gi" in said[1]
    assert "GPU_HOOK_MEMORY_MIB=1024" in said[2]
    assert page.left() == ""


def remove_pods(page: Page) -> None:
    while page.pods:
        pod = page.pods.pop()
        connect(page).call("StopPodSandbox", id=pod)
        connect(page).call("RemovePodSandbox", id=pod)


def connect(page: Page) -> Cri:
    """To the socket in the hideout, by way of its keeper's root directory."""
    cri = Cri(f"/proc/{page.place.hideout.keeper.pid}/root/run/containerd/containerd.sock")
    until(cri.answers)  # its CRI plugin is ready after `ctr version` is
    return cri


def start(cri: Cri, pod: dict[str, Any], handler: str, cgroup: str, pods: list[str]) -> dict[str, str]:
    """A Pod as the kubelet would start it; what each container sees."""
    config = {
        "metadata": {"name": pod["metadata"]["name"], "uid": "1", "namespace": "default", "attempt": 0},
        "annotations": pod["metadata"]["annotations"],
        "linux": {"cgroup_parent": f"/{cgroup}", "security_context": {"namespace_options": {"network": NODE}}},
    }
    pods.append(cri.call("RunPodSandbox", config=config, runtime_handler=handler)[1][0].decode())
    seen = {}
    for container in pod["spec"]["containers"]:
        created = cri.call(
            "CreateContainer",
            sandbox=pods[-1],
            sandbox_config=config,
            config={
                "metadata": {"name": container["name"]},
                "image": {"image": f"docker.io/library/{container['image']}:latest"},
                "command": container["command"],
                "linux": {"security_context": {"capabilities": {"add": ["MKNOD"]}}},
            },
        )
        id = created[1][0].decode()
        cri.call("StartContainer", id=id)
        seen[container["name"]] = cri.exec(id, "sh", "-c", f"exec 2>&1; {LOOK}")[1]
    return seen


def test_podman(place: Place) -> None:
    page = Page(place, "podman")
    page.run("", f"cat >/etc/containers/containers.conf <<'END'\n{PODMAN}END\n")
    page.run("", f"podman load --quiet --input {place.archive}; podman tag {IMAGE} {UBUNTU}")
    ran = ""
    for label, text in page.blocks:
        ran += page.run(label, text)
    assert ran.count("/dev/nvidia0\n") == 2 and ran.count("GPU_HOOK_MEMORY_MIB=4096") == 2
    assert "all is well" in ran and page.left() == ""


def test_crio(place: Place) -> None:
    """What needs no running CRI-O; test_crio.py has the whole page."""
    page = Page(place, "crio")
    page.run("", "mkdir -p /opt/bin; touch /opt/bin/crio")
    lines = [line for label, text in page.blocks if label == "sh" for line in text.splitlines()]
    ran = "".join(page.run("", line) for line in lines if re.match("gpu-hook (?!why)", line))
    assert "crio: would create /etc/crio/crio.conf.d/99-gpu-hook.conf" in ran and page.left() == ""


def test_the_class_is_the_file_that_the_page_names() -> None:
    text = (REPO / "docs/guide/containerd.md").read_text()
    file = (REPO / "runtime-config/containerd/runtimeclass.yaml").read_text()
    assert yaml.safe_load(file) in [yaml.safe_load(b) for b in re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)]
