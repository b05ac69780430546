"""The cluster of scripts/cluster, for tests: one for all of them, and what they do with it."""

from typing import Any

from testbed import REPO
from testbed.cluster import programs
from testbed.cluster.cluster import Cluster, check
from testbed.cluster.images import PROBE
from testbed.cluster.machine import wait
from testbed.cluster.node import Gpus, Node
from testbed.cluster.programs import CannotRun
from testbed.cluster.smoke import holders, pod

__all__ = [
    "POLICY",
    "PROBE",
    "REPO",
    "CannotRun",
    "Cluster",
    "Gpus",
    "Node",
    "check",
    "holders",
    "packing",
    "pod",
    "programs",
    "wait",
]
NODES = (Gpus(2, "16Gi"), Gpus(2, "16Gi"), Gpus(4, "24Gi"))  # of the cluster that the tests share
POLICY = "policy/v1" if programs.minor() >= 21 else "policy/v1beta1"  # of PodDisruptionBudgets


def packing(resource: str, weight: int) -> dict[str, Any]:
    """A scheduler's profile that packs by this resource: a plugin of its own until Kubernetes 1.22, then a strategy."""
    old = programs.minor() < 23
    plugin = "NodeResourcesMostAllocated" if old else "NodeResourcesFit"
    others = ["NodeResourcesBalancedAllocation", "ImageLocality", "NodeResourcesLeastAllocated" if old else plugin]
    by = {"resources": [{"name": resource, "weight": 1}]}
    return {
        "schedulerName": "default-scheduler",
        "plugins": {
            "score": {
                "disabled": [{"name": name} for name in others],
                "enabled": [{"name": plugin, "weight": weight}],
            }
        },
        "pluginConfig": [{"name": plugin, "args": by if old else {"scoringStrategy": {"type": "MostAllocated", **by}}}],
    }
