"""NVIDIA's nvidia-smi beside a process that holds 300 MiB: each line that it prints is a step."""

import re
import subprocess

from held import hold
from steps import said

SMI = "/usr/lib/nvidia/current/nvidia-smi"  # where Debian has it
# The time; and what nvidia-smi reads from a table of NVML that the simulated one leaves as it was.
DROPPED = ("Timestamp", "Max Power Limit")
QUERIES = (
    "index,name,uuid,serial,pci.bus_id,driver_version,count,compute_mode,compute_cap,persistence_mode,mig.mode.current",
    "memory.total,memory.used,memory.free,memory.reserved",
    "utilization.gpu,utilization.memory,temperature.gpu,power.draw,power.limit,clocks.sm,clocks.mem,pstate,fan.speed",
    "ecc.mode.current,display_active,display_mode,accounting.mode,vbios_version,inforom.img,gpu_bus_id",
)


def smi(*words: str) -> tuple[str, str]:
    """(how it ended, what it printed)."""
    try:
        done = subprocess.run([SMI, *words], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "failed: still running after 60 s", ""
    text = done.stdout + done.stderr
    return ("ok" if done.returncode == 0 else f"failed: exit status {done.returncode}"), text


def fields(name: str, *words: str) -> None:
    """`nvidia-smi -q`: a step for each line, named by the headings above it."""
    status, text = smi(*words)
    said(f"{name}: ended", status)
    path: list[tuple[int, str]] = []
    seen: dict[str, int] = {}
    for line in text.splitlines():
        key, colon, value = (part.strip() for part in line.partition(" : "))
        if not key or key.startswith(("=", *DROPPED)):
            continue
        depth = len(line) - len(line.lstrip())
        path = [(d, k) for d, k in path if d < depth]
        if not colon:
            path.append((depth, key))
            continue
        step = " / ".join([name, *(k for _, k in path), key])
        seen[step] = seen.get(step, 0) + 1
        said(step if seen[step] == 1 else f"{step} ({seen[step]})", value)
        path.append((depth, key))


def lines(name: str, *words: str) -> None:
    """A step for each line but those with a date."""
    status, text = smi(*words)
    said(f"{name}: ended", status)
    for number, line in enumerate(text.splitlines(), 1):
        if re.search(r"\b20\d\d\b.*\d\d:\d\d:\d\d|\d\d:\d\d:\d\d.*\b20\d\d\b", line):
            continue
        said(f"{name}: line {number}", line.rstrip())


def change(name: str, *words: str) -> None:
    status, text = smi(*words)
    said(f"change of {name}", f"{status}: {text.partition(chr(10))[0]}")


hold()
lines("nvidia-smi")
lines("-L", "-L")
fields("-q", "-q")
for query in QUERIES:
    status, text = smi(f"--query-gpu={query}", "--format=csv,noheader")
    said(f"{query}: ended", status)
    for field, value in zip(query.split(","), text.strip().split(", "), strict=False):
        said(field, value)
lines("--query-compute-apps", "--query-compute-apps=pid,name,used_memory,gpu_uuid", "--format=csv")
lines("--query-accounted-apps", "--query-accounted-apps=pid,gpu_util,mem_util", "--format=csv")
lines("pmon", "pmon", "-c", "1")
lines("dmon", "dmon", "-c", "1")
lines("topo", "topo", "-m")
lines("nvlink", "nvlink", "-s")
for name, *words in (
    ("compute mode", "-c", "EXCLUSIVE_PROCESS"),
    ("persistence", "-pm", "1"),
    ("power limit", "-pl", "100"),
    ("clocks", "-lgc", "300,300"),
    ("reset", "--gpu-reset"),
):
    change(name, *words)
