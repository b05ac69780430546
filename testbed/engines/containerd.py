"""containerd with its own directories, spoken to over CRI and by `ctr`."""

import subprocess

from testbed.engines import box
from testbed.engines.box import PAUSE, Place
from testbed.engines.cri import Cri
from testbed.engines.pods import Pods

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


class Containerd(Pods):
    def __init__(self, place: Place, folder: str = "c", config: str = CONFIG) -> None:
        self.dir = place.dir / folder
        self.dir.mkdir()
        self.config = self.dir / "config.toml"
        self.config.write_text(config.format(dir=self.dir, pause=PAUSE))
        self.log = self.dir / "log"
        super().__init__(place, Cri(f"{self.dir}/sock"))

    def ctr(self, *args: str) -> "subprocess.CompletedProcess[str]":
        flags = ("--address", f"{self.dir}/sock", "--namespace", "k8s.io")
        return self.place.hideout.run("ctr", *flags, *args)

    def start(self) -> None:
        command = self.place.hideout.command("containerd", "--config", str(self.config))
        self.process = box.serve(command, self.log, self.cri.answers)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(box.WAIT)
