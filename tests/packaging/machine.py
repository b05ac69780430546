"""A Debian machine to install things on: a debootstrap root in a mount namespace; what is written stays in memory."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts import tiny_image
from tests.conftest import REPO

# The root becomes ours, with an upper layer on tmpfs; packages and what containers need come in by bind mounts.
ENTER = """set -e
mount -t tmpfs tmpfs /mnt && mkdir /mnt/up /mnt/work /mnt/root
mount -t overlay -o lowerdir={root},upperdir=/mnt/up,workdir=/mnt/work overlay /mnt/root
for d in /dev /proc /sys; do mount --rbind $d /mnt/root$d; done
mount -t tmpfs -o mode=755 tmpfs /mnt/root/run && mkdir -p /mnt/root/run/lock /mnt/root/packages
mount --bind {shared} /mnt/root/packages
cd /mnt/root && mkdir .old && pivot_root . .old && umount -l /.old && rmdir /.old && cd /
echo ready
exec sleep 100000
"""
ENVIRONMENT = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/root")


def debian(suite: str, packages: str) -> Path:
    """That suite's smallest system with these packages. Made once, in a minute or two."""
    root = REPO / "build" / suite
    if not root.exists():
        half = root.with_name(f"{suite}.half")
        shutil.rmtree(half, ignore_errors=True)
        subprocess.run(["debootstrap", "--variant=minbase", f"--include={packages}", suite, half], check=True)
        for archive in half.glob("var/cache/apt/archives/*.deb"):
            archive.unlink()
        half.rename(root)
    return root


class Machine:
    """`shared` is its /packages. Its processes see this machine's, its files nobody else does."""

    def __init__(self, root: Path, shared: Path) -> None:
        script = ENTER.format(root=root, shared=shared)
        unshare = ["unshare", "-m", "-n", "--propagation", "private", "sh", "-c", script]
        self.keeper = subprocess.Popen(unshare, stdout=subprocess.PIPE, text=True)
        assert self.keeper.stdout is not None
        ready = self.keeper.stdout.readline()
        self.keeper.stdout.close()
        if ready != "ready\n":
            self.keeper.wait()
            raise AssertionError("no namespaces")

    def command(self, *command: str) -> list[str]:
        return ["nsenter", f"--target={self.keeper.pid}", "--mount", "--net", "--", "env", "-i", *ENVIRONMENT, *command]

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

    def exists(self, path: str) -> bool:
        return self.run("test", "-e", path).returncode == 0

    @contextmanager
    def container_with_a_share(self, shared: Path, prefix: str) -> Iterator[None]:
        """A container that holds 1 GiB of a card and sleeps; made by the install's runtime, with runc and cgroups."""
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

    def close(self) -> None:
        own = os.readlink(f"/proc/{self.keeper.pid}/ns/mnt")
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if int(pid) != self.keeper.pid and os.readlink(f"/proc/{pid}/ns/mnt") == own:
                    os.kill(int(pid), signal.SIGKILL)
            except OSError:
                pass
        self.keeper.kill()
        self.keeper.wait()
