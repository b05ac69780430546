"""Discovery: simulated and real-looking driver roots, NVML's answers and failures, the kernel's view in /proc."""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_hook_simulator import driver_root
from oci_hook.config.settings import Settings
from oci_hook.core import layout
from oci_hook.core.inventory import DeviceFile, Gpu, GpuNode
from oci_hook.discovery import blocks, contexts, discover, nvml_gpus
from oci_hook.discovery.mark import MARK
from oci_hook.discovery.save import save_inventory
from oci_hook.errors import NodeError
from oci_hook.ledger import inventory
from testbed.compiled import ZIG

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs)\nGCC version: 12.3.0"
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr  8 12:41:17 UTC 2025\nGCC version:  gcc 12.2.0"
)
INFORMATION = """Model: 		 NVIDIA H200
IRQ:   		 {irq}
GPU UUID: 	 {uuid}
Video BIOS: 	 96.00.a0.00.01
Bus Type: 	 PCIe
DMA Size: 	 52 bits
DMA Mask: 	 0xfffffffffffff
Bus Location: 	 {pci}
Device Minor: 	 {minor}
GPU Firmware: 	 {version}
GPU Excluded:	 No
"""


FILLS = """
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1]); context, p, step = ctypes.c_void_p(), ctypes.c_uint64(), 256 << 20
assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not cuda.cuCtxSetCurrent(context)
while step >= 1 << 20:
    if cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(step)):
        step >>= 1
print("full", flush=True); sys.stdin.read()
"""


