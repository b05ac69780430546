"""The node's placement rules, as compiled from settings: bounds and defaults that requests and `allocate` obey."""

from oci_hook.core.value import Value


class Rules(Value):
    """Integers in MiB and percent points.

    memory_reserve: MiB of each GPU that is never granted. memory_step / memory_min: a share's granularity and floor.
    compute_step: likewise for compute. max_shares_per_gpu: containers on one GPU. memory_per_share: MiB of a GPU's
    memory for each container that may share it, 0: no such bound. whole_gpus: "exclusive" or "shared", what a request
    without memory and compute means. dialects: names of the enabled dialect tables. qgpu_memory_unit: "MiB", "GiB", or
    "none" where the dialect qgpu is off. linger: how long a container still counts as busy after its work, in
    nanoseconds, 0: as long as suits it.
    """

    default_policy: str = "burst-share"
    placement: str = "by-class"
    whole_gpus: str = "exclusive"
    memory_reserve: int = 0
    memory_step: int = 1
    memory_min: int = 1
    compute_step: int = 1
    max_shares_per_gpu: int = 64
    memory_per_share: int = 0
    trust_env: bool = False
    dialects: tuple[str, ...] = ("t9k", "gpu-manager", "hami", "nvidia-volumes")
    qgpu_memory_unit: str = "none"
    linger: int = 0
