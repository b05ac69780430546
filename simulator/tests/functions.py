"""Which functions of the 535 driver's libcuda the simulated one answers, and why it does not support the others.

python -m simulator.tests.functions writes simulator/docs/functions.md; a test holds the page to what the calls say.
"""

import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from gpu_hook_simulator import driver_root

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs/functions.md"
NAMES = HERE.parent.parent / "data/driver-symbols/libcuda-535.261.03.txt"
NOT_SUPPORTED = "801"
ASKED_FOR_NOTHING = {"cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"}  # 0 is no kind of handle

# Why a function is not supported: the first pattern that its name fits.
REASONS = {
    "OpenGL, EGL and VDPAU: the GPU has no display, and no graphics library is loaded": r"cu(GL|EGL|VDPAU|Graphics)",
    "semaphores and images of other APIs (Vulkan, NvSci), which have no simulated device": (
        r"cu\w*ExternalSemaphore|cuExternalMemoryGetMappedMipmappedArray|cuDeviceGetNvSciSyncAttributes"
    ),
    "32-bit addresses of the API before CUDA 3.2, which no memory of a 64-bit program has": (
        r"cuMem(Alloc|AllocPitch|Free|GetAddressRange|HostGetDevicePointer|cpy[A-Za-z0-9]+|setD[0-9D]+)$"
        r"|cuModuleGetGlobal$"
    ),
    "textures, surfaces and tensor maps: no kernel here reads memory": (
        r"cu(Tex(Object|Ref)|Surf(Object|Ref)|TensorMap|ModuleGet(Tex|Surf)Ref|ParamSetTexRef)"
    ),
    "a graph as text for graphviz": r"cuGraphDebugDotPrint",
    "Windows only": r"cuDeviceGetLuid",
    "private tables of NVIDIA's own libraries": r"cuGetExportTable",
    "dma-buf descriptors: the device attribute says that there are none": r"cuMemGetHandleForAddressRange",
    "no public description": r"cuMemGetAttribute",
    "refused by every driver since CUDA 11": r"cuProfilerInitialize",
}


def answers(context: bool) -> dict[str, str]:
    """What each function answers when it is called in a process of its own, all arguments 0."""
    with tempfile.TemporaryDirectory() as place:
        root = driver_root.make(f"{place}/prefix", f"{place}/state", 1, 1024)
        [library] = root.glob("usr/lib/*/libcuda.so.1")
        command = [sys.executable, HERE / "calls.py", library, str(int(context)), *NAMES.read_text().split()]
        env = {**os.environ, "GPU_HOOK_SIM_GPUS": str(driver_root.gpus_of(f"{place}/state"))}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def not_supported(said: dict[str, str]) -> list[str]:
    return [name for name, answer in said.items() if answer == NOT_SUPPORTED and name not in ASKED_FOR_NOTHING]


def reason(name: str) -> str:
    return next((text for text, pattern in REASONS.items() if re.match(pattern, name)), "")


def page(said: dict[str, str]) -> str:
    refused = not_supported(said)
    words = [
        "# Functions of the simulated libcuda",
        textwrap.fill(
            f"The library of driver 535.261.03 exports {len(said)} functions. The simulated one exports them all: "
            f"{len(said) - len(refused)} work, within [what is simulated](simulated-gpu.md#what-it-is). The others, below, answer "
            "CUDA_ERROR_NOT_SUPPORTED. `python -m simulator.tests.functions` wrote this page; a test calls each function in a "
            "process of its own and compares.",
            138,
        ),
    ]
    for text in REASONS:
        names = [name for name in refused if reason(name) == text]
        words += [f"## Not supported: {text}", wrapped(names)]
    return "\n\n".join(words) + "\n"


def wrapped(names: list[str]) -> str:
    return textwrap.fill(", ".join(f"`{name}`" for name in names), 138, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(page(answers(context=True)))
