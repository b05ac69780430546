"""Containers of the validation: mount namespaces over an overlay of this machine's own files, so that its programs run
in them; shares are given to them by the shipped live-container applier."""

import contextlib
import os
import platform
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from testbed import REPO

from .frame import Json, run

BUILD = REPO / "build" / platform.machine()
PROBE = BUILD / "sim" / "gpu-probe"
SCALE = 4  # of a simulated GPU, in the runs that measure time


class Node:
    """An install and an inventory of their own below one folder."""

    def __init__(
        self, folder: Path, simulated: bool, time_scale: int = 1, driver: str = "550", limits: str = "dmem"
    ) -> None:
        """driver, limits: of the simulated GPU, as `gpu-hook sim up` has them."""
        from gpu_hook_simulator import driver_root, release
        from oci_hook.discovery import discover
        from oci_hook.discovery.save import save_inventory
        from oci_hook.install import prefix, settings_edit

        self.prefix, self.state = folder / "prefix", folder / "state"
        # Nothing is started through a runtime here, so any program may stand where a machine has none.
        runtime = shutil.which("runc") or "/bin/true"
        python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
        self.settings = prefix.lay(str(self.prefix), runtime=runtime, python=python, state_dir=str(self.state))
        if simulated:
            of = release.release(driver, limits)
            driver_root.make(str(self.prefix), str(self.state), 1, 24576, time_scale, release=of)
            root = driver_root.root_of(str(self.prefix))
            self.settings = settings_edit.set_driver_root(str(self.prefix), str(root))
            # the bare runs find the simulated driver so
            os.environ["GPU_HOOK_SIM_GPUS"] = f"{self.state}/sim/gpus"
        self.inventory = discover.discover(self.settings.driver_root)
        save_inventory(self.settings, self.inventory)
        if simulated:
            os.environ["LD_LIBRARY_PATH"] = os.path.dirname(self.inventory.libcuda)


def gates(node: Node) -> list[Json]:
    """What the slot files of its first GPU say of each container's gate, in the order of the slots."""
    from oci_hook.core import slot_page
    from oci_hook.ledger import slot_files

    found = []
    for path in sorted(Path(slot_files.folder(str(node.state), node.inventory.gpus[0].uuid)).glob("slot/*")):
        data = path.read_bytes()
        gate = slot_page.parse(data)
        if gate and gate.launches:
            words = ("charged", "wanted", "launches", "waiting", "waited", "mode", "held_for", "uncharged")
            duty, saturated = struct.unpack_from("<IB", data, 112)
            want = struct.unpack_from("<I", data, 840)[0]
            found.append({**{k: getattr(gate, k) for k in words}, "duty": [duty / 1e6, saturated, want / 1e6]})
    return found


def own_mounts(driver: str) -> list[str]:
    """Where this machine's own files lie on file systems of their own, which an overlay of / does not show; not the one of
    the driver's library, as no image has it."""
    kept = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        path, kind = line.split()[4].encode().decode("unicode_escape"), line.split(" - ")[1].split()[0]
        system = path == "/" or path.split("/")[1] in ("proc", "sys", "dev", "run", "tmp")
        if (
            not system
            and not driver.startswith(path + "/")
            and kind in ("ext4", "xfs", "btrfs", "overlay", "squashfs", "erofs", "virtiofs", "9p", "tmpfs")
        ):
            kept.append(path)
    return [path for path in kept if os.path.exists(path)]


def overlay_script(root: Path, folder: Path, driver: str) -> str:
    """Lines of sh that mount an overlay of / at `root`, with what is written in a tmpfs at FOLDER/layer."""
    lines = f"""mkdir -p '{root}' '{folder}/layer'
        mount -t tmpfs tmpfs '{folder}/layer'; mkdir '{folder}/layer/upper' '{folder}/layer/work'
        mount -t overlay -o 'lowerdir=/,upperdir={folder}/layer/upper,workdir={folder}/layer/work' overlay '{root}'
        mount --make-rprivate '{root}'
        """
    return lines + "".join(
        f"""mkdir -p '{root}{path}' 2>/dev/null || :; mount --bind '{path}' '{root}{path}' || :
        """
        for path in (*own_mounts(driver), str(REPO))
    )


def overlay(root: Path, folder: Path, driver: str) -> None:
    """In this mount namespace; `unmount` takes it away."""
    run(["sh", "-c", "set -e\n" + overlay_script(root, folder, driver)])


def unmount(folder: Path) -> None:
    for path in (folder / "rootfs", folder / "layer"):
        subprocess.run(["umount", "-R", "-l", str(path)], capture_output=True)


