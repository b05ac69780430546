"""A Debian machine to install things on: a Debian's root in a mount namespace; what is written stays in memory."""

import json
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed import tiny_image
from testbed.namespaces import Namespaces

# The root becomes ours, with an upper layer on tmpfs; packages and what containers need come in by bind mounts.
ENTER = """
mount -t tmpfs tmpfs /mnt && mkdir /mnt/up /mnt/work /mnt/root
mount -t overlay -o lowerdir={root},upperdir=/mnt/up,workdir=/mnt/work overlay /mnt/root
for d in /dev /proc /sys; do mount --rbind $d /mnt/root$d; done
mount -t tmpfs -o mode=755 tmpfs /mnt/root/run && mkdir -p /mnt/root/run/lock /mnt/root/packages
mount --bind {shared} /mnt/root/packages
cd /mnt/root && mkdir .old && pivot_root . .old && umount -l /.old && rmdir /.old && cd /
"""
ENVIRONMENT = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/root")


class Machine(Namespaces):
    """`shared` is its /packages. It shares this machine's processes; its files are in memory and its own."""

    def __init__(self, root: Path, shared: Path) -> None:
        super().__init__(ENTER.format(root=shlex.quote(str(root)), shared=shlex.quote(str(shared))))

    def command(self, *command: str) -> list[str]:
        return self.enter("env", "-i", *ENVIRONMENT, *command)

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        with tempfile.TemporaryFile("w+") as out:
            whole = self.command(*command)
            done = subprocess.run(whole, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=300)
            out.seek(0)
            return subprocess.CompletedProcess(whole, done.returncode, out.read(), "")

    def sh(self, script: str) -> str:
        """What these commands print, on both streams; each must succeed."""
        done = self.run("sh", "-ec", script)
        assert done.returncode == 0, script + "\n" + done.stdout
        return done.stdout

    def fails(self, script: str) -> str:
        done = self.run("sh", "-ec", script)
        assert done.returncode != 0, script + "\n" + done.stdout
        return done.stdout

    def files(self) -> set[str]:
        """All paths, without those of dpkg and what was there to read for a moment."""
        left_out = " ".join(f"-path {folder} -prune -o" for folder in ("/var/lib/dpkg", "/var/log", "/tmp"))
        listing = self.sh(f"find / -xdev {left_out} -print")
        return {line for line in listing.splitlines() if "/__pycache__" not in line or "gpu-hook" in line}

    def simulator_beside(self, folder: str) -> None:
        """Put the simulator's Python package beside oci_hook in this folder: there is none for the image."""
        self.sh("dpkg-deb -x /packages/gpu-hook-simulator_*.deb /run/simulator")
        self.sh(f"cp -r /run/simulator/usr/lib/gpu-hook/gpu_hook_simulator {folder}; rm -r /run/simulator")

    def exists(self, path: str) -> bool:
        return self.run("test", "-e", path).returncode == 0

    def is_roots_alone(self, prefix: str, *more: str) -> None:
        """But for one folder, which lies where only root comes (docs/guide/install.md)."""
        opened = f"{prefix}/lib/private/container/account"
        folders = " ".join([prefix, *more])
        assert self.sh(f"find {folders} ! -user root -o -perm /022 ! -type l") == f"{opened}\n"
        assert self.sh(f"stat -c '%a %u' {prefix}/lib/private {opened}") == "700 0\n1777 0\n"

    @contextmanager
    def container_with_a_share(self, shared: Path, prefix: str) -> Iterator[None]:
        """A container that holds 1 GiB of a GPU and sleeps; made by the install's runtime, with runc and cgroups."""
        bundle = shared / "sleeper"
        shutil.rmtree(bundle, ignore_errors=True)
        tiny_image.busybox(bundle / "rootfs")
        subprocess.run(["runc", "spec"], cwd=bundle, check=True)
        spec = json.loads((bundle / "config.json").read_text())
        spec["annotations"] = {"gpu-hook.io/memory": "1Gi"}
        spec["process"].update(terminal=False, args=["sleep", "300"])
        spec["linux"]["cgroupsPath"] = f"/gh-sleeper-{self.keeper.pid}"
        (bundle / "config.json").write_text(json.dumps(spec))
        runtime = f"{prefix}/bin/gpu-hook-runtime"
        self.sh(f"{runtime} run --detach --bundle /packages/sleeper sleeper </dev/null >/dev/null 2>/run/sleeper")
        try:
            yield
        finally:
            self.sh("runc delete --force sleeper")
