"""Makes and removes an install's simulated driver: a driver root with two libraries, and one memory file per GPU.

PREFIX/sim/root/usr/lib/<multiarch>/   libcuda.so.VERSION, libnvidia-ml.so.VERSION and their links
PREFIX/sim/root/gpu-hook-simulated.json  the mark, by which gpu-hook knows the root (oci_hook/discovery/mark.py)
STATE/sim/gpus/<minor>                the GPUs (gpu.h), mapped by every process that uses them; STATE/sim is 0700

Not under /run: libraries must be on a mount that allows execution.
"""

import json
import os
import platform
import shutil
import stat
import uuid
from pathlib import Path
from struct import Struct

from gpu_hook_simulator import exports
from gpu_hook_simulator import mig as mig_devices
from gpu_hook_simulator.release import DEFAULT, Release
from gpu_hook_simulator.topology import Topology, lay
from oci_hook.discovery.driver_files import MULTIARCH
from oci_hook.discovery.mark import MARK
from oci_hook.errors import refuse
from oci_hook.linux import label

VERSION = DEFAULT.version
MAX_GPUS = 32
MADE_NODES = "made-nodes"  # in the driver root: the device nodes that are to go with it
ENVIRONMENT = "GPU_HOOK_SIM_GPUS"  # the variable by which the libraries find the GPUs on the host (gpu.c)
MIB = 1 << 20
LIBRARIES = ("libcuda.so", "libnvidia-ml.so")

# gpu.h: struct gpu_head before `fail_every`, and the size of struct gpu_file. A test compares both with the compiler's.
HEAD = Struct("<QII48s96s32s32sQQIiIIIIQQQQQQQQI4x")
MAGIC = 0x314441434D495347  # "GSIMCAD1"
FORMAT = 7
FILE_SIZE = 23483392
SLOTS, SLOT_SIZE = 128, 64  # after the head page
PIECES_AT, PIECES, PIECE_SIZE = 4096 + SLOTS * SLOT_SIZE + 256 * 4, 1024, 16  # memory that processes share
QUEUES, QUEUE_SIZE = 256, 65600  # the last part of the file
CALIBRATION = Path(__file__).with_name("calibration.json")  # the constants of driver and model
KERNEL_NS = 10_000
MAX_TIME_SCALE = 1000
LIMITS_BY_AT, BLOCK_BYTES_AT = 432, 436  # struct gpu_head
# Fields of the head that may change while the GPU is used; offsets, 32 bits each.
FAULTS = {
    "fail_every": 336,
    "fail_code": 340,
    "block_every": 344,
    "block_us": 348,
    "nvml_call_us": 352,
    "nvml_without": 356,
    "lost": 428,
}
CONTEXT_MIB = 64
SM_COUNT, CAPABILITY = 132, 90


def native_parts(arch: str = platform.machine()) -> Path:
    """Where the compiled libraries are: inside an installed package, or in the build folder of a checkout."""
    package = Path(__file__).resolve().parent
    packed = package / "native" / arch
    return packed if packed.is_dir() else package.parent.parent / "build" / arch / "sim"


def root_of(prefix: str) -> Path:
    return Path(prefix) / "sim" / "root"


def gpus_of(state_dir: str) -> Path:
    return Path(state_dir) / "sim" / "gpus"


def make(
    prefix: str,
    state_dir: str,
    gpus: int,
    memory_mib: int,
    time_scale: int = 1,
    mig: tuple[mig_devices.Profile, ...] = (),
    topology: Topology = Topology(),  # noqa: B008  a frozen value
    former_root: str = "/",
    release: Release = DEFAULT,
    block_mib: int = 0,
) -> Path:
    """Make the driver root and the GPU files anew. Returns the root. Raises NodeError GH-306.

    time_scale: how many times as long as it says a GPU takes for everything. mig: what GPU 0 is split into.
    former_root: the setting driver_root before, for `sim down`. release: of the driver. block_mib: in which it takes linear
    memory; 0: 512 bytes.
    """
    parts = native_parts()
    compiled = {name: parts / f"{name}.1" for name in LIBRARIES}
    if release.limits:
        compiled["libnvidia-ml.so"] = parts / "libnvidia-ml.so.1-615"
    missing = [file.name for file in compiled.values() if not file.is_file()]
    if missing:
        raise refuse("GH-306", f"{parts} lacks {', '.join(missing)}; run scripts/build in the checkout")
    root, files = root_of(prefix), gpus_of(state_dir)
    if set(str(root)) & set(" :;"):
        raise refuse("GH-306", f"{root}: no loader finds a library below a path with a blank or colon; choose --prefix")
    lasting = not files.exists()  # GPUs that replace others are others; after a boot they are the same again
    remove(prefix, state_dir)
    libraries = root / "usr/lib" / MULTIARCH.get(platform.machine(), platform.machine() + "-linux-gnu")
    try:
        for folder in (root.parent, root, *reversed(libraries.relative_to(root).parents), libraries):
            folder = root / folder
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)
            label.put(str(folder), label.LIBRARY)
        for name in LIBRARIES:
            file = libraries / f"{name}.{release.version}"
            library = compiled[name].read_bytes()
            file.write_bytes(exports.of_release(library, release.cuda_version) if release.exact else library)
            file.chmod(0o644)
            os.symlink(file.name, libraries / f"{name}.1")
            os.symlink(f"{name}.1", libraries / name)
        # Containers get the GPU files by bind mounts and may write to them. On the host only root reaches them.
        files.parent.mkdir(parents=True, exist_ok=True)
        files.parent.chmod(0o700)
        files.mkdir(mode=0o755)
        label.put(str(files), label.WRITE)
        for minor in range(gpus):
            make_gpu(files / str(minor), minor, memory_mib, time_scale, release, lasting, block_mib)
        lay(root, files, topology, {minor: bus_id(minor) for minor in range(gpus)})
        if mig:
            mig_devices.split(root, files, mig, HEAD)
        mark = {
            "what": "a simulated driver of gpu-hook",
            "environment": {ENVIRONMENT: str(files)},
            "files": {uuid_of(file): str(file) for file in sorted(files.iterdir())},
            "folders": [str(files)],
            "time_scale": time_scale,
            "former_driver_root": former_root,
        }
        (root / MARK).write_text(json.dumps(mark) + "\n")
    except OSError as e:
        remove(prefix, state_dir)
        raise refuse("GH-306", f"{e.filename or prefix}: {e.strerror}; run as root, or choose --prefix") from None
    return root


