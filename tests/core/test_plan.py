"""The plan: what a grant becomes, in which order."""

from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import WHOLE, DeviceFile, DriverFile, Gpu, GpuNode, Inventory
from oci_hook.core.layout import ACCOUNT_DIR, ENV_SET, POLICY_PAGE, PRIVATE, REAL_LIBCUDA, REAL_LIBNVML
from oci_hook.core.plan import Bind, DeviceNode, DeviceRule, EnvVar, ImageFacts, Step, Tmpfs, make_plan
from tests.terms import changed

LIB = "/drv/usr/lib"
IMAGE = ImageFacts("/usr/lib64", ("/usr/local/cuda/compat/libcuda.so.1",), ("/usr/lib/libnvidia-ml.so.1",))


def inventory(simulated: bool = False) -> Inventory:
    return Inventory(
        boot_id="b",
        driver_version="550.1",
        driver_root="/drv",
        simulated=simulated,
        gpus=tuple(
            Gpu(f"GPU-{i}", i, i + 3, 1000, simulated=simulated, file=f"/run/g/sim/gpus/{i + 3}" if simulated else "")
            for i in range(3)
        ),
        control=(DeviceFile("/dev/nvidiactl", 195, 255), DeviceFile("/dev/nvidia-uvm", 510, 0)),
        files=(
            DriverFile(f"{LIB}/libcuda.so.550.1", "library", "compute", ("libcuda.so.550.1", "libcuda.so.1")),
            DriverFile(
                f"{LIB}/libnvidia-ptxjitcompiler.so.550.1", "library", "compute", ("libp.so.550.1", "libp.so.1")
            ),
            DriverFile(f"{LIB}/libnvidia-cfg.so.550.1", "library", "utility", ("libnvidia-cfg.so.1",)),
            DriverFile(f"{LIB}/libnvidia-encode.so.550.1", "library", "video", ("libnvidia-encode.so.1",)),
            DriverFile("/drv/usr/bin/nvidia-smi", "binary", "utility"),
            DriverFile("/drv/lib/firmware/nvidia/550.1/gsp.bin", "firmware", "compute"),
            DriverFile("/run/nvidia-persistenced/socket", "socket", "utility"),
            DriverFile("/proc/driver/nvidia/params", "proc", "compute"),
        ),
        libcuda=f"{LIB}/libcuda.so.550.1",
        libnvml=f"{LIB}/libnvidia-ml.so.550.1",
    )


def grant(*shares: Share, **changes: object) -> Grant:
    value = Grant("k" * 32, Identity("/r", "id", "/b"), Life("b"), shares)
    return changed(value, **changes)


def plan(g: Grant, simulated: bool = False, image: ImageFacts = IMAGE) -> tuple[Step, ...]:
    return make_plan(g, inventory(simulated), image, "/opt/g", "/run/g")


def binds(steps: tuple[Step, ...]) -> dict[str, str]:
    return {s.destination: s.source for s in steps if isinstance(s, Bind)}


def env(steps: tuple[Step, ...]) -> dict[str, str | None]:
    return {s.name: s.value for s in steps if isinstance(s, EnvVar)}


SHARE = Share("GPU-1", 300, compute=30)


def test_private_directory() -> None:
    steps = plan(grant(SHARE))
    assert steps[0] == Bind("/opt/g/lib/private/container", PRIVATE, ("ro", "nosuid", "nodev", "noexec"))
    found = binds(steps)
    assert found[REAL_LIBCUDA] == f"{LIB}/libcuda.so.550.1"
    assert found[REAL_LIBNVML] == f"{LIB}/libnvidia-ml.so.550.1"
    assert found[POLICY_PAGE] == "/run/g/pages/" + "k" * 32 + "/policy"
    assert Tmpfs(ACCOUNT_DIR, 1 << 20, 16, 0o1777) in steps


