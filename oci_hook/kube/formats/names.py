"""Names of the cluster part: annotations, labels, resources, taints. Ours begin with gpu-hook.io/."""

from oci_hook.core.layout import ALLOC, ASKED, NODE_PLACEMENT, PREFIX_KEY

__all__ = ["ALLOC", "ASKED", "NODE_PLACEMENT", "PREFIX_KEY"]

RUNTIME_CLASS = "gpu-hook"
CONTROLLER = (
    "gpu-hook-controller"  # its Deployment, Service, Lease and Secret, its name in certificates, its tokens' audience
)
NODE_KEY = "/v1/node-key"  # path at the controller, by which a node gets its keys
CA_CONFIG_MAP = "gpu-hook-ca"  # ca.crt, generation

# On pods.
NODE_EXCLUSIVE = PREFIX_KEY + "node"  # also with .CONTAINER; "exclusive": no other pods on the node but DaemonSets'
APART_FROM = PREFIX_KEY + "apart-from"  # also with .CONTAINER
DECIDED = (ALLOC, PREFIX_KEY + "grant")  # only the controller and the runtime write these

# On nodes.
INVENTORY = PREFIX_KEY + "inventory"  # annotation: kube/formats/node_info.py
LEDGER = PREFIX_KEY + "ledger"  # annotation: kube/formats/node_info.py
NODE_LABEL = PREFIX_KEY + "node"  # label: "true" where gpu-hook is to run
POLICY_LABEL = PREFIX_KEY + "policy"  # label: default policy of the node's containers
MODE_LABEL = PREFIX_KEY + "mode"  # label: "whole" or "shared"
ROOM = PREFIX_KEY + "room"  # label: kube/controller/act/waker.py
FRAGMENTED = PREFIX_KEY + "fragmented"  # taint: kube/preemption/fragments.py

# On namespaces.
NAMESPACE_LABEL = PREFIX_KEY + "namespace"
ENABLED = "enabled"  # its value: our webhooks see the namespace's pods, which may get GPUs

# Extended resources: sums per node (capacity) and per pod (requests of its first container that asks).
GPUS = PREFIX_KEY + "gpus"
MEMORY = PREFIX_KEY + "memory-mib"
COMPUTE = PREFIX_KEY + "compute"
OFFLINE_COMPUTE = PREFIX_KEY + "offline-compute"
SUMS = (GPUS, MEMORY, COMPUTE, OFFLINE_COMPUTE)

# Other systems' labels and taints, with their meaning (T9k's and qGPU's documentation).
T9K_MODE = "sched.tensorstack.dev/node-alloc-mode"  # xgn: whole GPUs and whole nodes; sgn: shares
T9K_TAINT = "sched.tensorstack.dev/xgn-mode"
T9K_GROUP = "scheduler.tensorstack.dev/group-name"  # label of a pod: the group whose quota it uses
T9K_ACCELERATOR = "sched.tensorstack.dev/accelerator"
QGPU_POLICY = ("tke.cloud.tencent.com/qgpu-schedule-policy", "qgpu-schedule-policy")
ENABLING = {
    "gpu-hook.io/node": "true",
    "qgpu-device-enable": "enable",
    "nvidia-device-enable": "enable",
    T9K_ACCELERATOR: "nvidia-gpu",
}
