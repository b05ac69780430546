"""The machine: driver, device nodes, inventory, ledger, kernel, cgroups."""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from oci_hook.boundary import leaks, start
from oci_hook.boundary.nvml_limits import LimitError
from oci_hook.config.settings import Settings
from oci_hook.core import words
from oci_hook.core.boundary import expected
from oci_hook.core.inventory import MOVES_SINCE, Inventory
from oci_hook.core.layout import LEDGER_DIR
from oci_hook.core.terms import DRIVER, SHIM
from oci_hook.core.units import MIB
from oci_hook.discovery import char_links, discover, driver_files, mark
from oci_hook.engines.doctor.finding import FAIL, NOTE, OK, WARN, CheckResult
from oci_hook.errors import GhError
from oci_hook.ledger import events, inventory, store
from oci_hook.linux import cgroup, mount, openat2, proc
from oci_hook.observe import boundary_now
from oci_hook.observe.orphans import orphans

USUAL = "/run/gpu-hook"
PERSISTENCED = "/run/nvidia-persistenced/socket"
NVML_SECONDS = 20.0  # a driver that takes longer is not kept initialised
CGROUP2 = "mount -t cgroup2 none /sys/fs/cgroup"
FEATURES = "openat2 (Linux 5.6), open_tree (5.2) and mount_setattr (5.12)"


def check_driver(settings: Settings, option: str) -> Iterator[CheckResult]:
    if Path(settings.driver_root, mark.MARK).exists():
        yield CheckResult(
            "driver", NOTE, f"simulated, in {settings.driver_root}; `gpu-hook sim down{option}` removes it"
        )
        return
    loaded = discover.kernel_version()
    if not loaded:
        message = "no NVIDIA kernel driver is loaded; without a GPU, `gpu-hook sim up` simulates one"
        yield CheckResult("driver", FAIL, message, "GH-302", "modprobe nvidia")
        return
    root, found = driver_files.find_in(settings.driver_root, loaded)
    yield CheckResult("driver", OK, f"{found.version}, files in {root}")
    if os.path.exists(PERSISTENCED):
        yield CheckResult("persistence", OK, "nvidia-persistenced runs")
    elif discover.persistence(root, found.libnvml, NVML_SECONDS):
        yield CheckResult("persistence", OK, "persistence mode is on, though nvidia-persistenced does not run")
    else:
        message = "neither nvidia-persistenced nor persistence mode: the first use of an idle GPU takes seconds"
        yield CheckResult("persistence", WARN, message, "", "systemctl enable --now nvidia-persistenced")


def check_inventory(settings: Settings, option: str) -> Iterator[CheckResult]:
    try:
        gpus = inventory.load(settings)
    except GhError as e:
        message = str(e.problems[0]).partition(": ")[2]
        yield CheckResult("inventory", FAIL, message, e.problems[0].code, f"gpu-hook gpus --refresh{option}")
        return
    simulated = ", simulated" if gpus.simulated else ""
    yield CheckResult("inventory", OK, f"{plural(len(gpus.gpus), 'GPU')}{simulated}, driver {gpus.driver_version}")
    yield from check_boundary(gpus, settings)
    yield from check_leaks(gpus, settings)
    if settings.rules.lends and not gpus.moves_memory:
        message = f"no memory is lent (oversubscribe): driver {gpus.driver_version} cannot move it, {MOVES_SINCE} and newer can"
        yield CheckResult("lending", WARN, message, "", "gpu-hook settings set oversubscribe=1.0" + option)
    yield from check_machine_memory(gpus, settings, option)
    if not gpus.simulated:
        yield from check_devices(gpus, option)


def check_boundary(gpus: Inventory, settings: Settings) -> Iterator[CheckResult]:
    """Checks that the driver can hold memory limits."""
    whys = dict.fromkeys(gpu.no_limits for gpu in gpus.gpus)
    if settings.rules.boundary == SHIM:
        yield CheckResult("boundary", NOTE, "the shim alone holds memory limits: the setting `boundary` is shim")
        return
    for why in whys:
        on = "" if len(whys) == 1 else f" on {plural(sum(gpu.no_limits == why for gpu in gpus.gpus), 'GPU')}"
        if not why:
            yield CheckResult("boundary", OK, f"the driver holds memory limits as well as the shim{on}")
        elif settings.rules.boundary == DRIVER:
            message = f"the setting `boundary` is driver, and containers with a share are refused{on}: {why}"
            yield CheckResult("boundary", WARN, message, "GH-204", "gpu-hook settings set boundary=auto")
        else:
            yield CheckResult("boundary", NOTE, f"the shim alone holds memory limits{on}: {why}")


