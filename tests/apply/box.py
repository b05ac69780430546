"""A container at the time when its runtime calls hooks: a process in a mount namespace, its rootfs mounted on itself.

It takes 3 ms, so that hundreds of attacks can be tried. Its /proc is the host's, which is the worst case.
"""

import contextlib
import functools
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

from oci_hook.core.plan import DATA, Bind, DeviceNode, DeviceRule, EnvVar, Tmpfs
from tests.apply import box_maker

LIBDIR = "/usr/lib/x"


@functools.cache
def maker() -> "subprocess.Popen[str]":
    """It ends with its standard input, which this process holds."""
    command = [sys.executable, "-I", "-S", box_maker.__file__]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class Box:
    """`with Box(rootfs) as box:` box.pid is the container's init. binds: (host directory, path in the container).

    bare: those of "dev", "proc" that are the image's own and get no mount.
    """

    def __init__(
        self, rootfs: Path, binds: tuple[tuple[Path, str], ...] = (), flags: int = 0, bare: tuple[str, ...] = ()
    ) -> None:
        self.rootfs = rootfs
        process = maker()
        assert process.stdin and process.stdout
        asked = [str(rootfs), [(str(source), path) for source, path in binds], flags, bare]
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline().strip()
        if not answer.isdigit():
            raise RuntimeError(answer)
        self.pid = int(answer)
        self._pidfd = os.pidfd_open(self.pid)

    def __enter__(self) -> "Box":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        os.close(self._pidfd)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        select.select([self._pidfd], [], [])  # readable when it has ended

    def run(self, *command: str) -> str:
        """What a program of the image (busybox) prints, run as the container would run it."""
        enter = ["nsenter", "-m", "-t", str(self.pid), "/usr/sbin/chroot", str(self.rootfs), "/bin/busybox", *command]
        return subprocess.run(enter, capture_output=True, text=True, check=True, env={}).stdout

    def read(self, path: str) -> str | None:
        """A file as a program in the container would read it; None when it cannot."""
        try:
            return self.run("cat", path)
        except subprocess.CalledProcessError:
            return None

    def read_each(self, *paths: str) -> list[str | None]:
        """The same for several files, by one process."""
        script = 'for file; do cat "$file" && printf "+\\0" || printf "\\0"; done'
        found = self.run("sh", "-c", script, "sh", *paths).split("\0")[:-1]
        return [text[:-1] if text.endswith("+") else None for text in found]

    def mounts(self) -> list[tuple[str, str]]:
        """(mount point in the container, options) of everything mounted below the root."""
        found = []
        for line in Path(f"/proc/{self.pid}/mountinfo").read_text().splitlines():
            point, options = line.split(" ")[4:6]
            if point.startswith(f"{self.rootfs}/"):
                found.append((point[len(str(self.rootfs)) :], options))
        return found


class Host:
    """The host's files for a hand-made plan: sources, an image, and a file that must not change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prefix = folder / "prefix"
        self.outside = folder / "outside"
        self.sources = ((str(self.prefix), "GH-305"),)
        for directory in ("container/driver", "container/account", "outside/lib", "rootfs"):
            (folder / ("prefix" if directory.startswith("container") else "") / directory).mkdir(parents=True)
        for name in ("container/driver/cuda", "container/policy", "shim", "real", "page", "tool"):
            (self.prefix / name).write_text(name)
        for name in ("secret", "lib/libcuda.so.1"):
            (self.outside / name).write_text("the host's own")
        self.rootfs = folder / "rootfs"
        for directory in ("bin", "dev", "proc", "run", "usr/bin", "usr/lib/x"):
            (self.rootfs / directory).mkdir(parents=True)
        shutil.copy("/usr/bin/busybox", self.rootfs / "bin")
        (self.rootfs / "usr/lib/x/libcuda.so.1").write_text("the image's own")
        (self.rootfs / "usr/lib/x/libcuda.so").symlink_to("libcuda.so.1")

    def plan(self) -> tuple[Bind | Tmpfs | DeviceNode | DeviceRule | EnvVar, ...]:
        p = self.prefix
        return (
            Bind(f"{p}/container", "/run/gpu-hook", DATA),
            Bind(f"{p}/real", "/run/gpu-hook/driver/cuda"),
            Bind(f"{p}/page", "/run/gpu-hook/policy", DATA),
            Tmpfs("/run/gpu-hook/account", 1 << 20, 16, 0o1777),
            Bind(f"{p}/tool", "/usr/bin/nvidia-smi"),
            Bind(f"{p}/tool", f"{LIBDIR}/libnvidia-tool.so.2"),
            DeviceNode("/dev/nvidia0", 195, 0),
            DeviceNode("/dev/nvidiactl", 195, 255),
            DeviceRule(195, 0),
            Bind(f"{p}/page", "/dev/nvidia-sim/0", ("rw", "nosuid", "nodev", "noexec")),
            EnvVar("GPU_HOOK_POLICY", "burst-share"),
            Bind(f"{p}/shim", f"{LIBDIR}/libcuda.so.1"),
            Bind(f"{p}/shim", f"{LIBDIR}/libcuda.so"),
        )

    def snapshot(self) -> object:
        """Everything outside the rootfs that must stay as it is, and what the host sees mounted."""
        files = []
        for top in (self.prefix, self.outside, *sorted(Path("/dev").glob("*nvidia*"))):
            for path in [top, *sorted(top.rglob("*"))]:
                st = path.lstat()
                content = path.read_bytes() if stat.S_ISREG(st.st_mode) else b""
                files.append((str(path), st.st_mode, st.st_ino, content))
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.folder) in line]
        return files, mounts, sorted(os.listdir("/")), os.path.lexists("/run/gpu-hook")
