"""The node's GPUs and driver files, as values. discovery/ finds them; ledger/inventory.py caches them."""

from oci_hook.core.units import natural
from oci_hook.core.value import Value
from oci_hook.errors import refuse

WHOLE = "+whole"  # suffix of a driver file's capability
MIG = "mig"  # capability of the nodes that open a MIG device; every container with that MIG device gets them


class Gpu(Value):
    """One GPU. memory_mib: total memory in MiB. minor: N of /dev/nvidiaN. numa: node or -1. simulated: no real GPU.

    context_mib: the memory that the context of one process takes, in MiB, rounded up; estimated where it could not be measured
    (discovery/contexts.py), 0 only on simulated GPUs. time_scale: a simulated GPU takes so many times as long for
    everything as it reports; 1 for real GPUs.
    A MIG device counts as a GPU. Then parent is the UUID of the GPU that it is part of, instance its number there, and
    index, minor, pci and numa are the parent's; gi and ci are the ids of its GPU and compute instance. For a GPU that is no
    MIG device, parent is "" and these are -1.
    arch: its compute capability, as 8.0, and brand: as NVIDIA_REQUIRE_* has it; "" where the driver does not say.
    file: the host file that is a simulated GPU, which containers get at layout.SIM_GPUS/<its name>; "" for real GPUs.
    no_limits: why the driver keeps no memory limits per cgroup on it (core/boundary.py); "" where it does.
    block_bytes: the blocks in which the driver takes linear memory from the GPU (discovery/blocks.py); 0: 512 bytes.
    missing_mib: memory that the agent found in use now and that nobody can be proved to have. The cache does not have it.
    """

    uuid: str
    index: int
    minor: int
    memory_mib: int
    name: str = ""
    pci: str = ""
    numa: int = -1
    simulated: bool = False
    context_mib: int = 0
    time_scale: int = 1
    parent: str = ""
    instance: int = -1
    file: str = ""
    gi: int = -1
    ci: int = -1
    arch: str = ""
    brand: str = ""
    no_limits: str = "the driver was not asked when the GPUs were listed"
    missing_mib: int = 0
    block_bytes: int = 0

    @property
    def address(self) -> str:
        """The short name: 0, or 0:1 for a MIG device."""
        return f"{self.index}:{self.instance}" if self.parent else str(self.index)

    @property
    def old_name(self) -> str:
        """The name of a MIG device before driver 470, which had no UUIDs for them; "" for other GPUs."""
        return f"MIG-{self.parent}/{self.gi}/{self.ci}" if self.parent and self.gi >= 0 else ""


class DriverFile(Value):
    """One file of the driver, as found in the driver root.

    path: absolute host path. kind: "library" | "binary" | "data" | "firmware" | "socket" | "proc". capability: a container
    with this driver capability gets the file; with the suffix WHOLE only if all its GPUs are whole, because the file
    reaches a GPU without libcuda.
    names: for a library, its file names in the container (versioned name and soname; an absolute one is a path); for
    data, its path in the container; else ().
    """

    path: str
    kind: str
    capability: str
    names: tuple[str, ...] = ()


class DeviceFile(Value):
    """A control node that every container with a GPU needs (nvidiactl, nvidia-uvm, ...): a character device, mode 0666."""

    path: str
    major: int
    minor: int


class GpuNode(Value):
    """A device node besides /dev/nvidiaN, mode 0666. Containers with whole GPUs and this capability get it; nodes with the
    capability MIG go to every container with the GPU.

    uuid: the GPU that the node belongs to; "" for every GPU.
    """

    uuid: str
    capability: str
    path: str
    major: int
    minor: int


MOVES_SINCE = 570


class Inventory(Value):
    """The node's GPUs and driver.

    links: (uuid, uuid, distance) per pair of GPUs; a smaller distance is nearer, and pairs that are not listed are far.
    libcuda / libnvml: host paths of the real libraries. stamp: (path, inode, size, mtime_ns) of files; if one of them
    changes, or boot_id, the inventory is stale. imex_major: the major number of the IMEX channels' nodes, -1 for none.
    cuda_version: the newest CUDA that the driver supports, as 12.4; "" where it does not say.
    environment: (name, value) that a program needs in its environment for libnvml to find simulated GPUs.
    """

    boot_id: str
    driver_version: str
    driver_root: str
    simulated: bool
    gpus: tuple[Gpu, ...]
    control: tuple[DeviceFile, ...]
    files: tuple[DriverFile, ...]
    libcuda: str
    libnvml: str
    links: tuple[tuple[str, str, int], ...] = ()
    stamp: tuple[tuple[str, int, int, int], ...] = ()
    nodes: tuple[GpuNode, ...] = ()
    imex_major: int = -1
    cuda_version: str = ""
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def moves_memory(self) -> bool:
        """True if the driver moves a process's memory to the host's and back (570; CUDA driver API, "CUDA Checkpointing")."""
        return self.driver_major >= MOVES_SINCE

    @property
    def driver_major(self) -> int:
        """The first number of its version; 0 if that is none."""
        return natural(self.driver_version.partition(".")[0])

    def gpu(self, uuid: str) -> Gpu:
        """The GPU with this UUID. Raises NoRoomError GH-202 when the node has none."""
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise refuse(
            "GH-202", f"GPU {uuid[:60]} is not on this node any more (`gpu-hook gpus`); make the container anew"
        )
