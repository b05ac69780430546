"""Grant -> plan: the ordered changes that give a container its GPUs. Each step describes itself; nothing is done here."""

from oci_hook.core.grant import Grant
from oci_hook.core.inventory import MIG, WHOLE, Inventory
from oci_hook.core.layout import (
    ACCOUNT_DIR,
    CONTAINER_DIR,
    ENV_SET,
    IMEX_CHANNEL,
    NVIDIA_MAJOR,
    PAGES_DIR,
    POLICY_PAGE,
    PRIVATE,
    REAL_LIBCUDA,
    REAL_LIBNVML,
    SHARE_DIR,
    SHARE_STATE,
    SHIM_DIR,
    SIM_GPUS,
    SLOT_FILE,
    slot_file,
)
from oci_hook.core.value import Value
from oci_hook.core.value_parsers import WITH_A_SHARE

DATA = ("ro", "nosuid", "nodev", "noexec")
OWN = ("rw", "nosuid", "nodev", "noexec")
LIBRARY = ("ro", "nosuid", "nodev")


class Bind(Value):
    """A bind mount. source: host path. destination: path in the container. options: mount flags beside "bind"."""

    source: str
    destination: str
    options: tuple[str, ...] = LIBRARY

    def describe(self) -> str:
        return f"bind {self.source} -> {self.destination} ({','.join(self.options)})"


class Tmpfs(Value):
    """A tmpfs that only this container has. size: bytes. inodes: the most files. mode: of its root directory."""

    destination: str
    size: int
    inodes: int
    mode: int

    def describe(self) -> str:
        return f"tmpfs {self.destination} (size {self.size}, {self.inodes} inodes, mode {self.mode:04o})"


class DeviceNode(Value):
    """A character device node that the container must have, mode 0666, owner root."""

    path: str
    major: int
    minor: int

    def describe(self) -> str:
        return f"node {self.path} (c {self.major}:{self.minor})"


class DeviceRule(Value):
    """A device cgroup rule: this character device may be opened. access: subset of "rwm"."""

    major: int
    minor: int
    access: str = "rw"

    def describe(self) -> str:
        return f"allow c {self.major}:{self.minor} {self.access}"


class EnvVar(Value):
    """A variable in the environment of the container's process; value None removes it."""

    name: str
    value: str | None

    def describe(self) -> str:
        return f"env {self.name}={self.value}" if self.value is not None else f"env -{self.name}"


Step = Bind | Tmpfs | DeviceNode | DeviceRule | EnvVar


SMI, SMI_PLACE = "nvidia-smi", "/usr/local/nvidia/bin"


class ImageFacts(Value):
    """Facts of the image that the plan needs. libdir: where its loader looks for 64-bit libraries.

    cover_cuda, cover_nvml: the paths of all copies of these libraries in the image; ours is mounted over each.
    cover_other: other libraries of a different driver (a cuda-compat package), which must not be loaded with this one.
    c_library: "glibc"; "musl" if the image has only that; "" if it has none in the usual places.
    smi_too: the container's PATH has SMI_PLACE, as in NVIDIA's images, or its command has nvidia-smi there, as in pods written for
    gpu-manager; and nvidia-smi can be mounted there as well.
    """

    libdir: str
    cover_cuda: tuple[str, ...] = ()
    cover_nvml: tuple[str, ...] = ()
    cover_other: tuple[str, ...] = ()
    c_library: str = "glibc"
    smi_too: bool = False


def make_plan(grant: Grant, inventory: Inventory, image: ImageFacts, prefix: str, state_dir: str) -> tuple[Step, ...]:
    """All changes, in the order in which they must be made. The shims come last, because they are mounted over other files.

    A container with a whole GPU gets the shims as well, with a page that limits nothing, so that accounting, what
    NVML shows and a later `gpu-hook set` are the same for every container.
    """
    gpus = [inventory.gpu(share.uuid) for share in grant.shares]
    steps: list[Step] = [
        Bind(f"{prefix}/{CONTAINER_DIR}", PRIVATE, DATA),
        Bind(inventory.libcuda, REAL_LIBCUDA),
        Bind(inventory.libnvml, REAL_LIBNVML),
        Bind(f"{state_dir}/{PAGES_DIR}/{grant.key}/policy", POLICY_PAGE, DATA),
        Tmpfs(ACCOUNT_DIR, 1 << 20, 16, 0o1777),
        *_sharing(grant, state_dir),
    ]
    steps += _driver_files(grant, inventory, image)
    nodes = device_nodes(grant, inventory)
    steps += nodes
    steps += [DeviceRule(node.major, node.minor) for node in nodes]
    steps += [Bind(gpu.file, f"{SIM_GPUS}/{gpu.file.rpartition('/')[2]}", OWN) for gpu in gpus if gpu.file]
    steps += _environment(grant, inventory, image.libdir)
    steps += _shim("libcuda", inventory, image.libdir, image.cover_cuda, prefix)
    steps += _shim("libnvidia-ml", inventory, image.libdir, image.cover_nvml, prefix)
    return tuple(steps)


def device_nodes(grant: Grant, inventory: Inventory) -> list[DeviceNode]:
    """Every device node that this grant gives."""
    if not grant.shares:
        return []
    minors = dict.fromkeys(inventory.gpu(share.uuid).minor for share in grant.shares)  # MIG devices: once for their GPU
    nodes = [DeviceNode(f"/dev/nvidia{minor}", NVIDIA_MAJOR, minor) for minor in minors]
    nodes += [DeviceNode(file.path, file.major, file.minor) for file in inventory.control]
    return nodes + _nodes_of_gpus(grant, inventory)


