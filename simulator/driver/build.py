"""Compiles the simulated driver and gpu-probe into OUT for one architecture. Called by scripts/build.

Each library exports every name that the real one is known to have. A function that is not simulated answers "not
supported".
"""

import os
import re
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "model"
SYMBOLS = HERE.parent.parent / "data" / "driver-symbols"
GLIBC_FLOOR = "2.17"  # CUDA's own libraries need this version on x86-64 and arm64
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fno-sanitize=undefined", "-pthread", "-s"]
LIBRARY = ["-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,nodelete", "-Wl,-Bsymbolic"]
GPU = ["gpu.c", "release.c", "piece.c", "gpu_time.c", "engine.c", "cgroup.c", "limits.c"]
CUDA = [*GPU, "channel.c", "device.c", "settings.c", "heap.c", "memory.c", "pointer.c", "managed.c", "host.c"]
CUDA += ["pool.c", "backing.c", "vmm.c", "ipc.c", "external.c", "holders.c", "array.c", "copy.c", "copy_batch.c"]
CUDA += ["texture.c", "texture_reference.c", "tensor_map.c", "stream.c", "event.c", "event_ipc.c", "memop.c"]
CUDA += ["cubin.c"]
CUDA += ["attribute.c", "module.c", "function.c", "link.c", "launch.c", "graph.c", "graph_op.c", "graph_edges.c"]
CUDA += ["graph_node.c", "graph_exec.c", "graph_memory.c", "graph_dot.c", "user_object.c", "capture.c", "fault.c"]
CUDA += ["proc_address.c", "checkpoint.c", "green.c", "../model/rng.c"]
NVML = [*GPU, "nvml.c", "nvml_board.c", "nvml_smi.c", "nvml-rest.c"]
PARTS: dict[str, list[str]] = {  # output: flags and C files
    "libcuda.so.1": [*LIBRARY, *CUDA, "cuda-rest.c"],
    "libnvidia-ml.so.1": [*LIBRARY, *NVML],
    "libnvidia-ml.so.1-615": [*LIBRARY, *NVML, "nvml_limits.c"],  # of driver 615 and later
    "gpu-probe": ["gpu-probe.c", "-ldl"],
    "gpu-probe-linked": ["-DLINKED", "gpu-probe.c", "libcuda.so.1"],
    "gpu-probe-static": ["-static", "-DLINKED", "gpu-probe.c", *CUDA, "-lm"],  # has the driver in itself
}

RELEASES = HERE.parent / "gpu_hook_simulator" / "release.py"  # has the CUDA version of each driver branch
EXPORTS = "gpu-hook simulated exports"
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
        p
        for p in (*HERE.iterdir(), RELEASES, MODEL / "rng.c", MODEL / "rng.h")
        if p.suffix in (".c", ".h", ".def", ".py")
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
    """C source with a weak function for every known name, which the simulated ones override, and the list of the names.

    The list says from and until which CUDA version drivers export the name; gpu_hook_simulator/exports.py reads it.
    """
    since = versions(lists)
    weak = '__attribute__((weak, visibility("default"))) int'
    functions = "".join(f"{weak} {name}(void);\n{weak} {name}(void) {{ return {code}; }}\n" for name in since)
    table = "".join(f'    "{name} {first} {end}\\n"\n' for name, (first, end) in since.items())
    return f'{functions}__attribute__((used, retain)) static const char exports[] = "{EXPORTS}\\n"\n{table};\n'


def versions(lists: str) -> dict[str, tuple[int, int]]:
    """Known names: the CUDA version from which drivers export it, 0 for all that are known; and from which no more, 0: none.

    By the lists of real drivers; between and after those, by the version in names.def.
    """
    rows = re.findall(r"^[FP]\(\w+, (\d+), (\w+)\)", (HERE / "names.def").read_text(), re.MULTILINE)
    said = {symbol: int(version) for version, symbol in rows} if lists.startswith("libcuda") else {}
    branches = dict(re.findall(r"^    (\d{3}): (\d{5}),", RELEASES.read_text(), re.MULTILINE))
    first: dict[str, int] = {}
    end: dict[str, int] = {}
    before, old = 0, set[str]()
    for path in sorted(SYMBOLS.glob(lists)):
        cuda = int(branches[path.stem.rpartition("-")[2].partition(".")[0]])
        names = set(path.read_text().split())
        for name in names:
            between = before < said.get(name, 0) <= cuda
            first.setdefault(name, 0 if not before else said[name] if between else cuda)
        end |= dict.fromkeys(old - names, cuda)
        before, old = cuda, names
    return {name: (version, end.get(name, 0)) for name, version in sorted({**said, **first}.items())}
