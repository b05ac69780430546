"""Named scenarios of the model: who shares the GPU, and how. Times in microseconds.

The workloads are those of the design study behind the control laws. `TABLE` repeats the study's comparison of native
slicing, a strict lease and the ledger row by row, so that a change of a law shows as a change of a row.
"""

from oci_hook.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Tenant = dict[str, Any]

ONLINE, DEFAULT, OFFLINE = 2, 1, 0


class Scenario(Value):
    """tenants: a dict of the model's keywords for each. settings: of the run. policies: compared by default."""

    name: str
    title: str
    tenants: "tuple[Tenant, ...]"
    settings: "dict[str, Any]" = {}
    policies: tuple[str, ...] = ("native", "strict", "ledger", "split", "learned")


def saturated(kernel: float = 80, **more: "Any") -> "Tenant":
    return {"count": 1, "kernel": kernel, "sigma": 0.5, "host": 5, **more}


def gappy(gap: float = 6000, **more: "Any") -> "Tenant":
    return {"count": 100, "kernel": 40, "sigma": 0.5, "host": 5, "sync": 1, "gap": gap, **more}


def launch_bound(kernel: float = 8, **more: "Any") -> "Tenant":
    return {"count": 100, "kernel": kernel, "sigma": 0.5, "host": 16, "sync": 1, "gap": 100, **more}


def requests(rate: float = 50, **more: "Any") -> "Tenant":
    """Open-loop inference, 3.6 ms of kernels per request."""
    shape = {"count": 120, "kernel": 30, "sigma": 0.4, "host": 6, "sync": 1, "spread": "uniform"}
    return {**shape, "period": 1e6 / rate, "class": ONLINE, "linger": 2000, **more}


def w(weight: int, tenant: "Tenant") -> "Tenant":
    return {**tenant, "weight": weight}


TABLE = (
    Scenario("2-saturated", "2 saturated, equal", (saturated(), saturated())),
    Scenario("2-saturated-70-30", "2 saturated, 70/30", (w(70, saturated()), w(30, saturated()))),
    Scenario(
        "3-saturated-50-30-20",
        "3 saturated, 50/30/20, kernels 30 to 600 us",
        (w(50, saturated(30)), w(30, saturated(200)), w(20, saturated(600))),
    ),
    Scenario(
        "4-saturated",
        "4 saturated, equal, kernels 30 to 600 us",
        (saturated(30), saturated(50), saturated(200), saturated(600)),
    ),
    Scenario("80us-20ms", "saturated, 80 us against 20 ms kernels", (saturated(80), saturated(20000))),
    Scenario("2-gappy", "2 gappy, 40 % duty", (gappy(), gappy())),
    Scenario("4-gappy", "4 gappy, 40 % duty", (gappy(), gappy(), gappy(), gappy())),
    Scenario("2-launch-bound", "2 launch-bound, 8 us of every 16", (launch_bound(), launch_bound())),
    Scenario(
        "2-launch-bound-70-30",
        "2 launch-bound, 14 us of every 16, 70/30",
        (w(70, launch_bound(14)), w(30, launch_bound(14))),
    ),
    Scenario("saturated-launch-bound", "saturated + launch-bound, equal", (saturated(), launch_bound())),
    Scenario(
        "saturated-launch-bound-70-30",
        "saturated 70 + launch-bound 30",
        (w(70, saturated()), w(30, launch_bound())),
    ),
    Scenario("saturated-gappy", "saturated + gappy", (saturated(), gappy())),
    Scenario("2-saturated-gappy", "2 saturated + 1 gappy (30 ms gaps)", (saturated(), saturated(), gappy(30000))),
    Scenario("4-mixed", "2 saturated, launch-bound, gappy", (saturated(), saturated(), launch_bound(), gappy())),
)


def capped() -> "tuple[Scenario, ...]":
    rows = []
    for cap in (10, 30, 50):
        for kernel in (80, 1500, 5000, 20000):
            tenant = saturated(kernel, cap=cap, weight=cap)
            other = saturated(80, cap=100 - cap, weight=100 - cap)
            only = ("ledger", "learned")
            name = f"cap-{cap}-{kernel}us"
            rows.append(Scenario(f"{name}-alone", f"cap {cap} %, {kernel} us, alone", (tenant,), {}, only))
            rows.append(Scenario(f"{name}-beside", f"cap {cap} %, {kernel} us, rest capped", (tenant, other), {}, only))
    return tuple(rows)


