"""Discovers the node's inventory: driver files, GPUs, control devices. For the CLI; container starts read the cache."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

from oci_hook.boundary import cgroups
from oci_hook.core.boundary import why_not
from oci_hook.core.inventory import MIG, DeviceFile, Gpu, GpuNode, Inventory
from oci_hook.core.layout import NVIDIA_MAJOR
from oci_hook.core.units import MIB
from oci_hook.discovery import blocks, contexts, driver_files
from oci_hook.discovery import mark as marks
from oci_hook.errors import GhError, refuse
from oci_hook.ledger.inventory import stamp
from oci_hook.linux.proc import boot_id

NVML_SECONDS = 60.0  # a first NVML call without persistence mode may initialise every GPU, about 2 s each
LIB_RM_VERSION_MISMATCH = 18  # NVML_ERROR_...: the library is not of the loaded kernel driver's version
PROC = "/proc"


def discover(driver_root: str, proc: str = PROC, nvml_seconds: float = NVML_SECONDS) -> Inventory:
    """The node's inventory by its driver root, as driver_files.find_in looks for it. proc: where the kernel's view is mounted.

    Raises NodeError GH-302 when the driver's files or its answers do not fit together, GH-301 when there is no GPU,
    GH-306 when the simulated driver is damaged.
    """
    env, mark = environment(driver_root)
    simulated = mark is not None
    loaded = "" if simulated else kernel_version(proc)
    driver_root, files = driver_files.find_in(driver_root, loaded)
    if not simulated and not loaded:
        raise refuse(
            "GH-302",
            f"driver files {files.version} are in {driver_root}, but no NVIDIA kernel driver is loaded"
            f" ({proc}/driver/nvidia/version is missing); load it (modprobe nvidia), or try `gpu-hook sim up`",
        )
    answer = ask_nvml(files.libnvml, env, nvml_seconds)
    if "gpus" in answer:
        if answer["driver_version"] != files.version:
            raise refuse(
                "GH-302",
                f"NVML reports driver {answer['driver_version']}, its file is {files.version}; install one version",
            )
        instances = {gpu["uuid"]: (gpu.get("gi", -1), gpu.get("ci", -1)) for gpu in answer["gpus"]}
        gpus = tuple(
            Gpu(
                **gpu,
                numa=numa_node(gpu["pci"], f"{driver_root.rstrip('/')}/sys" if simulated else "/sys"),
                simulated=simulated,
                time_scale=mark.time_scale if mark else 1,
                file=mark.files.get(gpu["uuid"], "") if mark else "",
                no_limits=no_limits(gpu, files.version, answer.get("limits") or {}),
            )
            for gpu in answer["gpus"]
        )
        measured, sizes = measure(files.libcuda, files.libnvml, env, nvml_seconds, gpus)
        gpus = with_contexts(gpus, measured, 0 if simulated else contexts.ESTIMATE_MIB)
        gpus = blocks.with_blocks(gpus, sizes, 0 if simulated else blocks.USUAL)
        links = tuple((str(a), str(b), int(d)) for a, b, d in answer["links"])
    elif simulated:
        raise refuse("GH-306", f"the simulated driver does not answer: {answer['error']}; run `gpu-hook sim up` anew")
    elif answer.get("code") == LIB_RM_VERSION_MISMATCH:
        raise refuse("GH-302", f"NVML: {answer['error']}; the driver was updated while loaded: reboot, or reload it")
    else:
        instances = {}
        gpus, links = gpus_from_proc(proc, files.libcuda, env, nvml_seconds, answer["error"]), ()
        gpus = blocks.with_blocks(with_contexts(gpus, {}, contexts.ESTIMATE_MIB), {})
    if not gpus:
        raise refuse("GH-301", "the driver lists no GPU; look at `dmesg` and `nvidia-smi`, or try `gpu-hook sim up`")
    witnesses = [files.libcuda, files.libnvml]
    witnesses.append(str(Path(driver_root) / marks.MARK) if simulated else f"{proc}/driver/nvidia/version")
    return Inventory(
        boot_id=boot_id(),
        driver_version=files.version,
        driver_root=driver_root,
        simulated=simulated,
        gpus=gpus,
        control=control_devices(proc),
        files=files.files,
        libcuda=files.libcuda,
        libnvml=files.libnvml,
        links=links,
        stamp=tuple(stamp(path) for path in witnesses),
        nodes=(() if simulated else nodes_of_whole_gpus(gpus))
        + nodes_of_mig(gpus, instances, f"{driver_root.rstrip('/')}/proc" if simulated else proc),
        cuda_version=str(answer.get("cuda_version", "")),
        imex_major=-1 if simulated else dynamic_major("nvidia-caps-imex-channels", proc),
        environment=tuple(sorted(mark.environment.items())) if mark else (),
    )


def no_limits(gpu: dict[str, Any], version: str, answers: dict[str, str]) -> str:
    """Why the driver keeps no memory limits per cgroup on this GPU, "" where it does. answers: by UUID, of its getter."""
    answer = answers.get(gpu["uuid"], "NVML was not asked")
    return why_not(bool(gpu.get("parent")), version, answer, cgroups.is_version2())


def environment(driver_root: str) -> tuple[dict[str, str], marks.Mark | None]:
    """The environment for a program that asks the driver below that root, and the mark of a simulated one. Raises
    NodeError GH-306."""
    mark = marks.read(driver_root)
    return {**os.environ, **(mark.environment if mark else {})}, mark


def kernel_version(proc: str = PROC) -> str:
    """The loaded kernel driver's version; "" when none is loaded.

    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  ..." or, for the open one, "... Kernel Module for
    x86_64  580.95.05  Release Build ...": the first word after "Module" that is a dotted number.
    """
    try:
        text = Path(f"{proc}/driver/nvidia/version").read_text()
    except OSError:
        return ""
    for word in text.partition("Module")[2].split():
        if "." in word and word.replace(".", "").isdigit():
            return word
    return ""


def is_loaded(driver_root: str, proc: str = PROC) -> bool:
    """True if the kernel driver is loaded and its files are in the driver root. Asks no driver."""
    try:
        _, mark = environment(driver_root)
        loaded = "" if mark else kernel_version(proc)
        driver_files.find_in(driver_root, loaded)
    except GhError:
        return False
    return bool(mark or loaded)


def ask_nvml(library: str, environment: dict[str, str], seconds: float, *words: str) -> dict[str, Any]:
    """NVML's GPUs, or {"error": why}. Asked in a process of its own, which is killed after so many seconds. words: other
    questions (nvml_gpus.py)."""
    program = [sys.executable, "-m", "oci_hook.discovery.nvml_gpus", *words]
    return ask(program, {**environment, "LD_PRELOAD": library}, seconds)


def persistence(driver_root: str, library: str, seconds: float) -> bool:
    """True if NVML says that the driver keeps every GPU initialised while nobody uses it; False also where it does not answer.
    Raises NodeError GH-306."""
    return ask_nvml(library, environment(driver_root)[0], seconds, "persistence").get("persistence") is True


def gpus_from_proc(proc: str, libcuda: str, environment: dict[str, str], seconds: float, why: str) -> tuple[Gpu, ...]:
    """The GPUs that the kernel driver lists in /proc; their memory, which is not there, by libcuda. why: NVML's error."""
    found = []
    for file in sorted(Path(f"{proc}/driver/nvidia/gpus").glob("*/information")):
        lines = (line.partition(":") for line in file.read_text().splitlines())
        facts = {key.strip(): value.strip() for key, _, value in lines}
        found.append(facts)
    if not found:
        return ()
    program = [sys.executable, "-m", "oci_hook.discovery.cuda_memory", libcuda]
    answer = ask(program, every_gpu(environment), seconds)
    if "memory" not in answer:
        raise refuse("GH-302", f"neither NVML ({why}) nor libcuda ({answer['error']}) answers; look at `nvidia-smi`")
    gpus: list[Gpu] = []
    for facts in sorted(found, key=lambda f: f.get("Bus Location", "")):
        uuid = facts.get("GPU UUID", "")
        if uuid in answer["memory"]:
            minor, pci = int(facts["Device Minor"]), facts.get("Bus Location", "")
            mib = answer["memory"][uuid] >> 20
            gpus.append(Gpu(uuid, len(gpus), minor, mib, facts.get("Model", ""), pci, numa_node(pci)))
    return tuple(gpus)


