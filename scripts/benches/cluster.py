"""The cluster's controller. `--pure`: choosing nodes and GPUs alone at its largest size, 5 000 nodes with 8 GPUs and 50 000 pods,
in this process. Otherwise also a real kube-apiserver, etcd and kube-scheduler with 1 000 nodes as plain objects (no kubelet, no
container; --short: 200 nodes): pods per second beside the plain scheduler's, the controller's latencies, its cold start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.benches import _cluster_copy, _cluster_pure, _cluster_real


def arguments(parser) -> None:
    parser.add_argument("--nodes", type=int, action="append")
    parser.add_argument("--pure", action="store_true", help="choosing alone, without an API server")


def run(short: bool, options) -> dict:
    figures = _cluster_pure.run(short)
    if not options.pure:
        figures |= _cluster_copy.run(short)
        found, rows = _cluster_real.run(short, tuple(options.nodes or (1000,)))
        figures |= found
        for row in rows:
            print(row)
    return figures