def test_shims_are_the_last_binds_and_cover_every_copy() -> None:
    mounts = [s for s in plan(grant(SHARE)) if isinstance(s, (Bind, Tmpfs))]
    last = [(s.source, s.destination) for s in mounts if isinstance(s, Bind)][-8:]
    cuda, nvml = "/opt/g/lib/shim/libcuda.so.1", "/opt/g/lib/shim/libnvidia-ml.so.1"
    assert last == [
        (cuda, "/usr/lib64/libcuda.so.1"),
        (cuda, "/usr/lib64/libcuda.so"),
        (cuda, "/usr/lib64/libcuda.so.550.1"),
        (cuda, "/usr/local/cuda/compat/libcuda.so.1"),
        (nvml, "/usr/lib64/libnvidia-ml.so.1"),
        (nvml, "/usr/lib64/libnvidia-ml.so"),
        (nvml, "/usr/lib64/libnvidia-ml.so.550.1"),
        (nvml, "/usr/lib/libnvidia-ml.so.1"),
    ]
    copies = ImageFacts("/usr/lib64", ("/usr/lib64/libcuda.so.1", "/usr/lib64/libcuda.so.535"), ())
    destinations = [s.destination for s in plan(grant(SHARE), image=copies) if isinstance(s, Bind)]
    assert len(destinations) == len(set(destinations))


def test_the_real_libraries_have_no_other_name() -> None:
    found = binds(plan(grant(SHARE)))
    assert [d for d, s in found.items() if s == f"{LIB}/libcuda.so.550.1"] == [REAL_LIBCUDA]


def test_driver_files_by_capability() -> None:
    both = binds(plan(grant(SHARE)))
    assert (
        both["/usr/lib64/libp.so.1"] == both["/usr/lib64/libp.so.550.1"] == f"{LIB}/libnvidia-ptxjitcompiler.so.550.1"
    )
    assert both["/usr/bin/nvidia-smi"] == "/drv/usr/bin/nvidia-smi"
    assert both["/lib/firmware/nvidia/550.1/gsp.bin"] == "/drv/lib/firmware/nvidia/550.1/gsp.bin"
    assert "/run/nvidia-persistenced/socket" in both
    assert "/usr/lib64/libnvidia-encode.so.1" not in both
    assert "/proc/driver/nvidia/params" not in both
    compute = binds(plan(grant(SHARE, capabilities=("compute",))))
    assert "/usr/bin/nvidia-smi" not in compute and "/usr/lib64/libp.so.1" in compute


def test_nvidia_smi_in_nvidias_folder() -> None:
    here, there = "/usr/bin/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi"
    image = ImageFacts("/usr/lib64", smi_too=True)
    found = binds(plan(grant(SHARE), image=image))
    assert found[here] == found[there] == "/drv/usr/bin/nvidia-smi"
    assert there not in binds(plan(grant(SHARE)))
    assert there not in binds(plan(grant(SHARE, capabilities=("compute",)), image=image))


