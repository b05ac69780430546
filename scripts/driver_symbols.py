#!/usr/bin/env -S .venv/bin/python
"""data/driver-symbols from driver libraries: one list of exported functions for each.

usage: scripts/driver_symbols.py LIBRARY...      e.g. libcuda.so.555.58.02, libnvidia-ml.so.555.58.02, pynvml.py, or cuda.h

NVIDIA's Python module pynvml.py (wheel nvidia-ml-py) names the functions of an NVML that no package of Debian has yet, and
cuda.h (wheel nvidia-cuda-runtime) those of a libcuda: what it and its neighbours declare, and the names of exported
functions that its macros put in their place.
It prints the names that data/driver-symbols/classes.txt does not have: classify them there before the next build.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "data" / "driver-symbols"
# The debugger's interface of libcuda, mostly variables, which debuggers look up in the driver's own file.
LEFT_OUT = "cudbg"
PREFIXES = ("cu", "nvml")


def exported(library: Path) -> list[str]:
    """The names of the library's dynamic symbol table that other programs can use, sorted."""
    command = ["readelf", "-W", "--dyn-syms", str(library)]
    rows = [
        line.split() for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    ]
    return sorted({r[7].split("@")[0] for r in rows if len(r) > 7 and r[4] in ("GLOBAL", "WEAK") and r[6] != "UND"})


def listed(library: Path) -> list[str]:
    """The names of the library that the lists have."""
    return [name for name in exported(library) if name.startswith(PREFIXES) and not name.startswith(LEFT_OUT)]


def of_python(module: Path) -> tuple[str, list[str]]:
    """(name of the list, the functions that pynvml.py looks up)."""
    version = re.search(
        r"^Version: (\S+)", next(module.parent.glob("nvidia_ml_py-*/METADATA")).read_text(), re.MULTILINE
    )
    names = re.findall(r"_nvmlGetFunctionPointer\(\s*[\"'](nvml\w+)[\"']", module.read_text())
    return f"nvidia-ml-py-{version[1] if version else 'unknown'}", sorted(set(names))


def of_header(header: Path) -> tuple[str, list[str]]:
    """(name of the list, the functions of cuda.h and of the other headers of its folder)."""
    names = set[str]()
    for path in header.parent.glob("cuda*.h"):
        text = path.read_text(errors="replace")
        names |= set(re.findall(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(", text))
        for suffix, name in re.findall(
            r"^\s*#\s*define\s+cu[A-Z]\w*\s+(?:__CUDA_API_(PT[DS][SZ])\()?(cu[A-Z]\w*)\)?\s*$", text, re.M
        ):
            names |= {name, f"{name}_{suffix.lower()}"} if suffix else {name}
    version = re.search(r"^#define CUDA_VERSION (\d+)", header.read_text(errors="replace"), re.M)
    major, minor = divmod(int(version[1]) // 10, 100) if version else (0, 0)
    return f"cuda-header-{major}.{minor}", sorted(names)


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    rows = (LISTS / "classes.txt").read_text().splitlines()
    classified = {line.split()[1] for line in rows if not line.startswith("#")}
    for argument in sys.argv[1:]:
        file = Path(argument)
        if file.name == "pynvml.py":
            name, names = of_python(file)
        elif file.suffix == ".h":
            name, names = of_header(file)
        else:
            name, names = file.name.replace(".so.", "-", 1), listed(file)
        (LISTS / f"{name}.txt").write_text("\n".join(names) + "\n")
        print(f"{name}: {len(names)} names; without a class: {' '.join(sorted(set(names) - classified)) or 'none'}")


if __name__ == "__main__":
    main()
