"""The cluster's controller. `--pure`: choosing nodes and GPUs alone, in this process, at its largest size (5 000 nodes with 8 GPUs and
50 000 pods), how its cost grows, a cluster filled to the brim, GPUs kept free. Otherwise also the cold start, and a real
kube-apiserver, etcd and kube-scheduler with nodes as plain objects (no kubelet, no container): bursts of 2 000 pods beside the plain
scheduler's, pods that come and go, pods that fit nowhere. `--real`: that alone."""

import datetime
import os

from benchmarks import _cluster_copy, _cluster_fill, _cluster_free, _cluster_growth, _cluster_pure, _cluster_real
from benchmarks import _report as report

FILLED = 40, 8  # nodes and GPUs of the cluster that is filled to the brim
SHORT_FILLED = 8, 4
NAME = "cluster"


def arguments(parser) -> None:
    parser.add_argument("--pure", action="store_true", help="choosing alone, without an API server")
    parser.add_argument("--real", action="store_true", help="with an API server alone")
    parser.add_argument(
        "--nodes",
        type=int,
        action="append",
        help="of the real API server, may be repeated; 1000, with --write also 5000",
    )


def run(short: bool, options) -> dict:
    figures: dict = {}
    data: dict = {"label": label()}
    if not options.real:
        figures |= _cluster_pure.run(short)
        figures |= _cluster_free.figures(short)
        data["growth"] = list(_cluster_growth.rows(short))
        data["filled"] = list(_cluster_fill.rows(*(SHORT_FILLED if short else FILLED)))
        figures |= filled(data["filled"])
    if not options.pure:
        if not options.real:
            figures |= _cluster_copy.run(short)
        sizes = sorted(set(options.nodes or ((1000, 5000) if options.write else (1000,))))
        found, data["rounds"] = _cluster_real.run(short, tuple(sizes))
        figures |= found
    report.last[NAME] = data
    return figures


def label() -> str:
    day = datetime.date.today().isoformat()
    return f"measured on {day}, {os.cpu_count()} processors with a load of {os.getloadavg()[0]:.0f} when it began"


def filled(rows: list[dict]) -> dict:
    """The budget: with the extender no Binding is denied, and no pod with room waits."""

    def most(key: str, which) -> dict:
        value = max(row[key] for row in rows if which(row))
        return {"value": value, "unit": "", "budget": 0, "ok": not value}

    return {
        "filled_denied_with_extender": most("denied", lambda row: row["extender"]),
        "filled_stuck_with_extender": most("stuck", lambda row: row["extender"]),
        "filled_stuck_without_extender": most("stuck", lambda row: not row["extender"] and row["taint"]),
    }


def details() -> str:
    return "\n\n".join(map(report.aligned, tables(report.last[NAME])))


def tables(data: dict) -> list[list[list[str]]]:
    found = []
    if data.get("rounds"):
        programs = [name for name in data["rounds"][0]["cpu_ms"] if name != "load generator"]
        found.append(
            [
                ["nodes", "round", "pods/s", *programs],
                *(
                    [
                        str(row["nodes"]),
                        row["round"] + (f", beside {row['nowhere']} that fit nowhere" if row["nowhere"] else ""),
                        f"{row['pods_per_s']:.0f}",
                        *(f"{row['cpu_ms'].get(name, 0.0):.2f}" for name in programs),
                    ]
                    for row in data["rounds"]
                ),
            ]
        )
    if data.get("filled"):
        keys = ("placement", "fill", "pods", "bound", "denied", "seconds", "stuck", "free_gpus")
        found.append(
            [
                ["way", *keys[:1], "fill, %", *keys[2:5], "seconds until the last", "stuck", "free GPUs"],
                *([way(row), *(str(row[key]) for key in keys)] for row in data["filled"]),
            ]
        )
    return found


def way(row: dict) -> str:
    if row["extender"]:
        return "with filter"
    return "bind admission" + ("" if row["taint"] else ", no taint")


def kept(before: dict) -> dict:
    """Keeps the figures, sizes and parts that this run did not measure."""
    data = report.last[NAME]
    sizes = {row["nodes"] for row in data.get("rounds", ())}
    others = [row for row in before.get("rounds", ()) if row["nodes"] not in sizes]
    data["rounds"] = sorted([*others, *data.get("rounds", ())], key=lambda row: row["nodes"])
    return {**before, **data}
