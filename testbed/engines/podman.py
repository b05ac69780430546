"""podman with its own directories."""

import subprocess

from testbed.engines.box import IMAGE, LOOK, Place

# podman's own choice is more than a test machine's root may set.
ULIMITS = ("--ulimit=nofile=1000:1000", "--ulimit=nproc=1000:1000")


class Podman:
    """podman on a machine whose /etc/containers has what `gpu-hook install` wrote there."""

    def __init__(self, place: Place) -> None:
        self.place = place
        place.gpu_hook("install", "--engine", "podman")
        self.flags = (
            f"--root={place.dir}/root",
            f"--runroot={place.dir}/runroot",
            "--cgroup-manager=cgroupfs",
            "--events-backend=none",
        )
        self.where = ("--network=none", "--cap-add=mknod", f"--cgroup-parent=/{place.cgroup}", *ULIMITS)

    def __call__(self, *args: str, flags: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
        return self.place.hideout.run("podman", *self.flags, *flags, *args)

    def run(self, *args: str, runtime: str = "gpu-hook", script: str = LOOK) -> "subprocess.CompletedProcess[str]":
        flags = (f"--runtime={runtime}",) * bool(runtime)
        return self("run", "--rm", *self.where, *args, IMAGE, "sh", "-c", f"exec 2>&1; {script}", flags=flags)
