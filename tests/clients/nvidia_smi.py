"""nvidia-smi of Debian's non-free component."""

from testbed.stage import GPU_MIB, LIMIT_MIB
from tests.clients.frame import Case, Client, Limit

HELD = 300
GPU = "-q / GPU 00000000:51:00.0 / FB Memory Usage"
BAR1 = "-q / GPU 00000000:51:00.0 / BAR1 Memory Usage"  # its window, shown as large as the limit at most


def row(total: int) -> str:
    """The table's row of memory."""
    return f"| N/A   35C    P0             70W /  350W |     {HELD}MiB /   {total}MiB |      0%      Default |"


CLIENT = Client(
    "nvidia-smi",
    "550.163.01 (Debian)",
    (
        Case(
            "all",
            ("python", "/programs/nvidia_smi.py"),
            "table, `-q`, queries, `topo`, changes",
            200,
            {
                "nvidia-smi: line 10": Limit(row(GPU_MIB), row(LIMIT_MIB)),
                f"{GPU} / Total": Limit(f"{GPU_MIB} MiB", f"{LIMIT_MIB} MiB"),
                f"{GPU} / Free": Limit(f"{GPU_MIB - HELD} MiB", f"{LIMIT_MIB - HELD} MiB"),
                f"{BAR1} / Total": Limit(f"{GPU_MIB} MiB", f"{LIMIT_MIB} MiB"),
                f"{BAR1} / Used": Limit("2 MiB", f"{HELD} MiB"),
                f"{BAR1} / Free": Limit(f"{GPU_MIB - 2} MiB", f"{LIMIT_MIB - HELD} MiB"),
                "memory.total": Limit(f"{GPU_MIB} MiB", f"{LIMIT_MIB} MiB"),
                "memory.free": Limit(f"{GPU_MIB - HELD} MiB", f"{LIMIT_MIB - HELD} MiB"),
            },
        ),
    ),
    debs=("nvidia-smi",),
)
