"""The cluster's controller at its largest size: 5 000 nodes with 8 GPUs, 50 000 pods. `--pure`: choosing nodes and GPUs alone, in
this process, without an API server."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.benches import _cluster_pure


def arguments(parser) -> None:
    parser.add_argument("--pure", action="store_true", help="choosing alone, without an API server")


def run(short: bool, options) -> dict:
    return _cluster_pure.run(short)
