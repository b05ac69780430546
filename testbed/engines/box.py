"""Real engines with their own directories, in a mount namespace that hides the machine's."""

import io
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpu_hook_simulator.driver_root import CONTEXT_MIB
from oci_hook.ledger import slot_files, store
from testbed import REPO, tiny_image
from testbed.namespaces import Namespaces
from testbed.until import until

PACKAGES = os.path.realpath(yaml.__path__[0] + "/..")
MEMORY_MIB = 8192  # of each of the two simulated GPUs
IMAGE = "gpu-hook.test/probe:1"
PAUSE = "gpu-hook.test/pause:1"
WAIT = 60  # seconds for a daemon to answer or end; on a busy machine it takes a while

# Says what the container sees: its GPUs, its limit, and whether GPU 1's node can be opened.
LOOK = """
gpu-probe info
gpu-probe fill 256
mknod /tmp/gpu1 c 195 1
cat </tmp/gpu1
cat </dev/nvidia0
true
"""


class Place:
    """A hideout with an install, its simulated GPUs and an image's root file system, below a short path (sockets)."""

    def __init__(self, native: Path, system: Path | None = None, first: str = "") -> None:
        """first: shell commands to run in its namespace before."""
        self.system = system
        self.dir = Path(tempfile.mkdtemp(prefix="gh-", dir="/tmp"))
        self.prefix, self.state = self.dir / "prefix", self.dir / "state"
        self.program = str(self.prefix / "bin/gpu-hook-runtime")
        self.cgroup = f"gh-{self.dir.name}"
        self.rootfs = tiny_image.with_c_library(self.dir / "image")
        shutil.copy(native / "sim/gpu-probe", self.rootfs / "bin/gpu-probe")
        self.archive = self.dir / "images.tar"
        pack(self.archive, self.rootfs, {IMAGE: ["sh"], PAUSE: ["sleep", "1000000"]})
        self.hideout = Hideout(system, first)
        try:
            self.gpu_hook("install", "--no-engines", "--state-dir", str(self.state))
            self.gpu_hook("sim", "up", "--gpus", "2", "--memory", f"{MEMORY_MIB}Mi")
        except BaseException:
            self.close()
            raise

    def gpu_hook(self, *args: str) -> str:
        return self.hideout.gpu_hook(*args, "--prefix", str(self.prefix))

    def rules(self, **changes: object) -> None:
        self.gpu_hook("settings", "set", *(f"{key}={str(value).lower()}" for key, value in changes.items()))

    def grants(self) -> list[Any]:
        """What `gpu-hook ps` says on the engine's own machine."""
        grants: list[Any] = json.loads(self.gpu_hook("ps", "--json"))["containers"]
        return grants

    def holders(self) -> list[tuple[str, int]]:
        """(grant's key, the container's first process)."""
        return [(grant["key"], grant["pid"]) for grant in self.grants()]

    def no_grants(self) -> bool:
        """As `ps` finds them, but asked in this process, since tests ask after each container."""
        return until(lambda: not store.snapshot(str(self.state)), self.grants)

    def close(self) -> None:
        self.hideout.close()
        slot_files.drop(str(self.state))
        shutil.rmtree(self.dir)
        for folder, _, _ in sorted(os.walk("/sys/fs/cgroup"), reverse=True):
            if f"/{self.cgroup}" in folder:
                until(lambda folder=folder: removed(folder), folder, 10)  # type: ignore[misc]


