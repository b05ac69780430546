"""The cluster of scripts/cluster, for tests: one for all of them, and what they do with it."""

from scripts.cluster_lab.cluster import Cluster, check
from scripts.cluster_lab.images import PROBE
from scripts.cluster_lab.machine import wait
from scripts.cluster_lab.node import Gpus, Node
from scripts.cluster_lab.programs import REPO, CannotRun
from scripts.cluster_lab.smoke import holders, pod

__all__ = ["PROBE", "REPO", "CannotRun", "Cluster", "Gpus", "Node", "check", "holders", "pod", "wait"]
NODES = (Gpus(2, "16Gi"), Gpus(2, "16Gi"), Gpus(4, "24Gi"))  # of the cluster that the tests share
