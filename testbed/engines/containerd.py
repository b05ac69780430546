"""containerd with its own directories, spoken to over CRI and by `ctr`."""

import subprocess
from typing import Any

from testbed.engines import box
from testbed.engines.box import IMAGE, LOOK, PAUSE, Place
from testbed.engines.cri import NODE, Cri

CONFIG = """\
version = 2
root = "{dir}/root"
state = "{dir}/run"

[grpc]
  address = "{dir}/sock"

# as Debian's, with what a machine without a network needs
[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "{pause}"
    restrict_oom_score_adj = true
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
      conf_dir = "{dir}/cni"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "{dir}/runc"
  [plugins."io.containerd.internal.v1.opt"]
    path = "{dir}/opt"
"""


ONE_GPU = {"gpu-hook.io/devices": "0"}


class Containerd:
    def __init__(self, place: Place, folder: str = "c", config: str = CONFIG) -> None:
        self.place = place
        self.dir = place.dir / folder
        self.dir.mkdir()
        self.config = self.dir / "config.toml"
        self.config.write_text(config.format(dir=self.dir, pause=PAUSE))
        self.log = self.dir / "log"
        self.cri = Cri(f"{self.dir}/sock")
        self.pods: list[str] = []

    def ctr(self, *args: str) -> "subprocess.CompletedProcess[str]":
        flags = ("--address", f"{self.dir}/sock", "--namespace", "k8s.io")
        return self.place.hideout.run("ctr", *flags, *args)

    def start(self) -> None:
        command = self.place.hideout.command("containerd", "--config", str(self.config))
        self.process = box.serve(command, self.log, self.cri.answers)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(box.WAIT)

    def pod(self, annotations: dict[str, str], handler: str = "gpu-hook", name: str = "pod") -> dict[str, Any]:
        """A running sandbox: its configuration, with its id."""
        n = len(self.pods)
        config = {
            "metadata": {"name": name, "uid": f"uid-{n}", "namespace": "default", "attempt": n},
            "annotations": annotations,
            "linux": {
                "cgroup_parent": f"/{self.place.cgroup}",
                "security_context": {"namespace_options": {"network": NODE}},
            },
        }
        answer = self.cri.call("RunPodSandbox", config=config, runtime_handler=handler)
        self.pods.append(answer[1][0].decode())
        return config

    def container(
        self,
        pod: dict[str, Any],
        name: str,
        env: dict[str, str] | None = None,
        security: dict[str, Any] | None = None,
    ) -> str:
        """A started container of the pod that ran last; its id. Raises grpc.RpcError."""
        config = {
            "metadata": {"name": name},
            "image": {"image": IMAGE},
            "command": ["sleep", "1000"],
            "envs": [{"key": k, "value": v} for k, v in (env or {}).items()],
            "linux": {"security_context": {"capabilities": {"add": ["MKNOD"]}, **(security or {})}},
        }
        answer = self.cri.call("CreateContainer", sandbox=self.pods[-1], config=config, sandbox_config=pod)
        id = str(answer[1][0].decode())
        self.cri.call("StartContainer", id=id)
        return id

    def look(self, id: str) -> str:
        return self.cri.exec(id, "sh", "-c", f"exec 2>&1; {LOOK}")[1]

    def remove_pods(self) -> None:
        for id in self.pods:
            self.cri.call("StopPodSandbox", id=id)
            self.cri.call("RemovePodSandbox", id=id)
        self.pods.clear()