def _sharing(grant: Grant, state_dir: str) -> list[Step]:
    """For each time-shared GPU: the slot files of all its containers, read-only, and the container's own one, to write."""
    steps: list[Step] = []
    for i, share in enumerate(grant.shares):
        if share.slot:
            gpu = f"{state_dir}/{SHARE_STATE}/{share.uuid}"
            steps.append(Bind(gpu, f"{SHARE_DIR}/{i}", DATA))
            steps.append(Bind(f"{gpu}/{slot_file(share.slot)}", f"{SLOT_FILE}/{i}", OWN))
    return steps


def _offered(grant: Grant) -> set[str]:
    """The capabilities whose driver files this grant gets. Files that bypass the shims are only for whole GPUs."""
    names = {*grant.terms.capabilities, *(("graphics",) if "display" in grant.terms.capabilities else ())}
    if all(share.whole for share in grant.shares):
        return names | {name + WHOLE for name in names}
    return names & set(WITH_A_SHARE)


def _nodes_of_gpus(grant: Grant, inventory: Inventory) -> list[DeviceNode]:
    offered = _offered(grant)
    gpus = ("", *(share.uuid for share in grant.shares))
    found = [
        DeviceNode(node.path, node.major, node.minor)
        for node in inventory.nodes
        if node.uuid in gpus and (node.capability == MIG or node.capability + WHOLE in offered)
    ]
    if grant.terms.imex_channels and all(share.whole for share in grant.shares):
        found += [DeviceNode(f"{IMEX_CHANNEL}{n}", inventory.imex_major, n) for n in grant.terms.imex_channels]
    return list(dict.fromkeys(found))  # MIG devices of one GPU instance have its node in common


def _driver_files(grant: Grant, inventory: Inventory, image: ImageFacts) -> list[Step]:
    steps: list[Step] = []
    governed = (inventory.libcuda, inventory.libnvml)  # mounted at private paths
    offered = _offered(grant)
    for file in inventory.files:
        if file.capability not in offered or file.path in governed:
            continue
        if file.kind == "library":
            steps += [Bind(file.path, name if name[0] == "/" else f"{image.libdir}/{name}") for name in file.names]
            stems = {_stem(name) for name in file.names}
            steps += [Bind(file.path, path) for path in image.cover_other if _stem(path) in stems]
        elif file.kind == "binary":
            name = file.path.rpartition("/")[2]
            steps.append(Bind(file.path, f"/usr/bin/{name}"))
            if name == SMI and image.smi_too:
                steps.append(Bind(file.path, f"{SMI_PLACE}/{name}"))
        elif file.kind == "data":
            steps += [Bind(file.path, path, DATA) for path in file.names]
        elif file.kind in ("firmware", "socket"):
            steps.append(Bind(file.path, _in_root(file.path, inventory.driver_root), DATA))
    return list(dict.fromkeys(steps))  # a file may serve several capabilities


def _stem(path: str) -> str:
    """/a/libnvidia-nvvm.so.4 -> libnvidia-nvvm"""
    return path.rpartition("/")[2].partition(".so")[0]


def _in_root(path: str, root: str) -> str:
    """The path of a driver file relative to the driver root, with a leading slash."""
    root = root.rstrip("/")
    return path[len(root) :] if path.startswith(root + "/") else path


def _environment(grant: Grant, inventory: Inventory, libdir: str) -> list[Step]:
    found = {**dict.fromkeys(ENV_SET), **variables(grant, inventory), "TRITON_LIBCUDA_PATH": libdir}
    return [EnvVar(name, value) for name, value in found.items()]  # what has no value is removed


def variables(grant: Grant, inventory: Inventory) -> dict[str, str]:
    """Those that tell people and programs what the container was given; the shim never reads them."""

    def per_gpu(values: list[int]) -> str:
        return str(values[0]) if len(set(values)) == 1 else ",".join(map(str, values))

    shares = grant.shares
    values: dict[str, str] = {}
    values["NVIDIA_VISIBLE_DEVICES"] = _visible(grant, inventory) or "none"
    values["NVIDIA_DRIVER_CAPABILITIES"] = ",".join(grant.terms.capabilities)
    if grant.terms.imex_channels:
        values["NVIDIA_IMEX_CHANNELS"] = ",".join(map(str, grant.terms.imex_channels))
    if shares:
        # The inverse of how a percentage becomes MiB (rounded down): a container that asked for 30 % reads 30.
        percent = [((share.memory_mib + 1) * 100 - 1) // inventory.gpu(share.uuid).memory_mib for share in shares]
        memory = [share.memory_mib for share in shares]
        values["T9K_GPU_PERCENT"] = per_gpu(percent)
        values["T9K_GPU_MEMORY"] = per_gpu(memory)
        values["GPU_HOOK_MEMORY_MIB"] = per_gpu(memory)
        values["GPU_HOOK_COMPUTE"] = per_gpu([share.compute for share in shares])
        values["GPU_HOOK_POLICY"] = grant.terms.policy
        values["GPU_HOOK_CLASS"] = grant.terms.priority_class
    return values


def _visible(grant: Grant, inventory: Inventory) -> str:
    """The names of the GPUs, in the form that the container asked in."""
    form = grant.terms.visible
    if form == "all" and len(grant.shares) == len(inventory.gpus):
        return form
    names = (inventory.gpu(s.uuid).address if form == "index" else s.uuid for s in grant.shares)
    return ",".join(names)


def _shim(library: str, inventory: Inventory, libdir: str, cover: tuple[str, ...], prefix: str) -> list[Step]:
    source = f"{prefix}/{SHIM_DIR}/{library}.so.1"
    names = (f"{library}.so.1", f"{library}.so", f"{library}.so.{inventory.driver_version}")
    return [Bind(source, path) for path in dict.fromkeys([f"{libdir}/{name}" for name in names] + list(cover))]
