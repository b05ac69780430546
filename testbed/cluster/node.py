"""A node: a machine with containerd, a kubelet, this checkout's gpu-hook and simulated GPUs."""

import json
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testbed import REPO
from testbed.cluster import programs
from testbed.cluster.control import BRIDGE, Control
from testbed.cluster.machine import Machine, wait
from testbed.cluster.pki import API
from testbed.cluster.programs import HERE

PAUSE = "your-registry.invalid/gpu-hook/pause:1"
SOCKET = "unix:///run/containerd/containerd.sock"
SERVICES = ("containerd", "kubelet")
SIMULATOR = "/opt/gpu-hook-sim"  # a prefix of its own: the simulated driver stays when gpu-hook is installed anew
CONTAINERD = """version = 2
[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "{pause}"
    restrict_oom_score_adj = true
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "{cni}"
      conf_dir = "/etc/cni/net.d"
    [plugins."io.containerd.grpc.v1.cri".registry]
      config_path = "/etc/containerd/certs.d"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.internal.v1.opt"]
    path = "/var/lib/containerd/opt"
"""
CONTAINERD_2 = """version = 3
[plugins]
  [plugins."io.containerd.cri.v1.images"]
    [plugins."io.containerd.cri.v1.images".pinned_images]
      sandbox = "{pause}"
    [plugins."io.containerd.cri.v1.images".registry]
      config_path = "/etc/containerd/certs.d"
  [plugins."io.containerd.cri.v1.runtime"]
    restrict_oom_score_adj = true
    [plugins."io.containerd.cri.v1.runtime".cni]
      bin_dirs = ["{cni}"]
      conf_dir = "/etc/cni/net.d"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.internal.v1.opt"]
    path = "/var/lib/containerd/opt"
"""
MIRROR = """server = "http://{api}:5000"
[host."http://{api}:5000"]
  capabilities = ["pull", "resolve"]
"""


@dataclass(frozen=True)
class Gpus:
    """GPUs of a node: how many, and the memory of each as `gpu-hook sim up --memory` takes it."""

    count: int = 2
    memory: str = "16Gi"

    @classmethod
    def parse(cls, text: str) -> "Gpus":
        """2x16Gi, or 0 for a node without GPUs."""
        if text == "0":
            return cls(0, "")
        count, _, memory = text.partition("x")
        if not count.isdigit() or not memory:
            raise ValueError(f"{text!r} is not like 2x16Gi, or 0 for a node without GPUs")
        return cls(int(count), memory)


