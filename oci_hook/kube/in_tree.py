"""Whether a pod waits for our sums alone. Kubernetes' scheduler asks an extender only about nodes that its own filters accept, so
nobody asks us about a pod that finds the sums taken, and the scheduler itself preempts nobody of the same priority.

Read are the message of the condition PodScheduled (forms of Kubernetes 1.20 to 1.33) and the few filters that a pod on GPUs
commonly uses. A pod that uses others is left to the scheduler.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from oci_hook.kube.names import SUMS

SHORT = re.compile(r"(?:Insufficient ([^\s,]+?)|(Too many pods))\.?(?=[\s,]|$)")
KEEPS_OFF = ("NoSchedule", "NoExecute")
EXACT = ("persistentVolumeClaim", "ephemeral", "iscsi", "rbd", "gcePersistentDisk", "awsElasticBlockStore", "csi")


def waits_for_sums(pod: Mapping[str, Any]) -> bool:
    """pod: a whole API object."""
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    said = [one for one in status.get("conditions") or () if one.get("type") == "PodScheduled"]
    if not said or said[0].get("status") != "False" or said[0].get("reason") != "Unschedulable":
        return False
    message = str(said[0].get("message") or "").partition(" preemption: ")[0]  # added in 1.24
    short = {name or pods for name, pods in SHORT.findall(message)}
    return bool(short) and short <= set(SUMS) and plain(spec)


def plain(spec: Mapping[str, Any]) -> bool:
    """Whether `accepts` knows every filter that matters for the pod."""
    affinity = spec.get("affinity") or {}
    required = any(
        key.startswith("required") and value for kind in affinity.values() for key, value in (kind or {}).items()
    )
    spread = any(
        one.get("whenUnsatisfiable") != "ScheduleAnyway" for one in spec.get("topologySpreadConstraints") or ()
    )
    volumes = any(kind in volume for volume in spec.get("volumes") or () for kind in EXACT)
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    ports = any(port.get("hostPort") for one in containers for port in one.get("ports") or ())
    return not (required or spread or volumes or ports or spec.get("resourceClaims") or spec.get("schedulingGates"))


def accepts(node: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    """Whether the node's labels and taints let the pod in; a node that is not ready has a taint. Both: whole API objects."""
    spec, wanted = node.get("spec") or {}, pod.get("spec") or {}
    labels = node["metadata"].get("labels") or {}
    if spec.get("unschedulable") or node["metadata"].get("deletionTimestamp"):
        return False
    if any(labels.get(key) != value for key, value in (wanted.get("nodeSelector") or {}).items()):
        return False
    tolerations = wanted.get("tolerations") or ()
    taints = [taint for taint in spec.get("taints") or () if taint.get("effect") in KEEPS_OFF]
    return all(_tolerated(taint, tolerations) for taint in taints)


def _tolerated(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    for one in tolerations:
        if one.get("effect") not in (None, "", taint.get("effect")):
            continue
        exists = one.get("operator") == "Exists"
        if not one.get("key"):
            if exists:
                return True
            continue
        if one["key"] == taint.get("key") and (exists or (one.get("value") or "") == (taint.get("value") or "")):
            return True
    return False
