"""Plans the simulated driver and gpu-probe in OUT for one architecture. Called by scripts/build.

Each library exports every name that the real one is known to have. A function that is not simulated answers "not
supported".
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from build_c.native_build import Plan

HERE = Path(__file__).resolve().parent
SYMBOLS = HERE.parent.parent / "data" / "driver-symbols"
GLIBC_FLOOR = "2.17"  # CUDA's own libraries need this version on x86-64 and arm64
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fno-sanitize=undefined", "-pthread", "-s"]
LINKING = ("-shared", "-Wl,-z,nodelete", "-Wl,-Bsymbolic", "-static")
LIBRARY = ["-fPIC", "-fvisibility=hidden", "-shared", "-Wl,-z,nodelete", "-Wl,-Bsymbolic"]
GPU = ["gpu.c", "release.c", "piece.c", "gpu_time.c", "engine.c", "cgroup.c", "limits.c"]
CUDA = [*GPU, "channel.c", "device.c", "settings.c", "heap.c", "memory.c", "pointer.c", "managed.c", "host.c"]
CUDA += ["pool.c", "backing.c", "vmm.c", "ipc.c", "external.c", "holders.c", "array.c", "copy.c", "copy_batch.c"]
CUDA += ["stream.c", "event.c", "event_ipc.c", "memop.c", "cubin.c"]
CUDA += ["attribute.c", "module.c", "function.c", "link.c", "launch.c", "graph.c", "graph_op.c", "graph_edges.c"]
CUDA += ["graph_node.c", "graph_exec.c", "graph_memory.c", "user_object.c", "capture.c", "fault.c"]
CUDA += ["proc_address.c", "checkpoint.c", "green.c", "../model/rng.c"]
NVML = [*GPU, "nvml.c", "nvml_board.c", "nvml_smi.c", "nvml-rest.c"]
PARTS: dict[str, tuple[list[str], list[str]]] = {  # output: flags; C files, and words for the linker
    "libcuda.so.1": (LIBRARY, [*CUDA, "cuda-rest.c"]),
    "libnvidia-ml.so.1": (LIBRARY, NVML),
    "libnvidia-ml.so.1-615": (LIBRARY, [*NVML, "nvml_limits.c"]),  # of driver 615 and later
    "gpu-probe": ([], ["gpu-probe.c", "-ldl"]),
    "gpu-probe-linked": (["-DLINKED"], ["gpu-probe.c", "libcuda.so.1"]),
    "gpu-probe-static": (["-static", "-DLINKED"], ["gpu-probe.c", *CUDA, "-lm"]),  # has the driver in itself
}

RELEASES = HERE.parent / "gpu_hook_simulator" / "release.py"  # has the CUDA version of each driver branch
EXPORTS = "gpu-hook simulated exports"
REST = {  # generated file: lists of names, and what these functions return
    "cuda-rest.c": ("libcuda-*.txt", 801),  # CUDA_ERROR_NOT_SUPPORTED
    "nvml-rest.c": ("libnvidia-ml-*.txt", 3),  # NVML_ERROR_NOT_SUPPORTED
}


def plan(plan: "Plan", out: Path) -> None:
    """Plan OUT/{libcuda.so.1,libnvidia-ml.so.1,gpu-probe...}."""
    for word, (lists, code) in REST.items():
        plan.text(out / word, rest(lists, code))
    for name, (flags, words) in PARTS.items():
        sources = [out / word if word in REST else HERE / word for word in words if word.endswith(".c")]
        more = [str(out / word) if word in PARTS else word for word in words if not word.endswith(".c")]
        libc = "musl" if "-static" in flags else f"gnu.{GLIBC_FLOOR}"
        target = f"{plan.arch}-linux-{libc}"
        compile = [*FLAGS, *(flag for flag in flags if flag not in LINKING)]
        objects = plan.objects(out / ".objects", target, compile, sources)
        soname = [f"-Wl,-soname,{name.partition('-615')[0]}"] if "-shared" in flags else []
        plan.link(out / name, target, [*FLAGS, *flags, *soname], objects, more)


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
