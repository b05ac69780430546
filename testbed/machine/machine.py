"""A machine that runs: QEMU's process, its disks, and the channel for commands. A folder in /tmp holds all of it until `down`."""

import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from testbed import REPO
from testbed.machine import image

LONGEST = "4h"  # after it a machine that was forgotten is ended
BOOT = 600.0  # seconds that a boot takes at most
OFF = 180.0  # and a power-off


class CannotRun(Exception):
    """A sentence: what is wrong with the machine."""


class Machine:
    """The machine of this suite and checkout, up or not."""

    def __init__(self, suite: str) -> None:
        self.suite = image.SUITES[suite]
        mine = hashlib.sha256(str(REPO).encode()).hexdigest()[:8]
        self.folder = Path(tempfile.gettempdir(), f"gpu-hook-machine-{mine}-{suite}")
        self._process: subprocess.Popen[bytes] | None = None  # where it was started here

    def up(self, say: Callable[[str], None], beside: Path | None = None) -> None:
        """Boots it, and waits until it takes commands; its disk, where there is one, is as it was. beside: a folder that
        the machine has as /share/with. Raises CannotRun."""
        if self.pid():
            raise CannotRun(f"{self.suite.name} is up already")
        made = image.home(self.suite)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        disk = self.folder / "root.img"
        if not disk.exists():
            subprocess.run(["cp", "--sparse=always", made / "root.img", disk], check=True)
        if beside or not (self.folder / "share.img").exists():
            self._share(beside)
        (self.folder / "channel").unlink(missing_ok=True)
        say(f"{self.suite.name} boots, about a minute")
        with open(self.folder / "qemu.log", "w") as log:
            self._process = subprocess.Popen(
                ["nice", "-n", "10", "timeout", "--signal=KILL", LONGEST, *self._qemu(made)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (self.folder / "pid").write_text(str(self._process.pid))
        self.wait(BOOT)

    def _share(self, beside: Path | None) -> None:
        """The checkout's files and `beside` as a disk: the kernels of clouds know no file system that QEMU shares."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            share = Path(name)
            share.chmod(0o755)
            listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, capture_output=True, check=True).stdout
            for file in filter(None, listed.decode().split("\0")):
                if (REPO / file).is_file():
                    (share / "checkout" / file).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(REPO / file, share / "checkout" / file)
            if beside:
                shutil.copytree(beside, share / "with", symlinks=True)
            if self.suite.selinux:
                for path in (share, *share.rglob("*")):
                    os.setxattr(path, "security.selinux", b"system_u:object_r:usr_t:s0", follow_symlinks=False)
            size = sum(path.stat().st_size for path in share.rglob("*") if path.is_file())
            disk = self.folder / "share.img"
            disk.unlink(missing_ok=True)
            command = ["mke2fs", "-q", "-t", "ext4", "-m", "0", "-E", "root_owner=0:0", "-d", str(share), str(disk)]
            subprocess.run([*command, f"{64 + (size >> 20) * 2}M"], check=True, stdout=subprocess.DEVNULL)

    def _qemu(self, made: Path) -> list[str]:
        suite, data = self.suite, image.tools() / "usr/share"
        words = [*image.tool(suite.qemu), "-L", str(data / "qemu"), "-L", str(data / "seabios")]
        words += ["-name", suite.name, "-machine", suite.machine, "-cpu", suite.cpu, "-smp", "2", "-m", "2048"]
        words += ["-accel", "tcg,thread=multi,tb-size=512", "-nodefaults", "-no-user-config", "-display", "none"]
        words += ["-kernel", str(made / "kernel"), "-initrd", str(made / "initrd")]
        module = "audit=1 audit_backlog_limit=8192 security=selinux selinux=1" if suite.selinux else "audit=0 selinux=0"
        words += ["-append", f"console={suite.console} quiet net.ifnames=0 {module}"]
        words += ["-serial", f"file:{self.folder}/console", "-device", "virtio-rng-pci"]
        for name, options in (("root", "cache=unsafe"), ("share", "readonly=on")):
            words += ["-drive", f"file={self.folder}/{name}.img,format=raw,if=none,id={name},{options}"]
            words += ["-device", f"virtio-blk-pci,drive={name}"]
        words += ["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=run,name=gpu-hook"]
        return [*words, "-chardev", f"socket,id=run,path={self.folder}/channel,server=on,wait=off"]

    def pid(self) -> int:
        """QEMU's process, or rather that of its `timeout`, which is known by its command; 0 for none."""
        if self._process:
            return 0 if self._process.poll() is not None else self._process.pid
        try:
            pid = int((self.folder / "pid").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return 0
        return pid if f"{self.folder}/channel".encode() in command else 0

    def wait(self, seconds: float, other_than: str = "") -> str:
        """Waits until it takes commands; the boot's id. other_than: the id of the boot before. Raises CannotRun."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.pid():
            try:
                boot = self.run("cat /proc/sys/kernel/random/boot_id", 5).stdout.strip()
                if boot and boot != other_than:
                    return boot
            except CannotRun:
                pass
            time.sleep(0.5)
        said = " ".join((self._read("qemu.log") + self.console()).split())
        raise CannotRun(f"{self.suite.name} {'gives no answer' if self.pid() else 'ended'}: {said[-600:]}")

    def run(self, command: str, timeout: float = 300) -> "subprocess.CompletedProcess[str]":
        """The outcome of a command of bash in the machine, as root; status 124 where it took longer than `timeout` seconds. One at a
        time. Raises CannotRun."""
        if not self.pid():
            raise CannotRun(f"{self.suite.name} is not up: scripts/machine up {self.suite.name}")
        id = f"{os.getpid()}-{time.monotonic_ns()}"
        with open(self.folder / "lock", "w") as lock, socket.socket(socket.AF_UNIX) as channel:
            fcntl.flock(lock, fcntl.LOCK_EX)
            channel.settimeout(timeout + 20)
            try:
                channel.connect(f"{self.folder}/channel")
                channel.sendall(json.dumps({"id": id, "command": command, "timeout": timeout}).encode() + b"\n")
                rest = b""
                while data := channel.recv(1 << 16):
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        answer = _answer(line, id)
                        if answer:
                            return answer
            except OSError as e:
                raise CannotRun(f"{self.suite.name} gave no answer to {command[:80]!r}: {e}") from None
        raise CannotRun(f"{self.suite.name} ended while it ran {command[:80]!r}")

    def reboot(self) -> str:
        """Restarts it by systemd; the new boot's id. Raises CannotRun."""
        before = self.wait(30)
        self.run("systemctl reboot --no-block")
        return self.wait(BOOT, before)

    def cut(self) -> None:
        """Ends it as a power cut does. Its disk stays."""
        pid = self.pid()
        if pid:
            os.killpg(pid, signal.SIGKILL)
            self._gone(20)

    def down(self) -> None:
        """Powers it off and removes its folder."""
        if self.pid():
            try:
                self.run("systemctl poweroff --no-block", 10)
                self._gone(OFF)
            except CannotRun:
                pass
            self.cut()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _gone(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self.pid() and time.monotonic() < end:
            time.sleep(0.1)

    def console(self) -> str:
        return self._read("console")

    def _read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text(errors="replace")
        except OSError:
            return ""


def _answer(line: bytes, id: str) -> "subprocess.CompletedProcess[str] | None":
    """What the line says of this command; None where it answers one that nobody waits for any more."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if found.get("id") != id:
        return None
    return subprocess.CompletedProcess(id, found["status"], found["out"], found["errors"])
