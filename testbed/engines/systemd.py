"""systemd for real, on cgroup v2, as pid 1 of namespaces of its own. Never start it in any other way: the machine's own
services and its tmpfiles, which empty /tmp, would run."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from testbed.engines import box
from testbed.engines.box import PRIVATE, Place
from testbed.until import until

SYSTEMD = "/lib/systemd/systemd"
GROUP = "/sys/fs/cgroup/unified"
APART = "/tmp /var/tmp /home /root /srv"
# A target of nothing, and no other unit to fall back on: this machine's services must not start here (its tmpfiles
# would empty /tmp). These folders are read-only but for {own}. Sysctls are the machine's, so read-only too.
# /dev/char has the GPUs as `gpus --refresh` makes them known where they are real; runc 1.1.5 looks there.
BOOT = f"""
for d in {{apart}}; do [ ! -d $d ] || mount --bind $d $d; done
mount --bind {{own}} {{own}}
for d in {{apart}}; do [ ! -d $d ] || mount -o remount,bind,ro $d; done
for d in /usr/lib /lib /etc /usr/local/lib; do
  for s in systemd/system systemd/system-generators systemd/system-preset tmpfiles.d sysctl.d modules-load.d; do
    [ ! -d $d/$s ] || mount -t tmpfs none $d/$s
  done
done
umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup
mount -t proc proc /proc; mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys
mkdir -p /run/dev/char /run/dev/pts /run/dev/shm
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /run/dev
mount --bind /run/dev /dev
for n in 0 1 255; do mknod /dev/char/195:$n c 195 $n; done
echo 0123456789abcdef0123456789abcdef >/etc/machine-id; : >/etc/fstab
mount --make-rshared /  # as on a machine: what is mounted later is seen in services' namespaces, and only there
mkdir -p /run/systemd/system
printf '[Unit]\\nAllowIsolate=yes\\nDefaultDependencies=no\\n' >/run/systemd/system/gh.target
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin {SYSTEMD} --unit=gh.target --log-target=null
"""


class Systemd:
    """prefix, state: of the install, in the place's folder or where PRIVATE hides it. first: what else to do."""

    def __init__(self, place: Place, prefix: str = "", state: str = "", first: str = "") -> None:
        self.dir = place.dir / "systemd"
        self.dir.mkdir()
        self.rootfs = place.rootfs
        self.prefix = prefix or f"{self.dir}/prefix"
        self.group = Path(GROUP, f"gh-{place.dir.name}-systemd")
        self.group.mkdir()
        boot = self.dir / "boot"
        boot.write_text(f"set -e\n{PRIVATE}{first}{BOOT.format(own=place.dir, apart=APART)}")
        enter = (
            f"echo $$ >{self.group}/cgroup.procs; exec unshare -C -m -p -f -i -u -n --kill-child --propagation private"
        )
        self.process = subprocess.Popen(["sh", "-c", f"{enter} sh {boot}"], stdin=subprocess.DEVNULL)
        try:
            assert until(lambda: self.process.poll() is not None or self.runs()) and self.process.poll() is None
        except BaseException:
            self.close()
            raise
        self.gpu_hook("install", "--no-engines", "--state-dir", state or f"{self.dir}/state")
        self.gpu_hook("sim", "up", "--gpus", "2", "--memory", f"{box.MEMORY_MIB}Mi")

    def runs(self) -> bool:
        return self("systemctl", "is-system-running").stdout == "running\n"

    def __call__(self, *command: str) -> "subprocess.CompletedProcess[str]":
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        pid = children[0] if children else str(self.process.pid)
        namespaces = ("--mount", "--pid", "--cgroup", "--net", "--ipc", "--uts")
        return box.run("nsenter", f"--target={pid}", *namespaces, "--", "env", f"--chdir={box.REPO}", *command)

    def gpu_hook(self, *args: str) -> str:
        done = self(box.sys.executable, "-m", "oci_hook", *args, "--prefix", self.prefix)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def runc(self, *args: str) -> "subprocess.CompletedProcess[str]":
        return self(f"{self.prefix}/bin/gpu-hook-runtime", "--systemd-cgroup", "--root", f"{self.dir}/root", *args)

    def bundle(self, **changes: Any) -> Path:
        folder = self.dir / "bundle"
        folder.mkdir()
        subprocess.run(["runc", "spec"], cwd=folder, check=True)
        spec = json.loads((folder / "config.json").read_text())
        spec["process"].update(terminal=False, args=["sleep", "1000"])
        del spec["process"]["rlimits"]
        spec["root"] = {"path": str(self.rootfs), "readonly": False}
        spec["linux"]["cgroupsPath"] = "system.slice:gh:one"
        spec.update(changes)
        (folder / "config.json").write_text(json.dumps(spec))
        return folder

    def close(self) -> None:
        self.process.kill()  # and, with it, systemd and all of its namespace
        self.process.wait()
        folders = sorted((folder for folder, _, _ in os.walk(self.group)), reverse=True)
        until(lambda: all([box.removed(folder) for folder in folders]), seconds=20)
        shutil.rmtree(self.dir)