def priority() -> "tuple[Scenario, ...]":
    rows = []
    only = ("native", "ledger", "learned")
    run = {"length": 21e6}
    for kernel, window in (
        (80, 200),
        (80, 300),
        (80, 500),
        (80, 1000),
        (300, 200),
        (300, 300),
        (700, 200),
        (700, 300),
        (1000, 300),
        (5000, 300),
    ):
        settings = {**run, "window_guarded": window}
        low = saturated(kernel, **{"class": OFFLINE})
        rows.append(
            Scenario(
                f"online-{kernel}us-w{window}",
                f"50 requests/s over {kernel} us kernels, W {window} us",
                (requests(), low),
                settings,
                only,
            )
        )
        rows.append(
            Scenario(
                f"online-{kernel}us-w{window}-no-drain",
                f"the same without drain-then-go, {kernel} us, W {window} us",
                (requests(), low),
                {**settings, "drain_max": 0},
                ("ledger",),
            )
        )
    for rate in (5, 20, 50):
        for linger in (100000, 10000, 2000, 500, 0):
            word = f"{linger / 1000:g} ms" if linger else "adaptive"
            rows.append(
                Scenario(
                    f"linger-{rate}rps-{linger or 'adaptive'}",
                    f"{rate} requests/s over 80 us kernels, linger {word}",
                    (requests(rate, linger=linger), saturated(80, **{"class": OFFLINE})),
                    run,
                    ("ledger",),
                )
            )
    training = {
        "count": 300,
        "kernel": 40,
        "sigma": 0.4,
        "host": 6,
        "sync": 1,
        "gap": 300,
        "class": ONLINE,
        "linger": 2000,
    }
    rows.append(
        Scenario(
            "online-training",
            "continuous online training over 80 us kernels",
            (training, saturated(80, **{"class": OFFLINE})),
            run,
            only,
        )
    )
    return tuple(rows)


def sweeps() -> "tuple[Scenario, ...]":
    pair = (saturated(), saturated())
    rows = [
        Scenario(f"quantum-{q}ms", f"2 saturated, Q {q} ms", pair, {"quantum": q * 1000}, ("ledger",))
        for q in (5, 10, 20)
    ]
    rows += [
        Scenario(f"window-{window}us", f"2 saturated, W {window} us", pair, {"window": window}, ("ledger",))
        for window in (500, 1000, 2000, 4000, 8000)
    ]
    return tuple(rows)


def others() -> "tuple[Scenario, ...]":
    second = 1000000
    in_phases = saturated(80, weight=30, on=second, off=second)
    return (
        Scenario("burst-30-70", "30 + 70, both saturated, the 30 in phases of 1 s", (in_phases, w(70, saturated()))),
        Scenario("4-equal", "4 saturated, equal", tuple(saturated() for _ in range(4))),
        Scenario("90-10", "2 saturated, 90/10", (w(90, saturated()), w(10, saturated()))),
        Scenario("graph-10ms", "10 ms graphs against 80 us kernels", (saturated(10000, sigma=0.1), saturated())),
        Scenario(
            "sync-per-kernel",
            "synchronise after each 80 us kernel, against saturated",
            ({"count": 1, "kernel": 80, "sigma": 0.5, "host": 5, "sync": 1}, saturated()),
        ),
        Scenario(
            "late-comer",
            "saturated 5 ms kernels; another comes 0.5 s later and meets what was queued alone",
            (saturated(5000), saturated(80, begin=500000)),
        ),
    )


def faults() -> "tuple[Scenario, ...]":
    crowds = {
        "2-saturated": (saturated(), saturated()),
        "3-weighted": (w(50, saturated(30)), w(30, saturated(200)), w(20, saturated(600))),
        "mixed": (saturated(), launch_bound()),
    }
    return tuple(
        Scenario(f"{fault}-{name}", title, tenants, {"fault": fault, "trials": 1000}, ("ledger", "learned"))
        for fault, title in (
            ("kill", "SIGKILL of whoever has the tenure"),
            ("stop", "SIGSTOP of whoever has the tenure"),
        )
        for name, tenants in crowds.items()
    )


def liars() -> "tuple[Scenario, ...]":
    titles = {
        "bypass": "2 honest saturated, one without gates and with nothing in its slot",
        "greedy": "2 honest saturated, one without gates that claims tenure for ever",
        "ghost": "2 honest saturated, one that claims tenure for ever and does nothing",
    }
    return tuple(
        Scenario(f"liar-{lie}", title, (saturated(), saturated(), saturated(lie=lie)), {}, ("native", "ledger"))
        for lie, title in titles.items()
    )


GROUPS = {
    "table": TABLE,
    "others": others(),
    "sweeps": sweeps(),
    "caps": capped(),
    "priority": priority(),
    "faults": faults(),
    "liars": liars(),
}


def find(name: str) -> "tuple[Scenario, ...]":
    """The scenario of this name, or all of a group. Raises KeyError."""
    if name in GROUPS:
        return GROUPS[name]
    for group in GROUPS.values():
        for scenario in group:
            if scenario.name == name:
                return (scenario,)
    raise KeyError(name)
