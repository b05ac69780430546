"""gpustat, from PyPI."""

from testbed.stage import GPU_MIB, LIMIT_MIB
from tests.clients.frame import Case, Client, Limit

GPU = "[0] Simulated GPU 8 GiB | 35°C,"
ALL = f"{GPU}  ?? %,   0 % (E:   0 %  D:   0 %),   70 / 350 W |"
SHORT = f"{GPU}   0 % |"


def row(gpu: str, total: int, process: str) -> str:
    return f"{gpu}   300 / {total:5} MB | {process}(300M)"


CLIENT = Client(
    "gpustat",
    "1.1.1",
    (
        Case(
            "all",
            ("python", "/programs/gpustat_json.py"),
            "table with processes, `--json`",
            26,
            {
                "gpustat": Limit(row(SHORT, GPU_MIB, "0"), row(SHORT, LIMIT_MIB, "0")),
                "gpustat --show-all --no-header": Limit(
                    row(ALL, GPU_MIB, "0:python/1"), row(ALL, LIMIT_MIB, "0:python/1")
                ),
                "gpustat --show-pid --show-cmd --no-header": Limit(
                    row(SHORT, GPU_MIB, "python/1"), row(SHORT, LIMIT_MIB, "python/1")
                ),
                "--json.gpus[0].memory.total": Limit(GPU_MIB, LIMIT_MIB),
            },
        ),
    ),
    pins=("gpustat",),
)
