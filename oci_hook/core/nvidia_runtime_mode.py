"""Which steps of a plan stay gpu-hook's where the NVIDIA runtime brings the driver's files, and which it has more.

The rest of these modes is in apply/nvidia_runtime_mode.py.
"""

from oci_hook.core.boundary import NO_LIMIT, limits_of
from oci_hook.core.layout import MEMORY_WORDS, SHIM_DIR
from oci_hook.core.plan import Bind, DeviceNode
from oci_hook.core.units import MIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_hook.core.grant import Grant
    from oci_hook.core.inventory import Inventory
    from oci_hook.core.plan import ImageFacts, Step
    from oci_hook.core.rules import Rules


def own_steps(
    plan: "Iterable[Step]", inventory: "Inventory", image: "ImageFacts", prefix: str, late: bool
) -> "tuple[Step, ...]":
    """The plan without the driver's files, except those that cover libraries of the image.

    late: the NVIDIA runtime acts after us. Then it also makes the device nodes, and our hook mounts the shims later, when
    its mounts are there: a file of ours would be in the way where it makes a link. The device rules stay in the plan,
    because `systemctl daemon-reload` drops rules that a hook adds.
    """
    shims = f"{prefix}/{SHIM_DIR}/"
    files = {file.path for file in inventory.files} - {inventory.libcuda, inventory.libnvml}
    out = []
    for step in plan:
        if isinstance(step, Bind):
            if step.source in files and step.destination not in image.cover_other:
                continue
            if late and step.source.startswith(shims):
                continue
        elif late and isinstance(step, DeviceNode):
            continue
        out.append(step)
    return tuple(out)


def memory_words(grant: "Grant", inventory: "Inventory", rules: "Rules", cgroup: str) -> dict[str, str | None]:
    """The variables from which the toolkit's hook apply-cuda-memory-limits takes the driver's limits; None: absent.

    The hook sets one pair of limits, in MiB, on each GPU of the container, and may run after ours has set the grant's.
    So the pair is the grant's where that is the same on all its GPUs. Otherwise both are absent, and the hook sets
    nothing: where shares differ, where a GPU is whole, where the limit is the shim's alone, and where the hook would
    fail and stop the container, since the driver has no limits or the cgroup is not named as systemd's are.

    rules: the node's. cgroup: the spec's cgroupsPath.
    """
    words: dict[str, str | None] = dict.fromkeys(MEMORY_WORDS)
    limits = limits_of(grant, inventory, rules) if _of_systemd(cgroup) else ()
    pairs = {(limit.soft, limit.hard) for limit in limits}
    if len(pairs) == 1 and len(limits) == len(grant.shares):
        [(soft, hard)] = pairs
        if hard != NO_LIMIT:
            words["NVIDIA_GPU_MEMORY_REQUEST"], words["NVIDIA_GPU_MEMORY_LIMIT"] = str(soft // MIB), str(hard // MIB)
    return words


def _of_systemd(cgroup: str) -> bool:
    """True for SLICE:PREFIX:NAME, as runtimes take it with systemd's driver of cgroups. systemd.slice(5): a slice's name has
    its parents before it, with dashes between."""
    slice_, *rest = cgroup.split(":")
    parents = slice_.removesuffix(".slice").split("-")
    named = slice_.endswith(".slice") and "/" not in slice_ and all(parents)
    return len(rest) == 2 and (named or slice_ in ("", "-.slice"))
