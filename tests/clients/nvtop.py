"""nvtop of Debian."""

from tests.clients.frame import Case, Client, Limit

CLIENT = Client(
    "nvtop",
    "3.0.1 (Debian)",
    (
        Case(
            "screen",
            ("python", "/programs/nvtop_screen.py"),
            "its screen: GPU, memory, processes",
            7,
            {
                "memory": Limit("0.293Gi/8.000Gi", "0.293Gi/1.000Gi"),
                "memory of the process": Limit("300MiB 4%", "300MiB 29%"),
            },
        ),
    ),
    debs=("nvtop",),
)