def lasting_uuid(what: str) -> str:
    """A UUID that this machine gives the same thing after each boot, as real GPUs keep theirs; another machine gives another.

    /etc/machine-id: machine-id(5). Without it, a random one.
    """
    try:
        machine = Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine = ""
    return str(uuid.uuid5(uuid.UUID(machine), what) if len(machine) == 32 else uuid.uuid4())


def make_gpu(
    path: Path,
    minor: int,
    memory_mib: int,
    time_scale: int = 1,
    release: Release = DEFAULT,
    lasting: bool = False,
    block_mib: int = 0,
) -> str:
    """Make the file of a new GPU. Returns its UUID. Every process with the GPU may write to the file.

    lasting: the UUID is that of earlier GPUs made at this path on this machine.
    """
    constants = json.loads(CALIBRATION.read_text())
    us, rate = constants["gpu_us"], constants["copy_gb_s"]
    name = f"GPU-51de{minor:04x}{(lasting_uuid(f'{path} {minor}') if lasting else str(uuid.uuid4()))[8:]}"
    head = HEAD.pack(
        MAGIC,
        FORMAT,
        FILE_SIZE,
        name.encode(),
        f"Simulated GPU {size_text(memory_mib)}".encode(),
        bus_id(minor).encode(),
        release.version.encode(),
        memory_mib * MIB,
        min(CONTEXT_MIB, memory_mib // 16) * MIB,
        minor,
        -1,
        release.cuda_version,
        SM_COUNT,
        CAPABILITY,
        time_scale,
        us["slice"] * 1000,
        us["switch_loaded"] * 1000,
        KERNEL_NS,
        us["switch_idle"] * 1000,
        constants["host_us"]["wake"] * 1000,
        *(rate[way] * 1000 for way in ("h2d", "d2h", "d2d")),
        constants["queue_depth"],
    )
    temporary = path.with_name(f".{path.name}.new")
    with open(temporary, "xb") as f:
        f.write(head)
        f.seek(LIMITS_BY_AT)
        f.write(release.limits.to_bytes(4, "little"))
        f.seek(BLOCK_BYTES_AT)
        f.write((block_mib * MIB).to_bytes(4, "little"))
        f.truncate(FILE_SIZE)
    temporary.chmod(0o666)
    temporary.rename(path)
    return name


def uuid_of(gpu: Path) -> str:
    with open(gpu, "rb") as f:
        return f.read(64)[16:].rstrip(b"\0").decode()


def set_faults(gpu: Path, faults: dict[str, int]) -> None:
    """Set the faults of this GPU's driver calls and NVML answers (FAULTS); those not in `faults` end."""
    with open(gpu, "r+b") as f:  # in place: programs have the file mapped
        for name, at in FAULTS.items():
            f.seek(at)
            f.write(faults.get(name, 0).to_bytes(4, "little"))


def bus_id(minor: int) -> str:
    """The PCI bus id, as NVML writes it."""
    return f"00000000:{0x51 + minor:02X}:00.0"


def size_text(mib: int) -> str:
    return f"{mib // 1024} GiB" if mib % 1024 == 0 else f"{mib} MiB"


def make_nodes(root: Path, nodes: list[tuple[str, int, int]]) -> None:
    """Make those of these device nodes (path, major, minor) that are not there, and note them for `remove`. Raises
    NodeError GH-306."""
    made = [path for path, _, _ in nodes if not os.path.lexists(path)]
    (root / MADE_NODES).write_text("".join(f"{path}\n" for path in made))
    for path, major, minor in nodes:
        if path in made:
            try:
                os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
                os.chmod(path, 0o666)
            except OSError as e:
                raise refuse("GH-306", f"{path}: {e.strerror}; --nodes needs root, and a /dev of its own") from None


def remove(prefix: str, state_dir: str) -> bool:
    """Remove root, GPUs and the nodes that were made for them. Returns whether there were any. Running programs keep the
    files that they have mapped."""
    root, files = root_of(prefix), gpus_of(state_dir)
    there = root.exists() or files.exists()
    if (root / MADE_NODES).exists():
        for node in (root / MADE_NODES).read_text().splitlines():
            Path(node).unlink(missing_ok=True)
    for folder in (root, files):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.parent.rmdir()
        except OSError:
            pass
    return there
