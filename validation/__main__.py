"""Checks on a real GPU what the simulated one cannot show, in under nine minutes per run and without a network.

usage: scripts/gpu-validate [--run NAME] [--seconds S] [--out FILE.json] [--simulated] [--short]
       scripts/gpu-validate --predict [--predictions FILE]

Root, one idle NVIDIA GPU, and the built C parts (scripts/build) are needed; the GPU's settings are not touched.
Containers are mount namespaces over an overlay of this machine's own files, so that its CUDA programs (PyTorch, CuPy,
nvidia-smi) run in them; shares are given to them by the shipped live-container applier. FILE is rewritten after every
phase; what there is no time for is left out from the end. --simulated runs the same to its end on a simulated GPU, to
keep this script ready; --short shortens the phases. Exit status: 0 all held, 1 something did not, 2 cannot run here.
"""

import argparse
import functools
import importlib
import os
import signal
import sys
from pathlib import Path

from validation import apart, boxes, frame, predict

RUNS = ("rules", "memory", "containers", "nvml", "boundary", "suspend", "physics", "shares", "priority")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=RUNS, default="memory")
    parser.add_argument(
        "--seconds", type=float, default=frame.TOTAL_SECONDS, help="of the whole run; later phases are left out"
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-validate.json"))
    parser.add_argument("--only", metavar="TEXT", nargs="+", default=(), help="phases whose name contains one of them")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--short", action="store_true")
    parser.add_argument(
        "--driver", help="version of the simulated driver; runs boundary and suspend: 615, 570, else 550"
    )
    parser.add_argument(
        "--limits", default="dmem", choices=("dmem", "dmem-keeps", "misc"), help="of the simulated driver 615"
    )
    parser.add_argument("--predict", action="store_true", help="only rewrite the file of predictions")
    parser.add_argument("--predictions", type=Path, help="default: data/validation/predictions.json")
    args = parser.parse_args()
    predict.FILE = args.predictions or predict.FILE
    if args.predict:
        predict.FILE.write_text(predict.text())
        return 0
    if os.geteuid():
        print("gpu-validate: needs root, because it mounts", file=sys.stderr)
        return 2
    if not args.simulated and not os.path.exists("/proc/driver/nvidia/version"):
        print("gpu-validate: no NVIDIA driver is loaded here; --simulated runs it on a simulated GPU", file=sys.stderr)
        return 2
    if not boxes.PROBE.exists() or not (boxes.BUILD / "libcuda.so.1").exists():
        print("gpu-validate: the C parts are not built; run scripts/build", file=sys.stderr)
        return 2
    if apart.FOLDER not in os.environ:
        return apart.again()

    for end in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(end, lambda number, frame: sys.exit(128 + number))  # ends what it started
    run = frame.Run(args.out, args.run, args.simulated, args.seconds, tuple(args.only))
    folder = Path(os.environ[apart.FOLDER])
    nodes: list[boxes.Node] = []
    run.phase("environment", 40, boxes.environment)
    scale = (
        boxes.SCALE
        if args.simulated and args.run not in ("rules", "memory", "boundary", "suspend", "containers")
        else 1
    )
    driver = args.driver or {
        "boundary": "615",
        "suspend": "570",
        "containers": "580",
        "nvml": "580",
        "rules": "580",
    }.get(args.run, "550")
    make = functools.partial(boxes.Node, folder, args.simulated, scale, driver, args.limits)
    run.phase("inventory", 60, lambda: nodes.append(make()) or boxes.inventory(nodes[0]))  # type: ignore[func-returns-value]
    if nodes:
        module = importlib.import_module(f"validation.{args.run}")
        module.validate(run, nodes[0], folder, args.simulated, args.short)
    return 0 if all(p["ok"] for p in run.results["phases"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