class Node:
    """A machine of which this process can invent /proc; its GPUs are simulated ones."""

    def __init__(self, place: Path, simulated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = driver_root.make(str(place / "prefix"), str(place / "state"), 2, 1024)
        self.gpus = driver_root.gpus_of(str(place / "state"))
        self.libraries = next(self.root.glob("usr/lib/*"))
        self.proc = place / "proc"
        self.proc.mkdir()
        self.monkeypatch = monkeypatch

    def look_real(self) -> None:
        """Take the mark away: now it is a driver root like any other, whose libraries happen to be ours."""
        (self.root / MARK).unlink()
        self.monkeypatch.setenv("GPU_HOOK_SIM_GPUS", str(self.gpus))
        self.kernel(driver_root.VERSION)
        (self.proc / "devices").write_text(
            "Character devices:\n  1 mem\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n  7 loop\n"
        )

    def kernel(self, version: str) -> None:
        (self.proc / "driver/nvidia").mkdir(parents=True, exist_ok=True)
        (self.proc / "driver/nvidia/version").write_text(CLOSED.replace("550.163.01", version))

    def uuids(self) -> list[str]:
        return [(self.gpus / str(i)).read_bytes()[16:64].rstrip(b"\0").decode() for i in range(2)]

    def discover(self, seconds: float = 30.0) -> "discover.Inventory":
        return discover.discover(str(self.root), str(self.proc), seconds)

    def refused(self, code: str, seconds: float = 30.0) -> str:
        with pytest.raises(NodeError) as e:
            self.discover(seconds)
        assert [p.code for p in e.value.problems] == [code], str(e.value)
        return str(e.value)

    def nvml(self, source: str) -> None:
        """Replace libnvidia-ml by this C source."""
        file = self.root.parent / "nvml.c"
        file.write_text(source)
        cc = [*ZIG, "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
        target = self.libraries / f"libnvidia-ml.so.{driver_root.VERSION}"
        subprocess.run([*cc, "-o", str(target), str(file)], check=True)


@pytest.fixture
def node(tmp_path: Path, simulated: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.delenv("GPU_HOOK_SIM_GPUS", raising=False)
    return Node(tmp_path, simulated, monkeypatch)


def test_simulated_root(node: Node) -> None:
    said = node.discover()
    assert said.simulated and said.driver_version == driver_root.VERSION
    assert [c.uuid for c in said.gpus] == node.uuids()
    assert [(c.index, c.minor, c.memory_mib, c.simulated, c.context_mib) for c in said.gpus] == [
        (0, 0, 1024, True, 64),
        (1, 1, 1024, True, 64),
    ]
    assert said.libcuda == f"{node.libraries}/libcuda.so.{driver_root.VERSION}"
    assert said.libnvml == f"{node.libraries}/libnvidia-ml.so.{driver_root.VERSION}"
    assert said.control == (DeviceFile("/dev/nvidiactl", 195, 255),)
    assert said.links == ((node.uuids()[0], node.uuids()[1], 40),)
    assert said.stamp == tuple(inventory.stamp(mark[0]) for mark in said.stamp)


def test_a_new_simulated_driver_makes_the_inventory_stale(node: Node) -> None:
    before = node.discover()
    driver_root.make(str(node.root.parent.parent), str(node.gpus.parent.parent), 2, 1024)
    assert any(inventory.stamp(mark[0]) != mark for mark in before.stamp)


def test_simulated_gpus_are_gone(node: Node) -> None:
    shutil.rmtree(node.gpus)
    assert "Driver Not Loaded" in node.refused("GH-306")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"environment": {}}', '{"environment": [], "files": {}}', '"x"'])
def test_damaged_mark(node: Node, text: str) -> None:
    (node.root / MARK).write_text(text)
    node.refused("GH-306")


def test_the_mark_says_what_containers_and_programs_need(node: Node) -> None:
    mark = json.loads((node.root / MARK).read_text())
    mark["files"][node.uuids()[0]] = "/elsewhere/file"
    mark["time_scale"] = 3
    (node.root / MARK).write_text(json.dumps(mark))
    one, other = node.discover().gpus
    assert (one.file, one.time_scale) == ("/elsewhere/file", 3)
    assert other.file == str(node.gpus / "1")
    del mark["time_scale"]
    (node.root / MARK).write_text(json.dumps(mark))
    assert [gpu.time_scale for gpu in node.discover().gpus] == [1, 1]
    assert discover.environment(str(node.root))[0]["GPU_HOOK_SIM_GPUS"] == str(node.gpus)
    node.look_real()
    assert discover.environment(str(node.root))[1] is None


def test_real_looking_node(node: Node) -> None:
    node.look_real()
    said = node.discover()
    assert not said.simulated and [c.simulated for c in said.gpus] == [False, False]
    assert said.control == (
        DeviceFile("/dev/nvidiactl", 195, 255),
        DeviceFile("/dev/nvidia-uvm", 511, 0),
        DeviceFile("/dev/nvidia-uvm-tools", 511, 1),
    )
    assert said.stamp[-1][0] == f"{node.proc}/driver/nvidia/version"


def test_visible_devices_of_the_caller_do_not_narrow_the_node(node: Node) -> None:
    node.monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [c.context_mib for c in node.discover().gpus] == [64, 64]


def test_a_gpu_without_room_for_a_context_is_still_a_gpu(node: Node) -> None:
    libcuda = node.libraries / f"libcuda.so.{driver_root.VERSION}"
    own = {"GPU_HOOK_SIM_GPUS": str(node.gpus), "CUDA_VISIBLE_DEVICES": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", FILLS, str(libcuda)], env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as neighbour:
        assert neighbour.stdout and neighbour.stdin and neighbour.stdout.readline() == b"full\n"
        assert [c.context_mib for c in node.discover().gpus] == [64, 64], "the figure of another GPU of its model"
        neighbour.stdin.close()


def test_the_blocks_in_which_memory_is_taken(node: Node) -> None:
    """By trying: GPU 1 takes blocks of 2 MiB; then GPU 0 does not say, as it is full."""
    assert [gpu.block_bytes for gpu in node.discover().gpus] == [512, 512]
    with open(node.gpus / "1", "r+b") as f:
        f.seek(driver_root.BLOCK_BYTES_AT)
        f.write(struct.pack("<I", 2 << 20))
    assert [gpu.block_bytes for gpu in node.discover().gpus] == [512, 2 << 20]


@pytest.mark.parametrize(
    ("taken", "block"),
    [
        (17 * ((1 << 20) + 512), 512),
        (17 * 17 << 16, 64 << 10),
        (17 * 2 << 20, 2 << 20),
        (18 << 20, 0),
        (32 << 20, 0),
        (0, 0),
        (-512, 0),
    ],
)
def test_the_block_by_what_seventeen_pieces_take(taken: int, block: int) -> None:
    assert blocks.of_pieces(taken, 17) == block


def test_a_gpu_whose_blocks_nobody_measured() -> None:
    gpus = tuple(Gpu(name, i, i, 1000) for i, name in enumerate("abc"))
    assert [gpu.block_bytes for gpu in blocks.with_blocks(gpus, {"a": 512, "b": 0})] == [512, 512, 512]
    assert [gpu.block_bytes for gpu in blocks.with_blocks(gpus, {})] == [2 << 20] * 3


@pytest.mark.root
def test_contexts_by_difference(node: Node) -> None:
    """NVML knows no process: in another PID namespace its numbers are not ours."""
    command = ["unshare", "--pid", "--fork", sys.executable, "-m", "oci_hook.discovery.context_memory"]
    own = {**os.environ, "GPU_HOOK_SIM_GPUS": str(node.gpus), "LD_PRELOAD": str(node.libraries / "libnvidia-ml.so.1")}
    done = subprocess.run([*command, str(node.libraries / "libcuda.so.1")], env=own, capture_output=True, text=True)
    figures = {"context": dict.fromkeys(node.uuids(), 64 << 20), "block": dict.fromkeys(node.uuids(), 512)}
    assert json.loads(done.stdout) == figures, done


def test_a_context_is_never_taken_for_nothing() -> None:
    """Measured; else as on another GPU of the model, or for a MIG device of its kind; else estimated."""
    gpus = (
        Gpu("GPU-a", 0, 0, 81920, "H100"),
        Gpu("GPU-b", 1, 1, 81920, "H100"),
        Gpu("GPU-c", 2, 2, 15360, "T4"),
        Gpu("MIG-a", 3, 3, 9984, "H100 MIG 1g.10gb", parent="GPU-d", instance=0),
        Gpu("MIG-b", 3, 3, 9984, "H100 MIG 1g.10gb", parent="GPU-d", instance=1),
        Gpu("MIG-c", 3, 3, 19968, "H100 MIG 2g.20gb", parent="GPU-d", instance=2),
        Gpu("MIG-d", 4, 4, 4864, "A100 MIG 1g.5gb", parent="GPU-e", instance=0),
    )
    assert contexts.asked_alone(gpus, {}) == ["MIG-b", "MIG-c", "MIG-d"], "one of each kind on each GPU"
    assert contexts.asked_alone(gpus, {"MIG-a": 3, "MIG-b": 3}) == ["MIG-c", "MIG-d"]
    known = {"GPU-a": 520, "MIG-b": 180}
    said = contexts.figures(gpus, known)
    guess = contexts.ESTIMATE_MIB
    assert list(said.values()) == [520, 520, guess, 180, 180, 520, guess] and 100 <= guess <= 512
    assert set(contexts.figures(gpus, {"GPU-a": 0}).values()) == {guess}, "NVML did not show the context"
    assert set(contexts.figures(gpus, {}, 0).values()) == {0}


def test_contexts_of_mig_devices(tmp_path: Path, simulated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_hook_simulator import mig

    node = Node(tmp_path, simulated, monkeypatch)
    made = (str(node.root.parent.parent), str(node.gpus.parent.parent), 1, 8192)
    driver_root.make(*made, mig=mig.profiles("3g.4gb,1g.1gb,1g.1gb", 8192))
    assert [(c.parent != "", c.context_mib) for c in node.discover().gpus] == [(True, 64)] * 3


def test_mig_devices_are_measured_one_by_one(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on real GPUs, where a program sees only the MIG device that CUDA_VISIBLE_DEVICES names."""
    asked = []

    def ask(command: list[str], environment: dict[str, str], seconds: float) -> dict[str, object]:
        asked.append(environment.get("CUDA_VISIBLE_DEVICES"))
        return {"context": {asked[-1]: 100 << 20} if asked[-1] else {}} if len(asked) < 3 else {"error": "hangs"}

    monkeypatch.setattr(discover, "ask", ask)
    parts = tuple(Gpu(f"MIG-{i}", 0, 0, 1000 * i, f"X MIG {i}", parent="GPU-x", instance=i) for i in range(1, 5))
    assert discover.measure("cuda", "ml", {}, 1.0, parts)[0] == {"MIG-1": 100}
    assert asked == [None, "MIG-1", "MIG-2"]


def test_contexts_of_a_driver_that_hangs_are_not_known(node: Node) -> None:
    assert discover.measure("/nowhere/libcuda.so", "", dict(os.environ), 30.0) == ({}, {})
    said = node.discover()
    assert discover.measure(said.libcuda, said.libnvml, dict(os.environ), 0.01) == ({}, {})


def test_driver_is_not_loaded(node: Node) -> None:
    node.look_real()
    shutil.rmtree(node.proc / "driver")
    assert "no NVIDIA kernel driver is loaded" in node.refused("GH-302")


def test_files_of_another_version_than_the_loaded_driver(node: Node) -> None:
    node.look_real()
    node.kernel("535.1")
    assert "the loaded driver is 535.1" in node.refused("GH-302")


def test_nvml_of_another_version_than_its_file(node: Node) -> None:
    node.look_real()
    node.kernel("550.0.9")
    for name in ("libcuda.so", "libnvidia-ml.so"):
        (node.libraries / f"{name}.{driver_root.VERSION}").rename(node.libraries / f"{name}.550.0.9")
    assert "NVML reports driver 550.0.0" in node.refused("GH-302")


def with_proc(node: Node, uuids: list[str]) -> None:
    node.look_real()
    for minor, uuid in enumerate(uuids):
        folder = node.proc / f"driver/nvidia/gpus/0000:{0x51 + minor:02x}:00.0"
        folder.mkdir(parents=True)
        values = {"irq": 40 + minor, "uuid": uuid, "pci": folder.name, "minor": minor, "version": driver_root.VERSION}
        (folder / "information").write_text(INFORMATION.format(**values))


HANGS = "#include <unistd.h>\nint nvmlInitWithFlags(unsigned flags) { for (;;) pause(); return flags; }\n"
CRASHES = "#include <stdlib.h>\nint nvmlInitWithFlags(unsigned flags) { abort(); return flags; }\n"
REFUSES = (
    "int nvmlInitWithFlags(unsigned flags) { return 999 + 0 * flags; }\n"
    'const char *nvmlErrorString(int e) { return "Unknown Error"; }\n'
)


@pytest.mark.parametrize(
    ("source", "word"),
    [(HANGS, "no answer within 2 s"), (CRASHES, "no answer (exit status -6)"), (REFUSES, "Unknown Error")],
    ids=["hangs", "crashes", "refuses"],
)
def test_without_nvml_the_gpus_come_from_proc_and_their_memory_from_libcuda(node: Node, source: str, word: str) -> None:
    with_proc(node, node.uuids())
    node.nvml(source)
    said = node.discover(seconds=2.0)
    assert [(c.uuid, c.index, c.minor, c.memory_mib, c.name) for c in said.gpus] == [
        (uuid, i, i, 1024, "NVIDIA H200") for i, uuid in enumerate(node.uuids())
    ]
    why = discover.ask_nvml(said.libnvml, dict(os.environ), 2.0)["error"]
    assert why.startswith(word)
    assert [c.pci for c in said.gpus] == ["0000:51:00.0", "0000:52:00.0"]


def test_neither_answers(node: Node) -> None:
    with_proc(node, node.uuids())
    node.nvml(REFUSES)
    node.monkeypatch.setenv("GPU_HOOK_SIM_GPUS", "/nowhere")
    said = node.refused("GH-302")
    assert "Unknown Error" in said and "CUDA error 100" in said


def test_version_mismatch_says_what_to_do(node: Node) -> None:
    with_proc(node, node.uuids())
    node.nvml(REFUSES.replace("999", "18"))  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
    assert "reboot" in node.refused("GH-302")


def test_no_gpus(node: Node) -> None:
    node.look_real()
    node.nvml(REFUSES)
    assert "lists no GPU" in node.refused("GH-301")


@pytest.mark.parametrize(("text", "version"), [(OPEN, "580.95.05"), (CLOSED, "550.163.01"), ("nonsense", ""), ("", "")])
def test_kernel_version(tmp_path: Path, text: str, version: str) -> None:
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text(text)
    assert discover.kernel_version(str(tmp_path)) == version


def test_a_driver_is_loaded_where_module_and_files_are_of_one_version(node: Node) -> None:
    """And nobody asks it."""
    node.nvml("int nvmlInit_v2(void) { __builtin_trap(); }")

    def loaded() -> bool:
        return discover.is_loaded(str(node.root), str(node.proc))

    assert loaded(), "a simulated one has no module"
    node.look_real()
    assert loaded()
    node.kernel("999.1")
    assert not loaded()
    (node.proc / "driver/nvidia/version").unlink()
    assert not loaded()
    node.kernel(driver_root.VERSION)
    shutil.move(node.libraries, node.root / "away")
    assert not loaded()


def test_a_driver_in_an_installers_place(node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the setting /: not found, found once it is there, gone with its container, found in another place, said each time."""
    node.look_real()
    monkeypatch.setattr(layout, "DRIVER_ROOTS", (str(tmp_path / "none"), str(tmp_path / "late"), str(node.root)))
    monkeypatch.setattr(inventory, "DRIVER_ROOTS", layout.DRIVER_ROOTS)
    settings = Settings(str(tmp_path / "prefix"), driver_root="/", state_dir=str(tmp_path / "state"))
    node.root.rename(tmp_path / "away")
    with pytest.raises(NodeError, match="GH-302: no libcuda"):
        discover.discover("/", str(node.proc))
    assert not discover.is_loaded("/", str(node.proc))
    (tmp_path / "away").rename(node.root)
    found = discover.discover("/", str(node.proc))
    assert found.driver_root == str(node.root) and {file.path[: len(str(node.root))] for file in found.files} == {
        str(node.root)
    }
    save_inventory(settings, found)
    assert inventory.load(settings).driver_root == str(node.root) and discover.is_loaded("/", str(node.proc))
    node.root.rename(tmp_path / "late")
    with pytest.raises(NodeError, match="GH-302: .* is gone"):
        inventory.load(settings)
    save_inventory(settings, discover.discover("/", str(node.proc)))
    assert inventory.load(settings).driver_root == str(tmp_path / "late")
    (tmp_path / "late").chmod(0o777)  # who can change it could give containers a library
    with pytest.raises(NodeError, match="GH-302: no libcuda"):
        discover.discover("/", str(node.proc))
    (tmp_path / "late").chmod(0o755)
    node.kernel("1.2.3")  # the files of a driver that was replaced are left alone
    with pytest.raises(NodeError, match="GH-302"):
        discover.discover("/", str(node.proc))


def test_kernel_version_without_a_driver(tmp_path: Path) -> None:
    assert discover.kernel_version(str(tmp_path)) == ""


def test_nodes_of_whole_gpus(tmp_path: Path) -> None:
    """As the kernel lists them: a GPU's own in its PCI folder, other makers' and half-gone ones left out."""
    pci = tmp_path / "bus/pci/devices"
    for name, dev in (("0000:3b:00.0/drm/card1", "226:1"), ("0000:3b:00.0/drm/renderD129", "226:129\n")):
        (pci / name).mkdir(parents=True)
        (pci / name / "dev").write_text(dev)
    (pci / "0000:3b:00.0/drm/controlD65").mkdir()
    (pci / "0000:5e:00.0/drm/card2").mkdir(parents=True)  # no numbers any more
    (pci / "0000:00:02.0/drm/card0").mkdir(parents=True)
    (pci / "0000:00:02.0/drm/card0/dev").write_text("226:0")
    gpus = (
        Gpu("GPU-0", 0, 0, 1, pci="00000000:3B:00.0"),
        Gpu("GPU-1", 1, 1, 1, pci="00000000:5E:00.0"),
        Gpu("GPU-2", 2, 2, 1),
    )
    dri = (
        GpuNode("GPU-0", "graphics", "/dev/dri/card1", 226, 1),
        GpuNode("GPU-0", "graphics", "/dev/dri/renderD129", 226, 129),
    )
    assert discover.nodes_of_whole_gpus(gpus, str(tmp_path)) == dri
    (tmp_path / "module/nvidia_modeset").mkdir(parents=True)
    modeset = GpuNode("", "display", "/dev/nvidia-modeset", 195, 254)
    assert discover.nodes_of_whole_gpus(gpus, str(tmp_path)) == (modeset, *dri)


@pytest.mark.gpu
@pytest.mark.root
def test_nodes_of_gpudirect_storage(tmp_path: Path) -> None:
    for name, kind, device in (("nvidia-fs0", 0o020600, (509, 0)), ("nvidia-fs15", 0o020600, (509, 15))):
        os.mknod(tmp_path / name, kind, os.makedev(*device))
    (tmp_path / "nvidia-fs1").write_text("a file")
    (tmp_path / "nvidia-fs2").symlink_to("/dev/null")
    os.mknod(tmp_path / "nvidia-nvswitch0", 0o020600, os.makedev(510, 0))
    found = discover.nodes_of_whole_gpus((), str(tmp_path), str(tmp_path))
    assert found == (
        GpuNode("", "compute", "/dev/nvidia-fs0", 509, 0),
        GpuNode("", "compute", "/dev/nvidia-fs15", 509, 15),
    )


def test_nodes_of_mig_devices(tmp_path: Path) -> None:
    """By the ids of their instances; of two compute instances in one GPU instance, the first node is shared."""
    top = tmp_path / "driver/nvidia/capabilities/gpu2/mig/gi3"
    for folder, minor in ((top, 30), (top / "ci0", 31), (top / "ci1", 32)):
        folder.mkdir(parents=True)
        (folder / "access").write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    devices = tmp_path / "devices"
    devices.write_text(
        "Character devices:\n195 nvidia\n237 nvidia-caps-imex-channels\n238 nvidia-caps\n\nBlock devices:\n9 x\n"
    )
    gpus = tuple(Gpu(f"MIG-{i}", 0, 2, 1024, parent="GPU-1", instance=i) for i in range(2))
    instances = {"MIG-0": (3, 0), "MIG-1": (3, 1)}
    assert discover.dynamic_major("nvidia-caps-imex-channels", str(tmp_path)) == 237
    found = discover.nodes_of_mig((*gpus, Gpu("GPU-2", 1, 1, 1024)), instances, str(tmp_path))
    assert [(n.uuid, n.path, n.major, n.minor) for n in found] == [
        ("MIG-0", "/dev/nvidia-caps/nvidia-cap30", 238, 30),
        ("MIG-0", "/dev/nvidia-caps/nvidia-cap31", 238, 31),
        ("MIG-1", "/dev/nvidia-caps/nvidia-cap30", 238, 30),
        ("MIG-1", "/dev/nvidia-caps/nvidia-cap32", 238, 32),
    ]
    devices.write_text("Character devices:\n195 nvidia\n")
    with pytest.raises(NodeError, match="GH-302: .*nvidia-caps"):
        discover.nodes_of_mig(gpus, instances, str(tmp_path))
    (top / "ci1/access").write_text("DeviceFileMinor: x\n")
    devices.write_text("Character devices:\n238 nvidia-caps\n")
    with pytest.raises(NodeError, match="GH-302: .*ci1/access"):
        discover.nodes_of_mig(gpus, instances, str(tmp_path))


def test_this_machines_driver() -> None:
    if not os.path.exists("/proc/driver/nvidia/version"):
        pytest.skip("no NVIDIA driver here")
    said = discover.discover("/")
    assert said.gpus and all(c.uuid.startswith("GPU-") and c.memory_mib > 0 for c in said.gpus)
    assert all(os.path.exists(f.path) for f in said.files)


@pytest.mark.parametrize(
    ("modes", "on"),
    [([1, 1], True), ([1, 0], False), ([], False), ([None], False), ([None, 1], True), ([None, 0], False)],
)
def test_persistence_is_the_mode_of_every_gpu_that_answers(
    modes: list[int | None], on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: it has fallen off the bus, or has no such mode."""

    def mode(index: int) -> int:
        if (said := modes[index]) is None:
            raise nvml_gpus.pynvml.NVMLError(nvml_gpus.pynvml.NVML_ERROR_NOT_SUPPORTED)
        return said

    monkeypatch.setattr(nvml_gpus.pynvml, "nvmlDeviceGetCount", lambda: len(modes))
    monkeypatch.setattr(nvml_gpus.pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(nvml_gpus.pynvml, "nvmlDeviceGetPersistenceMode", mode)
    assert nvml_gpus.persistence() is on
