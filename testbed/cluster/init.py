"""The first process of a machine: makes its mounts, then takes up orphans until it is killed.

init.py NAME-OF-ITS-CGROUP JSON, in new mount, network, PID, UTS, IPC and cgroup namespaces; machine.py starts it.
"""

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

# Kernel settings that the kubelet makes for the whole computer; here it writes a file of this machine's.
SYSCTL = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/random/boot_id": str(uuid.uuid4()),  # this machine's, new at each start
}
CHARACTER_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
CHARACTER_DEVICES |= {"kmsg": (1, 11), "fuse": (10, 229)}


def main() -> None:
    asked = json.loads(sys.argv[2])
    folder = Path(asked["folder"])
    (folder / "pid").write_text(os.readlink("/proc/self"))  # /proc is still the computer's: its number of this process
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "proc", "proc", "/proc")
    run("hostname", asked["name"])
    run("ip", "link", "set", "lo", "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    tmpfs("/run", "755")
    os.mkdir("/run/lock")
    disk(folder / "disk")
    sysctl()
    whole_proc()
    temporary([Path(path) for path in asked["keep"]])
    devices()
    cgroups(asked["hierarchies"], asked["links"])
    (folder / "ready").touch()
    run("mount", "-o", "remount,bind,ro", "/")  # the computer's own settings stay
    run("mount", "--make-rshared", "/")
    os.closerange(3, 256)
    reap()


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def tmpfs(path: str, mode: str) -> None:
    run("mount", "-t", "tmpfs", "-o", f"mode={mode}", "tmpfs", path)


def disk(top: Path) -> None:
    for part, place in {"lib": "/var/lib", "opt": "/opt", "log": "/var/log"}.items():
        run("mount", "--bind", str(top / part), place)
    layers = f"lowerdir=/etc,upperdir={top}/etc,workdir={top}/etc.work"
    run("mount", "-t", "overlay", "-o", layers, "overlay", "/etc")
    number = Path("/var/lib/machine-id")
    if not number.exists():
        number.write_text(uuid.uuid4().hex + "\n")
    run("mount", "--bind", str(number), "/etc/machine-id")


def sysctl() -> None:
    for key, value in SYSCTL.items():
        file = Path("/run/sysctl") / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value + "\n")
        run("mount", "--bind", str(file), f"/proc/sys/{key}")


def whole_proc() -> None:
    """A user namespace may mount a proc of its own only where one is seen that nothing covers (the kernel's mount_too_revealing)."""
    os.mkdir("/run/proc", 0o700)
    run("mount", "-t", "proc", "proc", "/run/proc")


def temporary(keep: list[Path]) -> None:
    """A /tmp of this machine's own, in which what the cluster needs still has its place."""
    aside = {}
    for number, path in enumerate(path for path in keep if path.is_relative_to("/tmp")):
        place = Path(f"/run/aside/{number}")
        place.mkdir(parents=True)
        run("mount", "--rbind", str(path), str(place))
        aside[path] = place
    tmpfs("/tmp", "1777")
    for path, place in aside.items():
        path.mkdir(parents=True, exist_ok=True)
        run("mount", "--move", str(place), str(path))


def devices() -> None:
    os.mkdir("/run/dev")
    tmpfs("/run/dev", "755")
    for name, (major, minor) in CHARACTER_DEVICES.items():
        run("mknod", "-m", "666", f"/run/dev/{name}", "c", str(major), str(minor))
    for name in ("pts", "shm", "mqueue", "net"):
        os.mkdir(f"/run/dev/{name}")
    for name, target in {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}.items():
        os.symlink(f"/proc/self/fd{target}", f"/run/dev/{name}")
    os.symlink("pts/ptmx", "/run/dev/ptmx")
    run("mount", "-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620", "devpts", "/run/dev/pts")
    run("mount", "-t", "tmpfs", "shm", "/run/dev/shm")
    run("mount", "-t", "mqueue", "mqueue", "/run/dev/mqueue")
    run("mount", "--move", "/run/dev", "/dev")


def cgroups(hierarchies: list[str], links: dict[str, str]) -> None:
    """Mounts the machine's own cgroups as roots, since its cgroup namespace sees no others."""
    run("mount", "-t", "sysfs", "sysfs", "/sys")
    tmpfs("/sys/fs/cgroup", "755")
    for name in hierarchies:
        os.mkdir(f"/sys/fs/cgroup/{name}")
        if name == "unified":
            run("mount", "-t", "cgroup2", "cgroup2", f"/sys/fs/cgroup/{name}")
        else:
            option = "none,name=systemd" if name == "systemd" else name
            run("mount", "-t", "cgroup", "-o", option, "cgroup", f"/sys/fs/cgroup/{name}")
    for name, target in links.items():
        os.symlink(target, f"/sys/fs/cgroup/{name}")


def reap() -> None:
    """Orphans that end are taken up. Only SIGKILL from outside ends this process, and with it the machine."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            time.sleep(0.5)


main()