def check_leaks(gpus: Inventory, settings: Settings) -> Iterator[CheckResult]:
    """Finds memory that the driver sets aside for cgroups that are gone."""
    if not leaks.read(settings.state_dir):
        return
    try:
        found = start.ask(settings, {"do": "leaks"})["left"]
    except LimitError as e:
        yield CheckResult("boundary", WARN, f"soft limits of cgroups that are gone cannot be looked for: {e}")
        return
    indices = {gpu.uuid: gpu.index for gpu in gpus.gpus}
    for uuid, place, size in found:
        message = (
            f"the driver still sets {size // MIB} MiB of GPU {indices.get(uuid, uuid)} aside at {place[-80:]} for"
            " containers that have ended: nobody can count on this memory until the driver is loaded anew"
        )
        yield CheckResult("boundary", WARN, message)


def check_machine_memory(gpus: Inventory, settings: Settings, option: str) -> Iterator[CheckResult]:
    """Finds GPUs that use the machine's memory where nothing of it is set aside for the machine."""
    shared = [gpu.index for gpu in gpus.gpus if gpu.memory_mib == proc.memory_total() // MIB]
    if shared and not settings.rules.memory_reserve:
        message = f"GPU {shared[0]} uses the machine's memory, and containers may be granted all of it"
        yield CheckResult("memory", WARN, message, "", f"gpu-hook settings set memory_reserve=25%{option}")


def check_devices(gpus: Inventory, option: str) -> Iterator[CheckResult]:
    """The device nodes, which the driver creates on first use, and their /dev/char links."""
    wanted = char_links.nodes(gpus)
    absent = [path for path, major, minor in wanted if not char_links.is_device(path, major, minor)]
    if absent:
        yield CheckResult(
            "devices", WARN, f"{', '.join(absent)} missing, or with another device number", "GH-302", "nvidia-smi"
        )
    else:
        yield CheckResult("devices", OK, plural(len(wanted), "device node"))
    unlinked = [link for _, link in char_links.missing(gpus)]
    if unlinked:
        message = (
            f"{words.first(unlinked)} missing: with runc before 1.1.7 or systemd before 240, containers lose their GPUs"
            " at `systemctl daemon-reload`"
        )
        yield CheckResult("devices", WARN, message, "GH-302", f"gpu-hook gpus --refresh{option}")


def check_ledger(settings: Settings, option: str) -> Iterator[CheckResult]:
    living = store.snapshot(settings.state_dir)
    folder = Path(settings.state_dir, LEDGER_DIR)
    written = len(list(folder.glob("*.json"))) if folder.is_dir() else 0
    exited = written - len(living)
    more = f"; the next start releases {exited} of exited containers" if exited > 0 else ""
    holders = "1 container holds a share" if len(living) == 1 else f"{len(living)} containers hold shares"
    yield CheckResult("ledger", OK, holders + more)
    unknown = orphans(settings.state_dir, {grant.key for grant in living})
    new = {grant.key for grant in store.snapshot(settings.state_dir)} if unknown else set()  # created meanwhile
    for pid in [pid for key, pid in unknown.items() if key not in new]:
        message = f"process {pid} has a share that is not in the ledger: the GPU memory it uses can be granted twice"
        yield CheckResult("ledger", WARN, message, "GH-303", f"kill -9 {pid}")
    if os.path.isdir(settings.state_dir):
        if os.stat(settings.state_dir).st_mode & 0o077:
            message = f"{settings.state_dir} is open to all users of this machine, who can write to shared files in it"
            yield CheckResult("ledger", WARN, message, "GH-303", f"chmod 0700 {shlex.quote(settings.state_dir)}")
        if not is_tmpfs(settings.state_dir):
            yield on_disk(settings, option, bool(living))
    try:
        gpus = inventory.load(settings)
    except GhError:
        return  # reported by another check
    known = {gpu.uuid for gpu in gpus.gpus}
    for grant in living:
        found, _ = boundary_now.look(settings.state_dir, grant, gpus)
        if grant.life.init is not None and expected(grant, gpus).name == DRIVER != found.name:
            message = f"container {events.title(grant.who)} runs without the driver's memory limit: {found.why}"
            yield CheckResult("boundary", WARN, message, "GH-414")
        for share in grant.shares:
            if share.uuid not in known:
                message = f"container {events.title(grant.who)} holds {share.uuid}, a GPU that this node does not have"
                yield CheckResult("ledger", WARN, message, "GH-202", f"gpu-hook gpus --refresh{option}")


def is_tmpfs(path: str) -> bool:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return mount.fstatfs_type(fd) == mount.TMPFS_MAGIC
    finally:
        os.close(fd)


def existing(path: str) -> str:
    """The path, or the nearest folder above it that is there."""
    return path if os.path.isdir(path) else existing(os.path.dirname(path))


def on_disk(settings: Settings, option: str, held: bool) -> CheckResult:
    message = f"state_dir {settings.state_dir} is not on tmpfs: a reboot does not empty it"
    if os.path.realpath(settings.state_dir) == USUAL:  # so /run itself is on a disk
        return CheckResult(
            "ledger", WARN, f"{message}; mount a tmpfs there before the first container starts", "GH-303"
        )
    tmpfs = "" if is_tmpfs(existing(USUAL)) else f"mkdir -p {USUAL} && mount -t tmpfs -o mode=0700 tmpfs {USUAL} && "
    if held:
        return CheckResult("ledger", WARN, f"{message}; end its containers, then run doctor again", "GH-303")
    return CheckResult("ledger", WARN, message, "GH-303", f"{tmpfs}gpu-hook settings set state_dir={USUAL}{option}")


def plural(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("s" if n != 1 else "")


LEASES = "/proc/sys/fs/leases-enable"
BREAK_TIME = "/proc/sys/fs/lease-break-time"
USERFAULTFD = "/proc/sys/vm/unprivileged_userfaultfd"


def check_leases() -> Iterator[CheckResult]:
    """Kernel switches by which containers can slow down each other, but not the host (fcntl(2), userfaultfd(2))."""
    if number(LEASES):
        message = (
            "fs.leases-enable is 1: a container's root, or a process with CAP_LEASE, can make a neighbour wait"
            f" {number(BREAK_TIME)} s (fs.lease-break-time) when it loads the shim, unless the agent runs; the host"
            " never waits; `sysctl fs.leases-enable=0` prevents this"
        )
        yield CheckResult("leases", NOTE, message)
    if number(USERFAULTFD):
        message = (
            "vm.unprivileged_userfaultfd is 1: containers can block the kernel's reads of their memory for any time;"
            " gpu-hook waits for no such read; `sysctl vm.unprivileged_userfaultfd=0` prevents this"
        )
        yield CheckResult("userfaultfd", NOTE, message)


def number(path: str) -> int:
    """The number in this file of /proc/sys; 0 if the kernel has no such file."""
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return 0


def check_kernel(option: str) -> Iterator[CheckResult]:
    release = os.uname().release
    try:
        os.close(openat2.openat2(-100, "/", os.O_PATH, openat2.RESOLVE_IN_ROOT | openat2.RESOLVE_NO_MAGICLINKS))
        root = os.open("/", os.O_PATH | os.O_CLOEXEC)
        try:
            tree = mount.open_tree(root, "/")
            try:
                mount.mount_setattr(tree, ("ro", "nosuid", "nodev"), "/")
            finally:
                os.close(tree)
        finally:
            os.close(root)
        yield CheckResult("kernel", OK, f"{release} has the interfaces that the hooks need")
    except PermissionError as e:
        yield CheckResult("kernel", WARN, f"cannot be tested: {e}", "", f"sudo gpu-hook doctor{option}")
    except OSError as e:
        message = f"{release} lacks {e}; the hooks need {FEATURES}; gpu-hook-runtime works without them"
        yield CheckResult("kernel", WARN, message, "GH-404")
    hierarchy = cgroup.v1_path(os.getpid(), "devices")
    if hierarchy is not None:
        yield CheckResult("cgroup", OK, "version 1, with the devices controller")
    elif os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        yield CheckResult("cgroup", OK, "version 2")
    else:
        yield CheckResult("cgroup", FAIL, "neither the devices controller nor version 2 is mounted", "GH-404", CGROUP2)
