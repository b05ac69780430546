"""docs/internals/benchmarks.md and its data: what a run leaves in data/benchmarks, and the tables that are written from that."""

import datetime
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from testbed import REPO

Json = dict[str, Any]
DATA, PAGE = REPO / "data/benchmarks", REPO / "docs/internals/benchmarks.md"
FEW = 4  # with fewer budgets than this, a table has all figures
MARKS = re.compile(r"<!-- figures: (\w+) -->\n.*?<!-- end -->", re.S)


def table(data: Json) -> str:
    """Machine, command and figures of one benchmark, as its section has them."""
    figures = data["figures"]
    budgeted = {key: f for key, f in figures.items() if f["budget"] is not None}
    simulated = ", **simulated**" if data.get("simulated") else ""
    lines = [f"`{data['command']}`, {data['date']}, {data['machine']}{simulated}:", ""]
    lines += ["| figure | budget | latest |", "|---|---|---|"]
    for key, f in (budgeted if len(budgeted) >= FEW else figures).items():
        budget = "" if f["budget"] is None else f"{f['budget']:g}"
        missed = "" if f["ok"] else ", **missed**"
        lines.append(f"| `{key}` | {budget} | {f['value']:.4g} {f['unit']}".rstrip() + f"{missed} |")
    return "\n".join(lines)


def page(text: str, results: Mapping[str, Json]) -> str:
    """The page with the tables of these results. KeyError where one of its sections has none."""
    return MARKS.sub(lambda m: f"<!-- figures: {m[1]} -->\n{table(results[m[1]])}\n<!-- end -->", text)


def results() -> dict[str, Json]:
    """All of data/benchmarks, by benchmark."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(DATA.glob("*.json"))}


def write() -> None:
    PAGE.write_text(page(PAGE.read_text(), results()))


def machine(load: float) -> str:
    """Words for the machine: load is the average of the last minute when the run began."""
    return f"{os.cpu_count()} cores, load {load:.0f}"


def record(name: str, figures: Json, command: str, load: float, simulated: bool, more: Json) -> None:
    """Keep a run. more: rows of its own, and figures of an earlier one that it did not measure. The page is not touched."""
    head: Json = {"date": datetime.date.today().isoformat(), "machine": machine(load), "command": command}
    if simulated:
        head["simulated"] = True
    rows = {key: value for key, value in more.items() if key != "figures" and key not in head}
    whole = {**head, **rows, "figures": {**more.get("figures", {}), **figures}}
    DATA.mkdir(parents=True, exist_ok=True)
    (DATA / f"{name}.json").write_text(json.dumps(whole, indent=None if rows else 1, ensure_ascii=False) + "\n")
