"""The image of a machine: a root of Debian's packages on an ext4 file system, a kernel and an initrd, kept in the user's cache.

QEMU is Debian sid's, unpacked and run by its own loader: older ones panic today's kernels at random without KVM.
"""

import lzma
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from testbed.debian import CannotFetch, alone, bootstrap

HERE = Path(__file__).resolve().parent
SPACE = 8 << 30  # bytes that a build needs at most
SIZE = "8G"  # of the machine's disk, a sparse file

# What the machine has: engines, what our packages depend on, and what tests call.
PACKAGES = ("systemd", "systemd-sysv", "dbus", "udev", "kmod", "libpam-systemd", "dbus-user-session", "login", "passwd")
PACKAGES += ("python3", "python3-click", "python3-yaml", "python3-tomlkit", "python3-psutil", "python3-rich")
PACKAGES += ("runc", "crun", "containerd", "docker.io", "docker-cli", "podman", "netavark", "aardvark-dns", "catatonit")
PACKAGES += ("uidmap", "slirp4netns", "rootlesskit", "apparmor", "iptables", "iproute2", "busybox-static", "procps")
PACKAGES += ("util-linux", "ca-certificates", "init-system-helpers")
SELINUX = ("selinux-policy-default", "policycoreutils")  # beside them, where it is enforced

TOOLS = ("qemu-system-x86", "seabios", "qemu-system-arm", "qemu-user", "kmod")
MODULES = ("virtio_pci", "virtio_blk", "virtio_console", "virtio_rng", "ext4")

# Units that a machine for tests can do without; under emulation they take seconds to minutes of each boot.
MASKED = ("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "fstrim.timer")
MASKED += ("man-db.timer", "podman-auto-update.timer", "getty@tty1.service", "serial-getty@ttyS0.service")
MASKED += ("systemd-timesyncd.service", "systemd-networkd.service", "ldconfig.service")
MASKED += (
    "systemd-hwdb-update.service",
    "systemd-firstboot.service",
    "systemd-journal-flush.service",
    "apparmor.service",
)
MASKED += ("e2scrub_reap.service", "systemd-pcrphase.service", "systemd-random-seed.service", "sys-kernel-debug.mount")
MASKED += ("dev-hugepages.mount", "sys-kernel-tracing.mount", "systemd-networkd-wait-online.service")
# Started by the test that needs them.
DISABLED = ("docker.service", "docker.socket", "containerd.service", "podman.socket", "podman-restart.service")


class Suite(NamedTuple):
    """A kind of machine: Debian's suite and architecture, the package of its kernel, QEMU's words for it. selinux: it is
    enforced, instead of AppArmor."""

    name: str
    suite: str
    architecture: str
    kernel: str
    qemu: str
    machine: str
    console: str
    selinux: bool = False
    cpu: str = "max"
    minutes: int = 3  # that a build takes

    @property
    def arch(self) -> str:
        """The kernel's name of its architecture."""
        return self.qemu.removeprefix("qemu-system-")


SUITES = {
    suite.name: suite
    for suite in (
        Suite("trixie", "trixie", "amd64", "linux-image-cloud-amd64", "qemu-system-x86_64", "q35", "ttyS0"),
        Suite("sid", "sid", "amd64", "linux-image-cloud-amd64", "qemu-system-x86_64", "q35", "ttyS0"),
        Suite(
            "selinux", "trixie", "amd64", "linux-image-cloud-amd64", "qemu-system-x86_64", "q35", "ttyS0", selinux=True
        ),
        Suite(
            "arm64",
            "trixie",
            "arm64",
            "linux-image-cloud-arm64",
            "qemu-system-aarch64",
            "virt",
            "ttyAMA0",
            cpu="neoverse-n1",
            minutes=15,
        ),
    )
}


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-hook-machine"


def key() -> str:
    """A digest of the recipe: of the files of this folder that go into an image."""
    files = ("image.py", "init", "machine.service", "server")
    return sha256(b"\0".join((HERE / name).read_bytes() for name in files)).hexdigest()[:12]


def home(suite: Suite) -> Path:
    """The image's folder: root.img, kernel, initrd, packages.txt. It exists only when it is complete."""
    return cache() / f"{suite.name}-{key()}"


def tools() -> Path:
    return cache() / f"tools-{sha256(' '.join(TOOLS).encode()).hexdigest()[:12]}"


def tool(name: str) -> list[str]:
    """The words that run a program of Debian sid on this machine, whose own C library may be older."""
    root = tools()
    (program,) = (found for folder in ("bin", "sbin") if (found := root / "usr" / folder / name).exists())
    loader = root / "usr/lib64/ld-linux-x86-64.so.2"
    return [str(loader), "--library-path", str(root / "usr/lib/x86_64-linux-gnu"), "--argv0", name, str(program)]


def build(suite: Suite, say: Callable[[str], None]) -> Path:
    """The folder of the suite's image, made where it is missing. Raises CannotFetch."""
    place = home(suite)
    if place.is_dir() and tools().is_dir():
        return place
    _check()
    with alone(tools(), say):
        if not tools().is_dir():
            say("QEMU of Debian sid: downloads 100 MB, about a minute")
            _made(tools(), lambda half: bootstrap(half, "sid", TOOLS, "extract"))
    with alone(place, say):
        if not place.is_dir():
            say(f"{suite.name}: downloads 300 MB, takes {suite.minutes} minutes, keeps 1.5 GB in {cache()}")
            _made(place, lambda half: _build(suite, half))
    return place


def _check() -> None:
    """Raises CannotFetch where this machine cannot build an image."""
    if os.geteuid():
        raise CannotFetch("root is needed to build and to share files with a machine")
    if platform.machine() != "x86_64":
        raise CannotFetch(f"QEMU's packages are taken for x86_64; this machine is {platform.machine()}")
    if not shutil.which("mke2fs"):
        raise CannotFetch("mke2fs is missing (package e2fsprogs)")
    cache().mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache()).free
    if free < SPACE:
        raise CannotFetch(f"{cache()} has {free >> 30} GiB of space; a build needs {SPACE >> 30} GiB")


