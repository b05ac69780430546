"""Run "rules": does the driver answer as expected, and does a program in a container get the same answers?"""

import json
import os
import sys
from pathlib import Path

from testbed import REPO

from .boxes import Node, box
from .frame import Json, Run, run

PROGRAM = Path(__file__).with_name("driver_rules.py")
FILE = REPO / "data/validation/rules-predictions.json"
FIGURES = ("us", "count")  # no two GPUs agree on them
# Work of one kind without end, and how much of it was done in the time: bytes of sets and copies within the GPU.
REPEAT = """
import sys; sys.argv = ["", "none"]; sys.path.insert(0, %r)
from driver_rules import *
primary(); settle()
on, a, b, size = stream(), memory(8 * MIB), memory(8 * MIB), int(%d)
def batch():
    for _ in range(64):
        cuda.%s
    call("cuStreamSynchronize", on)
batch(); begin, n = time.monotonic(), 0
while time.monotonic() - begin < %f: batch(); n += 64
print(json.dumps(n / (time.monotonic() - begin)))
"""
CALLS = {
    "sets": "cuMemsetD8Async(a, 1, Size(size), on)",
    "copies": "cuMemcpyDtoDAsync_v2(b, a, Size(size), on)",
}
CEILING = 20


def asked(text: str) -> Json:
    found = json.loads(text.strip().splitlines()[-1])
    assert isinstance(found, dict)
    return found


def differences(one: Json, two: Json) -> list[str]:
    """The answers of `two` that differ from `one`'s, but for figures."""
    out = []
    for rule in sorted({*one, *two}):
        a, b = one.get(rule, {}), two.get(rule, {})
        for what in sorted({*a, *b} - {*FIGURES}):
            if a.get(what) != b.get(what):
                out.append(f"{rule}: {what}: {b.get(what)}, not {a.get(what)}")
    return out


def ceilings(node: Node, folder: Path, short: bool) -> Json:
    """Sets and copies per second in a container with a ceiling, as a part of those in one without."""
    out: Json = {}
    seconds = 0.3 if short else 1.5
    wishes: list[dict[str, str]] = [{}, {"gpu-hook.io/compute": str(CEILING), "gpu-hook.io/policy": "fixed-share"}]
    for number, wish in enumerate(wishes):
        with box(node, folder / f"ceiling{number}", {"gpu-hook.io/memory": "4Gi", **wish}) as inside:
            for what, made in CALLS.items():
                for size in (4096, (1 << 20) - 1, 8 << 20):
                    code = REPEAT % (str(PROGRAM.parent), size, made, seconds)
                    figure = json.loads(inside([sys.executable, "-c", code], 60).strip().splitlines()[-1])
                    out.setdefault(f"{what} of {size}", []).append(figure)
    return {name: {"per_s": round(a), "part": round(b / a, 3)} for name, (a, b) in out.items()}


def validate(run_: Run, node: Node, folder: Path, simulated: bool, short: bool) -> None:
    found: dict[str, Json] = {}
    argv = [sys.executable, str(PROGRAM)]

    def bare() -> Json:
        found["bare"] = asked(run(argv, 200, env=dict(os.environ)))
        before = json.loads(FILE.read_text())
        return {"answers": found["bare"], "not_as_predicted": differences(before, found["bare"])}

    def boxed() -> Json:
        with box(node, folder / "rules", {"gpu-hook.io/memory": "4Gi", "gpu-hook.io/compute": "50"}) as inside:
            answers = asked(inside(argv, 200))
        other = differences(found.get("bare", {}), answers)
        if other:
            raise RuntimeError(f"a container gets other answers: {json.dumps(other)}")
        return {}

    run_.phase("driver", 120, bare)
    run_.phase("in a container", 120, boxed)
    run_.phase("ceiling", 60, lambda: ceilings(node, folder, short))
