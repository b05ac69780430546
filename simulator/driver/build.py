"""Compiles the simulated driver and gpu-probe into OUT for one architecture. Called by scripts/build.

Each library exports every name that the real one is known to have. A function that is not simulated answers "not
supported".
"""

import os
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "model"
SYMBOLS = HERE.parent.parent / "data" / "driver-symbols"
GLIBC_FLOOR = "2.17"  # CUDA's own libraries need this version on x86-64 and arm64
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fno-sanitize=undefined", "-pthread", "-s"]
LIBRARY = ["-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,nodelete"]
GPU = ["gpu.c", "piece.c", "gpu_time.c", "engine.c", "cgroup.c", "limits.c"]
CUDA = [*GPU, "channel.c", "device.c", "heap.c", "memory.c", "pool.c", "vmm.c", "array.c", "copy.c"]
CUDA += ["stream.c", "event.c", "module.c", "launch.c", "memop.c", "graph.c", "capture.c", "host.c", "fault.c"]
CUDA += ["copy_batch.c", "proc_address.c", "ipc.c", "external.c", "holders.c", "checkpoint.c", "green.c"]
CUDA += ["../model/rng.c"]
NVML = [*GPU, "nvml.c", "nvml_smi.c", "nvml-rest.c"]
PARTS: dict[str, list[str]] = {  # output: flags and C files
    "libcuda.so.1": [*LIBRARY, *CUDA, "cuda-rest.c"],
    "libnvidia-ml.so.1": [*LIBRARY, *NVML],
    "libnvidia-ml.so.1-615": [*LIBRARY, *NVML, "nvml_limits.c"],  # of driver 615 and later
    "gpu-probe": ["gpu-probe.c", "-ldl"],
    "gpu-probe-linked": ["-DLINKED", "gpu-probe.c", "libcuda.so.1"],
    "gpu-probe-static": ["-static", "-DLINKED", "gpu-probe.c", *CUDA, "-lm"],  # has the driver in itself
}

REST = {  # generated file: lists of names, and what these functions return
    "cuda-rest.c": ("libcuda-*.txt", 801),  # CUDA_ERROR_NOT_SUPPORTED
    "nvml-rest.c": ("libnvidia-ml-*.txt", 3),  # NVML_ERROR_NOT_SUPPORTED
}


def build(out: Path, arch: str, cc: list[str]) -> None:
    """Make OUT/{libcuda.so.1,libnvidia-ml.so.1,gpu-probe...}; a file that is newer than its sources stays.

    arch: as `uname -m` says. cc: the `zig cc` command. Raises subprocess.CalledProcessError when the compiler fails.
    """
    out.mkdir(parents=True, exist_ok=True)
    sources = [
        p for p in (*HERE.iterdir(), MODEL / "rng.c", MODEL / "rng.h") if p.suffix in (".c", ".h", ".def", ".py")
    ]
    newest = max(p.stat().st_mtime_ns for p in [*sources, *SYMBOLS.iterdir()])
    for name, parts in PARTS.items():
        made = out / name
        if made.exists() and made.stat().st_mtime_ns > newest:
            continue
        for word in REST.keys() & set(parts):
            lists, code = REST[word]
            text = rest(lists, code)
            if not (out / word).exists() or (out / word).read_text() != text:
                (out / word).write_text(text)
        words = [str(HERE / w) if (HERE / w).is_file() else str(out / w) if w in PARTS | REST else w for w in parts]
        soname = [f"-Wl,-soname,{name.partition('-615')[0]}"] if "-shared" in parts else []
        libc = "musl" if "-static" in parts else f"gnu.{GLIBC_FLOOR}"
        partial = out / f".{name}.{os.getpid()}"  # several may build at once
        subprocess.run(
            [*cc, "-target", f"{arch}-linux-{libc}", *FLAGS, *soname, "-o", str(partial), *words],
            check=True,
        )
        partial.rename(made)


def rest(lists: str, code: int) -> str:
    """C source with a weak function for every known name; the simulated ones override it."""
    names = sorted({name for path in SYMBOLS.glob(lists) for name in path.read_text().split()})
    weak = '__attribute__((weak, visibility("default"))) int'
    return "".join(f"{weak} {name}(void);\n{weak} {name}(void) {{ return {code}; }}\n" for name in names)