def _made(place: Path, make: Callable[[Path], object]) -> None:
    half = place.with_name(f"{place.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    try:
        make(half)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise
    half.rename(place)


def _build(suite: Suite, out: Path) -> None:
    out.mkdir()
    root, kernel = out / "root", out / "kernel-root"
    bootstrap(kernel, suite.suite, [suite.kernel], "extract", suite.architecture)
    emulator = None if suite.arch == platform.machine() else tools() / f"usr/bin/qemu-{suite.arch}"
    bootstrap(root, suite.suite, PACKAGES + SELINUX * suite.selinux, architecture=suite.architecture, emulator=emulator)
    (modules,) = (kernel / "usr/lib/modules").iterdir()
    places = (kernel / f"boot/vmlinuz-{modules.name}", modules / "vmlinuz")  # sid has it beside the modules
    shutil.copy(next(path for path in places if path.exists()), out / "kernel")
    (root / "usr/lib/modules").mkdir(exist_ok=True)
    modules.rename(root / "usr/lib/modules" / modules.name)
    modules = root / "usr/lib/modules" / modules.name
    _run([*tool("depmod"), "-b", str(root / "usr"), modules.name])
    (out / "initrd").write_bytes(_initrd(root, modules))
    _prepare(root)
    if suite.selinux:
        _label(root)
    listed = _run(["dpkg-query", f"--admindir={root}/var/lib/dpkg", "-W", "-f", "${Package} ${Version}\n"])
    (out / "packages.txt").write_text(f"{suite.kernel} {modules.name}\n{listed}")
    _run(["mke2fs", "-q", "-t", "ext4", "-m", "0", "-E", "root_owner=0:0", "-d", str(root), f"{out}/root.img", SIZE])
    shutil.rmtree(root)
    shutil.rmtree(kernel)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CannotFetch(f"{' '.join(command)[-200:]}: {done.stderr.strip()[-400:]}")
    return done.stdout


def _prepare(root: Path) -> None:
    """What makes a root a machine that takes commands and boots soon."""

    def write(path: str, text: str) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)

    write("etc/hostname", "machine\n")
    write("etc/hosts", "127.0.0.1 localhost machine\n")
    write("etc/fstab", "")
    write("etc/machine-id", "0123456789abcdef0123456789abcdef\n")
    slow = "[Manager]\nDefaultTimeoutStartSec=600s\nDefaultTimeoutStopSec=120s\nDefaultDeviceTimeoutSec=600s\n"
    write("etc/systemd/system.conf.d/slow.conf", slow)
    write("etc/systemd/journald.conf.d/all.conf", "[Journal]\nStorage=volatile\nRateLimitBurst=0\n")
    write("etc/passwd", (root / "etc/passwd").read_text() + "plain:x:1000:1000::/home/plain:/bin/bash\n")
    write("etc/group", (root / "etc/group").read_text() + "plain:x:1000:\n")
    write("etc/shadow", (root / "etc/shadow").read_text() + "plain:!:20000::::::\n")
    for name in ("etc/subuid", "etc/subgid"):
        write(name, "plain:100000:65536\ncontainers:200000:1000000\n")
    (root / "home/plain").mkdir()
    os.chown(root / "home/plain", 1000, 1000)
    units = root / "etc/systemd/system"
    for name in DISABLED:
        for link in units.glob(f"*.wants/{name}"):
            link.unlink()
    for name in MASKED:
        (units / name).unlink(missing_ok=True)
        (units / name).symlink_to("/dev/null")
    (units / "default.target").unlink(missing_ok=True)
    (units / "default.target").symlink_to("/usr/lib/systemd/system/multi-user.target")
    write("etc/systemd/system/machine.service", (HERE / "machine.service").read_text())
    (units / "sysinit.target.wants").mkdir(exist_ok=True)
    (units / "sysinit.target.wants/machine.service").symlink_to("../machine.service")
    shutil.copy(HERE / "server", root / "usr/local/sbin/machine-server")
    (root / "usr/local/sbin/machine-server").chmod(0o755)
    shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)


