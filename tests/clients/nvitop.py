"""nvitop, from PyPI."""

from testbed.stage import GPU_MIB, LIMIT_MIB
from tests.clients.frame import Case, Client, Limit

USED = 300


def row(total: int) -> str:
    """The table's row of memory."""
    memory = f"{USED}.0MiB / {total}MiB"
    idle = f"| N/A   35C   P0     70W / 350W |   {memory} |      0%      Default |"
    return f"{idle} UTL: | 0%         @ 1000MHz | PWR: |||| 70W          20.0% |"


CLIENT = Client(
    "nvitop",
    "1.7.2",
    (
        Case(
            "all",
            ("python", "/programs/nvitop_api.py"),
            "table, and the classes for other programs",
            25,
            {
                "nvitop --once: line 9": Limit(row(GPU_MIB), row(LIMIT_MIB)),
                "memory_total": Limit(f"{GPU_MIB << 20}", f"{LIMIT_MIB << 20}"),
                "memory_free": Limit(f"{(GPU_MIB - USED) << 20}", f"{(LIMIT_MIB - USED) << 20}"),
                "bar1_memory_total": Limit(f"{GPU_MIB << 20}", f"{LIMIT_MIB << 20}"),  # shown as the limit at most
                "memory_percent": Limit("3.7", "29.3"),
            },
        ),
    ),
    pins=("nvitop",),
)
