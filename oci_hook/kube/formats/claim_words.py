"""Names of our part of resource.k8s.io/v1: the driver, its DeviceClasses and capacities, the words of a claim's configuration."""

from oci_hook.core.dialects import native

DRIVER = "gpu-hook.io"
GROUP = "resource.k8s.io/v1"
SHARE_CLASS, GPU_CLASS = f"gpu-share.{DRIVER}", f"gpu.{DRIVER}"  # packaging/kubernetes/dra/classes.yaml
# Capacities of a device: bytes, per cent, how many may have a part.
MEMORY, COMPUTE, SHARES = "memory", "compute", "shares"
API, KIND = f"{DRIVER}/v1", "Share"  # of the opaque configuration
BY_CLAIM = ("memory", "compute", "gpus", "devices")  # words that the claim itself says
UNPLACED = ("memory-request", "placement", "apart-from", "node")  # words that Kubernetes' scheduler does not know
WORDS = tuple(key for key in native.KEYS if key not in (*BY_CLAIM, *UNPLACED))
NO_ADMIN = f"adminAccess is not served by {DRIVER}; ask for a share"  # of GH-102
