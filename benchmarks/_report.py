"""Tables of the simulated benchmarks. Each says that it is simulated, by which calibration and time scale."""

from typing import Any

from gpu_hook_simulator import model_run

Json = dict[str, Any]
last: dict[str, Json] = {}  # figures of a benchmark, by name


def calibration() -> str:
    return model_run.Calibration().digest[:16]


def figure(value: float, unit: str, budget: float | None, least: bool = False) -> Json:
    """least: the budget is a lower bound."""
    ok = budget is None or (value >= budget if least else value <= budget)
    return {"value": round(value, 4), "unit": unit, "budget": budget, "ok": ok}


def label(data: Json) -> str:
    """Conditions of the measurement."""
    if "label" in data:
        return str(data["label"])
    return f"simulated (calibration {data['calibration']}, time scale {data['time_scale']})"


def shares(values: list[float]) -> str:
    return " ".join(f"{100 * v:.1f}" for v in values)


def number(row: Json | None, key: str, form: str) -> str:
    return format(row[key], form) if row and row.get(key) is not None else ""


def share_table(data: Json) -> list[list[str]]:
    """Heading and rows: the cell, each tenant's time through gpu-hook, errors and sums, beside the model and native."""
    native = {r["cell"]: r for r in data["rows"] if r["native"]}
    out = [["cell", "each got, %", "error", "predicted", "native", "Jain", "sum", "predicted", "native"]]
    for r in (r for r in data["rows"] if not r["native"]):
        n, p = native.get(r["cell"]), r["predicted"]
        key, form = ("error", ".1f") if "error" in r else ("cap_error", "+.1f")
        out.append(
            [
                r["cell"],
                shares(r["gpu_time"]),
                number(r, key, form),
                number(p, key, form),
                number(n, "error", ".1f"),
                number(r, "jain", ".3f"),
                number(r, "efficiency", ".2f"),
                number(p, "efficiency", ".2f"),
                number(n, "efficiency", ".2f"),
            ]
        )
    return out


def aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)
