"""The virtual-time model's predictions for the cells, made before a GPU is measured. `scripts/gpu-validate --predict` writes it."""

import json

from testbed import REPO

from .frame import Json

FILE = REPO / "data/validation/predictions.json"


def load() -> Json:
    return dict(json.loads(FILE.read_text())) if FILE.exists() else {}


def rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return {k: rounded(v) for k, v in value.items()} if isinstance(value, dict) else value


def text() -> str:
    """The predictions' file; the same for the same model and calibration."""
    from benchmarks import priority as bench
    from gpu_hook_simulator import model_run
    from testbed.load import cells

    from . import memory, priority, shares

    out: Json = {
        "what": "predictions of the virtual-time model, made before any run on a GPU",
        "calibration": model_run.Calibration().digest,
        "shares": {},
        "priority": {},
        "memory": memory.expected(),
    }
    for native, word in ((True, "native"), (False, "gpu-hook")):
        for cell in shares.CELLS:
            if cell.native or not native:
                out["shares"][f"{word}: {cell.name}"] = rounded(cells.predict(cell, native))
        for pair in priority.PAIRS:
            out["priority"][f"{word}: {pair.name}"] = rounded(bench.predict(pair, native))
    return json.dumps(out, indent=1) + "\n"
