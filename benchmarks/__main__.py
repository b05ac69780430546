"""Runs one benchmark: NAME.py beside this file, with run(short) -> {key: {"value", "unit", "budget", "ok"}}.

One that has details() -> text has it printed above the figures; one that has arguments(parser) has options of its own, and
run(short, options). With --write the figures are kept in data/benchmarks and shown on docs/internals/benchmarks.md: with what
kept(before) -> {...} of the module adds, if anything (None: this run is not one to keep). before: what is there.
"""

import argparse
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from benchmarks import _page

HERE = Path(__file__).parent
SIMULATED = {
    "share",
    "priority",
    "liars",
    "agent",
    "hostile",
    "boundary",
    "chaos",
    "turns",
    "lending",
    "dra",
}  # figures from the simulated driver, or a model; the others time host work only


DISTURBED = 2.0  # per cent of stolen CPU time above which waits of milliseconds say nothing about this code


class Stolen:
    """The part of its CPU time since then that the hypervisor took from this machine (proc(5), steal)."""

    def __init__(self) -> None:
        self.begin, self.ticks = time.monotonic(), self._ticks()

    @staticmethod
    def _ticks() -> int:
        with open("/proc/stat") as f:
            return int(f.readline().split()[8])

    def percent(self) -> float:
        seconds = (self._ticks() - self.ticks) / os.sysconf("SC_CLK_TCK")
        return 100 * seconds / ((time.monotonic() - self.begin) * (os.cpu_count() or 1))


def main() -> int:
    names = sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith("_"))
    parser = argparse.ArgumentParser(prog="scripts/bench")
    parser.add_argument("name", choices=names, nargs="?", help="none, with --write: write the page from the data alone")
    parser.add_argument("--short", action="store_true", help="fewer rounds; the figures are rougher")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="keep the figures, and write their table into docs/")
    named = next((word for word in sys.argv[1:] if word in names), None)
    module = importlib.import_module(f"benchmarks.{named}") if named else None
    own = hasattr(module, "arguments")
    if own:
        module.arguments(parser)
    args = parser.parse_args()
    if module is None:
        if not args.write:
            parser.error("which benchmark? One of: " + ", ".join(names))
        _page.write()
        return 0
    for end in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(end, lambda number, frame: sys.exit(128 + number))  # clears up first
    stolen, load = Stolen(), os.getloadavg()[0]
    figures = module.run(args.short, args) if own else module.run(args.short)
    percent = stolen.percent()
    figures["stolen_percent"] = {"value": round(percent, 2), "unit": "%", "budget": None, "ok": True}
    if percent > DISTURBED:
        print(
            f"bench: the hypervisor took {percent:.1f} % of the CPU time; measure again on a quieter machine",
            file=sys.stderr,
        )
    if args.write:
        before = _page.results().get(args.name, {})
        more = module.kept(before) if hasattr(module, "kept") else {}
        if more is not None:
            words = [word for word in sys.argv[1:] if word not in ("--write", "--json")]
            simulated = args.name in SIMULATED
            _page.record(args.name, figures, " ".join(["scripts/bench", *words]), load, simulated, more)
            _page.write()
    if args.json:
        print(json.dumps({"bench": args.name, "simulated": args.name in SIMULATED, "figures": figures}))
    else:
        if hasattr(module, "details"):
            print(module.details(), "\n")
        print(f"{'figure':34} {'value':>12} {'unit':8} {'budget':>10}")
        for key, f in figures.items():
            verdict = "" if f.get("budget") is None else "ok" if f["ok"] else "MISSED"
            budget = "" if f.get("budget") is None else f"{f['budget']}"
            print(f"{key:34} {f['value']:>12.6g} {f['unit']:8} {budget:>10} {verdict}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