def _label(root: Path) -> None:
    """Enforces Debian's policy, and gives each file its label, which mke2fs keeps."""
    (root / "etc/selinux/config").write_text("SELINUX=enforcing\nSELINUXTYPE=default\n")
    _run(["chroot", str(root), "setfiles", "-F", "/etc/selinux/default/contexts/files/file_contexts", "/"])


def _initrd(root: Path, modules: Path) -> bytes:
    """busybox, `init`, and the modules in the order in which they are loaded, as the kernel takes it (cpio, newc)."""
    names = list(_needed(modules, MODULES))
    out = bytearray()
    for folder in ("bin", "modules"):
        out += _entry(folder, 0o040755, b"")
    busybox = next(path for path in (root / "usr/bin/busybox", root / "bin/busybox") if path.exists())
    out += _entry("bin/busybox", 0o100755, busybox.read_bytes())
    out += _entry("bin/sh", 0o120777, b"busybox")
    out += _entry("init", 0o100755, (HERE / "init").read_bytes())
    for name in names:
        data = (modules / name).read_bytes()
        out += _entry(_plain(name), 0o100644, lzma.decompress(data) if name.endswith(".xz") else data)
    order = "".join(f"{os.path.basename(_plain(name))}\n" for name in names)
    return bytes(out + _entry("modules/order", 0o100644, order.encode()) + _entry("TRAILER!!!", 0, b""))


def _plain(name: str) -> str:
    return "modules/" + os.path.basename(name).removesuffix(".xz")


def _needed(modules: Path, wanted: tuple[str, ...]) -> Iterator[str]:
    """The files of these modules with what they need, each before what needs it. One that is built in has none."""
    needs: dict[str, list[str]] = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        name, _, rest = line.partition(":")
        needs[name] = rest.split()
    files = {os.path.basename(name).split(".")[0].replace("-", "_"): name for name in needs}
    told: set[str] = set()
    for module in wanted:
        if module in files:
            for name in (*reversed(needs[files[module]]), files[module]):
                if name not in told:
                    told.add(name)
                    yield name


def _entry(name: str, mode: int, data: bytes) -> bytes:
    path = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + path
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)