class Node:
    def __init__(self, machine: Machine, control: Control, number: int, gpus: Gpus, installed: bool) -> None:
        self.machine, self.control, self.number = machine, control, number
        self.gpus, self.installed = gpus, installed
        self.name = machine.name
        self.address = f"10.99.0.{10 + number}"

    def on(self, images: Path) -> None:
        """Power on and start everything up to the kubelet; skips steps that are done."""
        if self.machine.pid:
            return
        self.machine.start()
        self._cable()
        self._files()
        self._gpu_hook()
        self.start("containerd")
        self.load(images)
        self.start("kubelet")

    def load(self, archive: Path) -> None:
        """The images of an archive, for pods of this node."""
        with open(archive, "rb") as f:
            line = self.machine.line("ctr", "--namespace=k8s.io", "images", "import", "-")
            subprocess.run(line, stdin=f, check=True, stdout=subprocess.DEVNULL)

    def off(self) -> None:
        self.machine.power_off()

    def start(self, service: str) -> None:
        if service == "containerd":
            self.machine.serve("containerd", "containerd", "--config=/etc/containerd/config.toml")
            log = self.machine.log("containerd")
            wait(60, f"containerd answers ({log})", lambda: self.machine.run("ctr", "version"))
        else:
            self.machine.serve("kubelet", *self._kubelet(), *self.control.flags.get("kubelet", []))

    def use_programs(self) -> None:
        """The files and the runc of the version that is used now; files of an administrator stay."""
        self._files()
        if self.installed:
            self.gpu_hook("settings", "set", f"runtime={programs.program('runc')}")

    def stop(self, service: str, number: signal.Signals = signal.SIGTERM) -> None:
        self.machine.stop(service, number)

    def ready(self) -> bool:
        path = '{.status.conditions[?(@.type=="Ready")].status}'
        return self.control.kubectl("get", "node", self.name, "-o", f"jsonpath={path}") == "True"

    def gpu_hook(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """This checkout's command line on the node."""
        return self.machine.run(*self.gpu_hook_line(*arguments), check=check)

    @staticmethod
    def gpu_hook_line(*arguments: str) -> list[str]:
        python = str(REPO / ".venv/bin/python3")
        return ["env", f"--chdir={REPO}", "PYTHONDONTWRITEBYTECODE=1", python, "-m", "oci_hook", *arguments]

    # ---- making it --------------------------------------------------------------------------------------------------

    def _cable(self) -> None:
        """A cable to the control machine's bridge. The pods of this node have 10.244.NUMBER.0/24."""
        control = str(self.control.machine.pid)
        there = ["nsenter", "-t", control, "-n", "ip"]
        here = ["nsenter", "-t", str(self.machine.pid), "-n", "ip"]
        subprocess.run([*there, "link", "delete", self.name], stderr=subprocess.DEVNULL)
        for command in (
            [*there, *f"link add {self.name} type veth peer name eth0 netns {self.machine.pid}".split()],
            [*there, *f"link set {self.name} master {BRIDGE} up".split()],
            [*here, *f"address add {self.address}/16 dev eth0".split()],
            [*here, *["link", "set", "eth0", "up"]],
            [*here, *f"route replace default via {API}".split()],
            [*there, *f"route replace 10.244.{self.number}.0/24 via {self.address}".split()],
        ):
            subprocess.run(command, check=True)

    def _files(self) -> None:
        toml = (CONTAINERD_2 if today() else CONTAINERD).format(pause=PAUSE, cni=programs.home() / "cni")
        if self.machine.run("test", "-e", "/etc/containerd/.ours", check=False).returncode:
            self.machine.write("/etc/containerd/config.toml", toml)
            self.machine.write("/etc/containerd/.ours", "")
        self.machine.write("/etc/containerd/certs.d/_default/hosts.toml", MIRROR.format(api=API))
        subnet = {"subnet": f"10.244.{self.number}.0/24"}
        ipam = {"type": "host-local", "ranges": [[subnet]], "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": ipam}
        network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
        self.machine.write("/etc/cni/net.d/10-pods.conflist", json.dumps(network))
        kubelet = {
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(self.control.keys.folder / "ca.crt")},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "resolvConf": "",
            "evictionHard": {"memory.available": "50Mi"},
            "evictionPressureTransitionPeriod": "10s",
            "nodeStatusUpdateFrequency": "5s",
            "imageGCHighThresholdPercent": 100,
            "staticPodPath": "/etc/manifests",
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            **({"containerRuntimeEndpoint": SOCKET, "failCgroupV1": False} if today() else {}),
        }
        self.machine.write("/etc/kubelet.json", json.dumps(kubelet))
        self.machine.run("mkdir", "-p", "/etc/manifests", "/run/systemd/system")
        self.machine.run("mount", "--bind", str(HERE / "systemctl"), "/usr/bin/systemctl")
        self.machine.write("/etc/kubernetes/kubelet.conf", self._kubeconfig().read_text())

    def _gpu_hook(self) -> None:
        """This checkout's gpu-hook, registered with containerd, and the GPUs; a node that was off gets its GPUs back."""
        runc = programs.program("runc")
        if self.gpus.count:
            lay = [
                "install",
                "--no-engines",
                f"--prefix={SIMULATOR}",
                "--state-dir=/run/gpu-hook-sim",
                f"--runtime={runc}",
            ]
            self.gpu_hook(*lay)
            counts = ["--nodes", f"--gpus={self.gpus.count}", f"--memory={self.gpus.memory}"]
            self.gpu_hook("sim", "up", f"--prefix={SIMULATOR}", *counts)
        if self.installed:
            self.gpu_hook("install", "--engine=containerd", f"--runtime={runc}")
            if self.gpus.count:
                self.gpu_hook("settings", "set", "--prefix=/opt/gpu-hook", f"driver_root={SIMULATOR}/sim/root")
                self.gpu_hook("gpus", "--refresh", "--prefix=/opt/gpu-hook")

    def _kubeconfig(self) -> Path:
        return self.control.keys.kubeconfig(self.name, f"/O=system:nodes/CN=system:node:{self.name}")

    def _kubelet(self) -> list[str]:
        return [
            "kubelet",
            "--kubeconfig=/etc/kubernetes/kubelet.conf",
            "--config=/etc/kubelet.json",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            *([] if today() else ["--container-runtime=remote", f"--container-runtime-endpoint={SOCKET}"]),
            *([] if today() else [f"--pod-infra-container-image={PAUSE}"]),
            "--root-dir=/var/lib/kubelet",
            "--cert-dir=/var/lib/kubelet/pki",
        ]


def today() -> bool:
    """The programs of Debian sid, with containerd 2; the kubelet has no flags for its runtime, since 1.27 and 1.35."""
    return programs.version() != programs.BUILT_HERE
