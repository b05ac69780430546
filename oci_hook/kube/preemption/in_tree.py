"""Finds pods that wait for our sums only. Kubernetes' scheduler asks an extender only about nodes that pass its own filters, so it
never asks us about such a pod, and it preempts no pod of the same priority.

The message of the condition PodScheduled tells (forms of Kubernetes 1.20 to 1.36). A pod with requirements that kube/pod/hosts.py does
not judge is left to the scheduler.
"""

import re
from collections.abc import Mapping
from typing import Any

from oci_hook.kube.formats.names import SUMS
from oci_hook.kube.pod.asked import is_tried
from oci_hook.kube.pod.hosts import rules_about_others

FEATURES = "match Pod's required features"  # of nodes with older kubelets, by NodeDeclaredFeatures
SHORT = re.compile(r"(?:Insufficient ([^\s,]+?)|(Too many pods))\.?(?=[\s,]|$)")
EXACT = ("persistentVolumeClaim", "ephemeral", "iscsi", "rbd", "gcePersistentDisk", "awsElasticBlockStore", "csi")


def waits_for_sums(pod: Mapping[str, Any]) -> bool:
    """True if the pod waits for our sums only. pod: a whole API object."""
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    said = [one for one in status.get("conditions") or () if one.get("type") == "PodScheduled"]
    if not said or not is_tried(pod) or said[0].get("status") != "False" or said[0].get("reason") != "Unschedulable":
        return False
    message = str(said[0].get("message") or "").partition(" preemption: ")[0]  # added in 1.24
    short = {name or pods for name, pods in SHORT.findall(message)}
    return bool(short) and short <= set(SUMS) and FEATURES not in message and plain(spec)


def plain(spec: Mapping[str, Any]) -> bool:
    """True if kube/pod/hosts.py judges all of the pod's requirements."""
    volumes = any(kind in volume for volume in spec.get("volumes") or () for kind in EXACT)
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    ports = any(port.get("hostPort") for one in containers for port in one.get("ports") or ())
    return not (volumes or ports or spec.get("resourceClaims") or rules_about_others({"spec": spec}))