def measure(
    libcuda: str, libnvml: str, environment: dict[str, str], seconds: float, gpus: tuple[Gpu, ...] = ()
) -> tuple[dict[str, int], dict[str, int]]:
    """By UUID, MiB, rounded up, that one process's context takes, and the bytes of the driver's blocks; absent or 0 if it
    cannot be measured.

    That is so on a GPU that is full, or whose driver does not answer. A real driver shows a program only one MIG device,
    so those of `gpus` are asked one by one, until one does not answer.
    """
    program = [sys.executable, "-m", "oci_hook.discovery.context_memory", libcuda]
    wide = {**every_gpu(environment), "LD_PRELOAD": libnvml}
    answer = ask(program, wide, seconds)
    found, sizes = dict(answer.get("context", {})), dict(answer.get("block", {}))
    for uuid in contexts.asked_alone(gpus, found) if "context" in answer else ():
        answer = ask(program, {**wide, "CUDA_VISIBLE_DEVICES": uuid}, seconds)
        if "context" not in answer:
            break
        found.update(answer["context"])
        sizes.update(answer.get("block", {}))
    mib = {str(uuid): -(-int(size) // MIB) for uuid, size in found.items()}
    return mib, {str(uuid): int(size) for uuid, size in sizes.items()}


def with_contexts(gpus: tuple[Gpu, ...], measured: dict[str, int], estimate: int) -> tuple[Gpu, ...]:
    """The GPUs with what a context takes on each."""
    figures = contexts.figures(gpus, measured, estimate)
    return tuple(gpu.replace(context_mib=figures[gpu.uuid]) for gpu in gpus)


def every_gpu(environment: dict[str, str]) -> dict[str, str]:
    """The environment in which CUDA numbers the GPUs as NVML does, by PCI bus id, and hides none of them."""
    wide = {**environment, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    wide.pop("CUDA_VISIBLE_DEVICES", None)
    return wide


def ask(command: list[str], environment: dict[str, str], seconds: float, keep: tuple[int, ...] = ()) -> dict[str, Any]:
    """The JSON object that a program of this package prints, or {"error": why}; it is killed after so many seconds. keep:
    descriptors that it inherits."""
    # The program must find this package, and nothing in the caller's directory.
    package = str(Path(__file__).resolve().parents[2])
    environment = {**environment, "PYTHONPATH": package, "PYTHONSAFEPATH": "1"}
    try:
        r = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            cwd="/",
            pass_fds=keep,
        )
        answer = json.loads(r.stdout)
        return answer if isinstance(answer, dict) else {"error": "no answer"}
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {seconds:.0f} s"}
    except ValueError:
        last = (r.stderr.strip().splitlines() or ["no answer"])[-1]
        return {"error": f"{last[:100]} (exit status {r.returncode})"}
    except OSError as e:
        return {"error": str(e)}


def numa_node(pci: str, sys_root: str = "/sys") -> int:
    """The GPU's NUMA node, -1 if unknown. pci: as NVML writes it, 00000000:3B:00.0."""
    domain, _, rest = pci.lower().partition(":")
    try:
        return int(Path(f"{sys_root}/bus/pci/devices/{domain[-4:]}:{rest}/numa_node").read_text())
    except (OSError, ValueError):
        return -1


def nodes_of_whole_gpus(gpus: tuple[Gpu, ...], sys_root: str = "/sys", dev: str = "/dev") -> tuple[GpuNode, ...]:
    """The device nodes that whole GPUs have besides /dev/nvidiaN. Graphics: the GPU's own in /dev/dri. Displays:
    nvidia-modeset's, if it is loaded. Compute: those of GPUDirect Storage, whose module makes one for each queue.

    Left out: the nvidia-cap nodes of MIG's configuration and monitor, which concern all containers; IMEX channels,
    which are requested one by one; NVSwitches, which the fabric manager uses.
    """
    found = []
    for path in sorted(Path(dev).glob("nvidia-fs[0-9]*")):
        st = path.lstat()
        if stat.S_ISCHR(st.st_mode):
            found.append(GpuNode("", "compute", f"/dev/{path.name}", os.major(st.st_rdev), os.minor(st.st_rdev)))
    if Path(f"{sys_root}/module/nvidia_modeset").is_dir():
        found.append(GpuNode("", "display", "/dev/nvidia-modeset", NVIDIA_MAJOR, 254))
    for gpu in gpus:
        if gpu.parent:
            continue  # a MIG device has no graphics, and the node belongs to the whole GPU
        domain, _, rest = gpu.pci.lower().partition(":")
        for folder in sorted(Path(f"{sys_root}/bus/pci/devices/{domain[-4:]}:{rest}/drm").glob("*")):
            if not folder.name.startswith(("card", "renderD")):
                continue
            try:
                major, _, minor = (folder / "dev").read_text().strip().partition(":")
                found.append(GpuNode(gpu.uuid, "graphics", f"/dev/dri/{folder.name}", int(major), int(minor)))
            except (OSError, ValueError):
                pass  # the device is just being removed
    return tuple(found)


def nodes_of_mig(gpus: tuple[Gpu, ...], instances: dict[str, tuple[int, int]], proc: str = PROC) -> tuple[GpuNode, ...]:
    """The nodes that a process must open for a MIG device: of its GPU instance, and of the compute instance in that.

    instances: (GPU instance, compute instance) by UUID. Raises NodeError GH-302 if the kernel has no such device:
    without it, opening the GPU fails in every container.
    """
    found = []
    for gpu in gpus:
        if not gpu.parent:
            continue
        gi, ci = instances[gpu.uuid]
        top = f"{proc}/driver/nvidia/capabilities/gpu{gpu.minor}/mig/gi{gi}"
        for file in (f"{top}/access", f"{top}/ci{ci}/access"):
            minor = number_in(file, "DeviceFileMinor")
            major = dynamic_major("nvidia-caps", proc)
            if minor < 0 or major < 0:
                raise refuse("GH-302", f"MIG device {gpu.uuid}: {file} or nvidia-caps in {proc}/devices is missing")
            found.append(GpuNode(gpu.uuid, MIG, f"/dev/nvidia-caps/nvidia-cap{minor}", major, minor))
    return tuple(found)


def number_in(file: str, key: str) -> int:
    """The number after "key:" in a file of the kernel driver; -1 if there is none."""
    try:
        lines = (line.partition(":") for line in Path(file).read_text().splitlines())
        return next((int(value) for name, _, value in lines if name.strip() == key), -1)
    except (OSError, ValueError):
        return -1


def dynamic_major(name: str, proc: str = PROC) -> int:
    """The major number of this character device driver; -1 if it is not loaded."""
    try:
        lines = Path(f"{proc}/devices").read_text().partition("Block devices")[0].splitlines()
    except OSError:
        return -1
    return next((int(words[0]) for line in lines if (words := line.split())[1:] == [name] and words[0].isdigit()), -1)


def control_devices(proc: str = PROC) -> tuple[DeviceFile, ...]:
    """The nodes that every container with a GPU needs. nvidia-uvm's major number is dynamic, its minors 0 and 1."""
    files = [DeviceFile("/dev/nvidiactl", NVIDIA_MAJOR, 255)]
    major = dynamic_major("nvidia-uvm", proc)
    if major >= 0:
        files.append(DeviceFile("/dev/nvidia-uvm", major, 0))
        files.append(DeviceFile("/dev/nvidia-uvm-tools", major, 1))
    return tuple(files)