def removed(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True


def pack(archive: Path, rootfs: Path, images: dict[str, list[str]], arch: str = platform.machine()) -> None:
    """An archive as `docker save` writes it: one layer, and an image for each name with that command."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(rootfs, ".")
    from hashlib import sha256

    manifest = []
    files = {"layer.tar": layer.getvalue()}
    for name, command in images.items():
        diff = "sha256:" + sha256(files["layer.tar"]).hexdigest()
        config = {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[arch],
            "os": "linux",
            "config": {"Env": ["PATH=/bin:/usr/bin"], "Cmd": command},
            "rootfs": {"type": "layers", "diff_ids": [diff]},
            "history": [{"created_by": "test"}],
        }
        data = json.dumps(config).encode()
        file = sha256(data).hexdigest() + ".json"
        files[file] = data
        manifest.append({"Config": file, "RepoTags": [name], "Layers": ["layer.tar"]})
    files["manifest.json"] = json.dumps(manifest).encode()
    with tarfile.open(archive, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


# In the namespaces of a Hideout: writes to these directories do not reach the machine.
PRIVATE = """
mount -t tmpfs -o mode=755 tmpfs /run && mkdir -p /run/lock
for d in /etc /usr/share/containers; do
  [ -d $d ] || continue
  mkdir -p /run/private$d/up /run/private$d/work
  mount -t overlay -o lowerdir=$d,upperdir=/run/private$d/up,workdir=/run/private$d/work overlay $d
done
mount -t tmpfs -o mode=755 tmpfs /opt
for d in /var/lib /var/opt; do [ ! -d $d ] || mount -t tmpfs -o mode=755 tmpfs $d; done
"""
# Another system's root directory becomes ours.
PIVOT = """
mount -t tmpfs tmpfs /mnt && mkdir /mnt/up /mnt/work /mnt/root
mount -t overlay -o lowerdir={root},upperdir=/mnt/up,workdir=/mnt/work overlay /mnt/root
for d in /dev /proc /sys /tmp {repo}; do mkdir -p "/mnt/root$d"; mount --rbind "$d" "/mnt/root$d"; done
packages=$(echo /mnt/root/usr/lib/python3.*)  # where its own Python looks for ours
packages=/mnt/root/usr/local/lib/${{packages##*/}}/dist-packages
mkdir -p $packages && mount --bind {packages} $packages
cd /mnt/root && mkdir .old && pivot_root . .old && umount -l /.old && cd /
"""


class Hideout(Namespaces):
    """root: another system's root directory; None: this machine's. first: shell commands to run there before."""

    def __init__(self, root: Path | None = None, first: str = "") -> None:
        self.python = sys.executable if root is None else "/usr/bin/python3"
        paths = {"root": str(root), "repo": str(REPO), "packages": PACKAGES}
        pivot = PIVOT.format(**{name: shlex.quote(path) for name, path in paths.items()}) if root else ""
        super().__init__(pivot + PRIVATE + first)

    def command(self, *command: str) -> list[str]:
        return self.enter("env", f"--chdir={REPO}", *command)

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        return run(*self.command(*command))

    def gpu_hook(self, *args: str) -> str:
        done = self.run(self.python, "-m", "oci_hook", *args)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def serve(command: Sequence[str], log: Path, ready: Callable[[], bool]) -> "subprocess.Popen[bytes]":
    """A process that serves."""
    with open(log, "ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        until(lambda: process.poll() is not None or ready(), lambda: log.read_text()[-4000:], WAIT)
        assert process.poll() is None, log.read_text()[-4000:]
    except AssertionError:
        process.kill()
        process.wait()
        raise
    return process


def run(*command: str, seconds: float = 120, **more: object) -> "subprocess.CompletedProcess[str]":
    """To its end; output through files, since what a container inherits may outlive the command."""
    nothing, writer = os.pipe()  # not /dev/null: crun gives the container's user what it has as standard input
    os.close(writer)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            done = subprocess.run(command, stdout=out, stderr=err, stdin=nothing, timeout=seconds, **more)  # type: ignore
        finally:
            os.close(nothing)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, done.returncode, out.read(), err.read())


def saw_its_share(output: str, mib: int) -> None:
    """What LOOK prints in a container that has `mib` of GPU 0, its context included, and nothing of GPU 1."""
    filled = (mib - CONTEXT_MIB) // 256 * 256
    assert f"fill: {filled} MiB allocated in pieces of 256, then CUDA_ERROR_OUT_OF_MEMORY" in output, output
    assert "gpu1: Operation not permitted" in output, output
    assert "nvidia0: No such device or address" in output, output  # allowed; no driver answers for a simulated GPU
