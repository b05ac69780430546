"""dockerd with its own directories."""

import subprocess
from collections.abc import Sequence

from testbed.engines import box
from testbed.engines.box import IMAGE, LOOK, Place

ANNOTATIONS_SINCE = 24


class Docker:
    """The docker command line, talking to a dockerd of the test's own."""

    def __init__(self, place: Place, name: str = "docker", more: Sequence[str] = ()) -> None:
        """name: of its folder. more: options of dockerd."""
        self.place = place
        self.dir = place.dir / name
        self.dir.mkdir()
        self.config = self.dir / "daemon.json"
        self.socket = f"unix://{self.dir}/sock"
        self.log = self.dir / "dockerd.log"
        version = place.hideout.run("dockerd", "--version").stdout
        self.annotations = int(version.split()[2].partition(".")[0]) >= ANNOTATIONS_SINCE
        self.command = place.hideout.command(
            "dockerd",
            f"--config-file={self.config}",
            f"--data-root={self.dir}/data",
            f"--exec-root={self.dir}/exec",
            f"--pidfile={self.dir}/pid",
            f"--host={self.socket}",
            f"--cgroup-parent=/{place.cgroup}",
            "--iptables=false",
            "--ip-forward=false",
            "--bridge=none",
            *more,
        )

    def __call__(self, *args: str) -> "subprocess.CompletedProcess[str]":
        return self.place.hideout.run("docker", "--host", self.socket, *args)

    def ask(self, mib: int) -> tuple[str, ...]:
        """The flags of `docker run` by which a container asks for so much of GPU 0."""
        if self.annotations:
            return ("--annotation", "gpu-hook.io/devices=0", "--annotation", f"gpu-hook.io/memory={mib}")
        return ("-e", "NVIDIA_VISIBLE_DEVICES=0", "-e", f"T9K_GPU_MEMORY={mib}")

    def run(self, *args: str, script: str = LOOK) -> "subprocess.CompletedProcess[str]":
        flags = ("--rm", "--runtime=gpu-hook", "--network=none")
        return self("run", *flags, *args, IMAGE, "sh", "-c", f"exec 2>&1; {script}")

    def answers(self) -> bool:
        return self("version").returncode == 0

    def start(self) -> None:
        self.process = box.serve(self.command, self.log, self.answers)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(box.WAIT)

    def remove_all(self) -> None:
        if ids := self("ps", "-aq").stdout.split():
            self("rm", "-f", *ids)