@contextlib.contextmanager
def box(node: Node, folder: Path, annotations: dict[str, str]) -> Iterator[Callable[..., Any]]:
    """A container with a share; gives inside(argv, seconds), which runs a program in it to its end, or with
    seconds=None starts it. FOLDER/work is also in the container, by that name. All of it is gone at the end."""
    from oci_hook.apply import to_container
    from oci_hook.apply.image import check_destinations, look
    from oci_hook.core.grant import Identity, Life
    from oci_hook.core.plan import make_plan
    from oci_hook.core.request import parse
    from oci_hook.ledger.admit import admit, release
    from oci_hook.linux.proc import boot_id, process_life

    folder.mkdir()
    root = folder / "root"
    ready = folder / "ready"
    script = f"""set -e
        {overlay_script(root, folder, node.inventory.libcuda)}
        for d in /proc /sys; do mount --rbind $d '{root}'$d; done
        mount -t tmpfs -o mode=755 tmpfs '{root}/dev'; mkdir '{root}/dev/shm'; mount -t tmpfs tmpfs '{root}/dev/shm'
        mkdir -p '{folder}/work' '{root}{folder}/work'; mount --bind '{folder}/work' '{root}{folder}/work'
        for n in null zero full random urandom tty; do cp -a /dev/$n '{root}/dev/'; done
        touch '{ready}'; exec sleep 1000"""
    init = subprocess.Popen(["unshare", "-m", "--propagation", "private", "sh", "-c", script], stderr=subprocess.PIPE)
    key = ""
    try:
        for _ in range(200):
            if ready.exists():
                break
            if init.poll() is not None:
                assert init.stderr
                raise RuntimeError(f"no mount namespace: {init.stderr.read().decode()[-500:]}")
            time.sleep(0.05)
        request = parse(annotations, {}, "", node.settings.rules)
        assert request
        who = Identity("bundle:" + str(folder), folder.name, str(folder))
        admission = admit(request, who, Life(boot_id(), init=process_life(init.pid)), node.settings)
        key = admission.grant.key
        container = to_container.open_container(init.pid, str(root))
        plan = make_plan(
            admission.grant, admission.inventory, look(container.path(), []), str(node.prefix), str(node.state)
        )
        settings = node.settings
        places = ((settings.prefix, "GH-305"), (settings.state_dir, "GH-303"), (settings.driver_root, "GH-302"))
        to_container.apply(check_destinations(container.path(), [], plan), container, places)
        to_container.verify(plan, container)

        def inside(argv: list[str], seconds: float | None = 60) -> Any:
            enter = ["nsenter", "-t", str(init.pid), "-m", "--", "chroot", str(root)]
            hidden = ("LD_LIBRARY_PATH", "GPU_HOOK_SIM_GPUS")  # the way past the shim, and to copies of the GPUs
            environment = {k: v for k, v in os.environ.items() if k not in hidden}
            if seconds is None:
                return subprocess.Popen([*enter, *argv], env=environment, start_new_session=True)
            return run([*enter, *argv], seconds, env=environment)

        yield inside
    finally:
        init.kill()
        init.wait()
        if key:
            release(key, node.settings, force=True)


def environment() -> dict[str, Any]:
    def try_run(*argv: str) -> str:
        try:
            return run(list(argv), 30).strip()
        except (OSError, RuntimeError, subprocess.SubprocessError) as e:
            return f"({e})"[:200]

    version = Path("/proc/driver/nvidia/version")
    return {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "driver": version.read_text().strip() if version.exists() else None,
        "nvidia-smi -L": try_run("nvidia-smi", "-L"),
        "cpus": os.cpu_count(),
        "overlay": "overlay" in Path("/proc/filesystems").read_text(),
        "cgroups": [line.split(" - ")[1].split()[0] for line in open("/proc/self/mountinfo") if " - cgroup" in line],
        "libcuda": try_run(
            "sh", "-c", "ldconfig -p | grep -E 'libcuda.so|libnvidia-ml'; ls -l /usr/local/nvidia/lib64"
        ),
    }


def inventory(node: Node) -> dict[str, Any]:
    found = node.inventory
    return {
        "driver_version": found.driver_version,
        "libcuda": found.libcuda,
        "libnvml": found.libnvml,
        "gpus": [gpu.fields() for gpu in found.gpus],
        "control": [file.fields() for file in found.control],
        "files": [file.path for file in found.files],
    }


class Boxes:
    """The stage for cells of the benchmarks (testbed/load/stage.py's Stage), with boxes for containers."""

    def __init__(self, node: Node, folder: Path, simulated: bool) -> None:
        self.node, self.folder, self.simulated = node, folder, simulated
        self.scale = SCALE if simulated else 1
        self.memory = "4Gi" if simulated else "10%"  # each process of a cell has a context of half a GiB
        self.options = f"--scale {self.scale}" if simulated else "--spin"
        self.numbers = iter(range(100000))

    def gates(self) -> list[Json]:
        """What the slot files say of each container, in the order of their slots."""
        return gates(self.node)

    def wait(self, gpu_seconds: float) -> None:
        time.sleep(gpu_seconds * self.scale)

    @contextlib.contextmanager
    def tenant(self, gpu: int, annotations: Json | None, procs: int = 1) -> Iterator[Any]:
        """Load generators in a box, or beside all boxes when annotations is None."""
        from testbed.load.tenant import Tenant

        folder = self.folder / f"t{next(self.numbers)}"
        programs: list[subprocess.Popen[str]] = []
        with contextlib.ExitStack() as stack:
            if annotations is None:
                folder.mkdir()
            else:
                texts = {k: str(v) for k, v in annotations.items()}
                inside = stack.enter_context(box(self.node, folder, texts))
            tenant = Tenant(folder.name, folder / "work" / "load", procs)
            stack.callback(tenant.close)
            tenant.lay()
            where = str(tenant.work)
            script = f"exec 2>{where}/log; " + tenant.command_lines([str(BUILD / "bench/load")], where, self.options)
            try:
                argv = ["sh", "-c", script]
                program = inside(argv, None) if annotations else subprocess.Popen(argv, start_new_session=True)
                programs.append(program)
                tenant.wait_ready(30)
                yield tenant
            finally:
                for program in programs:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(program.pid, signal.SIGKILL)
                    program.wait()
