"""py3nvml, from PyPI."""

from tests.clients.frame import Case, Client, Limit

TOTAL = (8589934592, 1073741824)
USED = 314572800


def info(total: int) -> list[str]:
    return [f"total={total}", f"free={total - USED}", f"used={USED}"]


CLIENT = Client(
    "py3nvml",
    "0.2.7",
    (
        Case(
            "calls",
            ("python", "/programs/py3nvml_calls.py"),
            "all questions about a GPU, four changes",
            20,
            {
                "nvmlDeviceGetMemoryInfo": Limit(*map(info, TOTAL)),
                # the window to device memory: shown as large as the limit at most
                "nvmlDeviceGetBAR1MemoryInfo": Limit(
                    ["bar1Total=8589934592", "bar1Free=8587837440", "bar1Used=2097152"],
                    ["bar1Total=1073741824", "bar1Free=759169024", "bar1Used=314572800"],
                ),
            },
        ),
    ),
    pins=("py3nvml", "numpy"),
)