def test_nodes_and_rules() -> None:
    steps = plan(grant(SHARE, Share("GPU-2", 300)))
    nodes = [s for s in steps if isinstance(s, DeviceNode)]
    assert [n.path for n in nodes] == ["/dev/nvidia4", "/dev/nvidia5", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    rules = [s for s in steps if isinstance(s, DeviceRule)]
    assert [(r.major, r.minor) for r in rules] == [(n.major, n.minor) for n in nodes]
    assert {r.access for r in rules} == {"rw"}
    assert not any(d.startswith("/dev/nvidia-sim") for d in binds(steps))


def test_no_gpu_no_node() -> None:
    steps = plan(grant())
    assert not [s for s in steps if isinstance(s, (DeviceNode, DeviceRule))]
    assert env(steps)["NVIDIA_VISIBLE_DEVICES"] == "none"
    assert env(steps)["T9K_GPU_MEMORY"] is None
    assert "/usr/lib64/libcuda.so.1" in binds(steps)


def test_simulated_gpus() -> None:
    steps = plan(grant(SHARE), simulated=True)
    assert binds(steps)["/dev/nvidia-sim/4"] == "/run/g/sim/gpus/4"
    (gpu,) = [s for s in steps if isinstance(s, Bind) and s.destination.startswith("/dev/")]
    assert gpu.options == ("rw", "nosuid", "nodev", "noexec")


def test_environment() -> None:
    one = env(plan(grant(SHARE, policy="fixed-share", priority_class="online")))
    assert tuple(one) == ENV_SET
    assert one == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-1",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "NVIDIA_IMEX_CHANNELS": None,
        "T9K_GPU_PERCENT": "30",
        "T9K_GPU_MEMORY": "300",
        "GPU_HOOK_MEMORY_MIB": "300",
        "GPU_HOOK_COMPUTE": "30",
        "GPU_HOOK_POLICY": "fixed-share",
        "GPU_HOOK_CLASS": "online",
        "TRITON_LIBCUDA_PATH": "/usr/lib64",
    }
    equal = env(plan(grant(SHARE, Share("GPU-2", 300, compute=30))))
    assert equal["GPU_HOOK_MEMORY_MIB"] == "300"
    assert equal["NVIDIA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    unequal = env(plan(grant(SHARE, Share("GPU-2", 500))))
    assert (unequal["GPU_HOOK_MEMORY_MIB"], unequal["GPU_HOOK_COMPUTE"]) == ("300,500", "30,0")


def test_a_whole_gpu_has_the_shims_as_well() -> None:
    steps = plan(grant(Share("GPU-0", 1000, whole=True), exclusive=True))
    assert binds(steps)["/usr/lib64/libcuda.so.1"] == "/opt/g/lib/shim/libcuda.so.1"


def with_graphics() -> Inventory:
    node = inventory()
    files = (
        DriverFile(f"{LIB}/libGLX_nvidia.so.550.1", "library", "graphics", ("libGLX_nvidia.so.0",)),
        DriverFile(f"{LIB}/libnvidia-gpucomp.so.550.1", "library", "compute", ("libnvidia-gpucomp.so.550.1",)),
        DriverFile(f"{LIB}/libnvidia-gpucomp.so.550.1", "library", "graphics", ("libnvidia-gpucomp.so.550.1",)),
        DriverFile("/drv/etc/vulkan/icd.json", "data", "graphics", ("/etc/vulkan/icd.json",)),
        DriverFile(f"{LIB}/libnvidia-opencl.so.550.1", "library", "compute" + WHOLE, ("libnvidia-opencl.so.1",)),
        DriverFile(f"{LIB}/nvidia_drv.so", "library", "display", ("/usr/lib/xorg/nvidia_drv.so",)),
    )
    nodes = (
        GpuNode("GPU-0", "graphics", "/dev/dri/card1", 226, 1),
        GpuNode("GPU-1", "graphics", "/dev/dri/card2", 226, 2),
        GpuNode("", "display", "/dev/nvidia-modeset", 195, 254),
    )
    return node.replace(files=node.files + files, nodes=nodes)


def graphics_plan(capabilities: str, *shares: Share) -> tuple[dict[str, str], set[str]]:
    """(binds beside the usual, nodes beside the usual) of a container with these capabilities."""
    steps = make_plan(grant(*shares, capabilities=tuple(capabilities.split(","))), with_graphics(), IMAGE, "/p", "/s")
    usual = make_plan(grant(*shares), inventory(), IMAGE, "/p", "/s")
    assert len([s for s in steps if isinstance(s, Bind)]) == len(binds(steps))  # nothing twice
    more = {path: source for path, source in binds(steps).items() if path not in binds(usual)}
    nodes = {s.path for s in steps if isinstance(s, DeviceNode)} - {s.path for s in usual if isinstance(s, DeviceNode)}
    rules = {(s.major, s.minor) for s in steps if isinstance(s, DeviceRule)}
    assert all((s.major, s.minor) in rules for s in steps if isinstance(s, DeviceNode))
    return more, nodes


def test_what_whole_gpus_may_have() -> None:
    whole = Share("GPU-0", 1000, whole=True)
    gpucomp, opencl = "/usr/lib64/libnvidia-gpucomp.so.550.1", "/usr/lib64/libnvidia-opencl.so.1"
    more, nodes = graphics_plan("compute,utility", whole)
    assert (set(more), nodes) == ({gpucomp, opencl}, set())
    more, nodes = graphics_plan("compute,utility,graphics", whole)
    assert set(more) == {gpucomp, opencl, "/usr/lib64/libGLX_nvidia.so.0", "/etc/vulkan/icd.json"}
    assert more["/etc/vulkan/icd.json"] == "/drv/etc/vulkan/icd.json" and nodes == {"/dev/dri/card1"}  # its own GPU's
    more, nodes = graphics_plan("display", whole)
    assert "/usr/lib/xorg/nvidia_drv.so" in more and "/usr/lib64/libGLX_nvidia.so.0" in more and opencl not in more
    assert nodes == {"/dev/dri/card1", "/dev/nvidia-modeset"}
    assert graphics_plan("graphics", whole, Share("GPU-1", 1000, whole=True))[1] == {"/dev/dri/card1", "/dev/dri/card2"}


def test_what_a_share_may_not_have() -> None:
    """A grant with a share that names them all the same (requests refuse it) gets nothing that passes by libcuda."""
    gpucomp = {"/usr/lib64/libnvidia-gpucomp.so.550.1"}
    for shares in ((SHARE,), (SHARE, Share("GPU-0", 1000, whole=True))):
        more, nodes = graphics_plan("compute,utility,graphics,display,ngx", *shares)
        assert (set(more), nodes) == (gpucomp, set())


def test_imex_channels() -> None:
    """Those that were asked for, with whole GPUs."""
    node = inventory().replace(imex_major=237)
    whole = grant(Share("GPU-1", 1000, whole=True), imex_channels=(0, 7))
    steps = make_plan(whole, node, IMAGE, "/opt/gpu-hook", "/run/gpu-hook")
    channels = [(f"/dev/nvidia-caps-imex-channels/channel{n}", 237, n) for n in (0, 7)]
    assert [(s.path, s.major, s.minor) for s in steps if isinstance(s, DeviceNode) and s.major == 237] == channels
    assert [s.minor for s in steps if isinstance(s, DeviceRule) and s.major == 237] == [0, 7]
    assert env(steps)["NVIDIA_IMEX_CHANNELS"] == "0,7"
    shared = make_plan(whole.replace(shares=(SHARE,)), node, IMAGE, "/opt/gpu-hook", "/run/gpu-hook")
    assert 237 not in {s.major for s in shared if isinstance(s, DeviceNode | DeviceRule)}


def test_no_gpu_no_nodes() -> None:
    assert graphics_plan("graphics,display")[1] == set()


def test_a_variable_that_is_set_or_removed() -> None:
    assert EnvVar("A", "1").describe() == "env A=1"
    assert EnvVar("A", None).describe() == "env -A"


def test_every_step_describes_itself() -> None:
    for step in plan(grant(SHARE), simulated=True):
        assert "\n" not in step.describe() and len(step.describe()) > 5


def test_a_percentage_comes_back_as_it_was_asked() -> None:
    """Whatever the GPU's size; MiB are rounded down on the way."""
    for total in (1000, 24576, 81559, 143771):
        node = inventory().replace(gpus=(inventory().gpus[1].replace(memory_mib=total),))
        for percent in range(1, 101):
            steps = make_plan(grant(Share("GPU-1", total * percent // 100)), node, IMAGE, "/opt/g", "/run/g")
            assert env(steps)["T9K_GPU_PERCENT"] == str(percent)
