"""The memory of one process's context on each GPU, measured or estimated."""

from collections.abc import Iterable, Mapping

from oci_hook.core.inventory import Gpu

# The estimate where neither this GPU nor another of its model could be measured. Contexts of data-centre GPUs take 100 to 500 MiB;
# where they take more than this, the agent adds the rest (surcharge). `gpus --refresh` measures again.
ESTIMATE_MIB = 256


def asked_alone(gpus: Iterable[Gpu], measured: Mapping[str, int]) -> list[str]:
    """UUIDs of the MIG devices to ask one by one: of each kind on each GPU one that was not measured yet."""
    kinds = {
        (gpu.parent, gpu.memory_mib, gpu.name): gpu.uuid for gpu in gpus if gpu.parent and gpu.uuid not in measured
    }
    return sorted(kinds.values())


def figures(gpus: tuple[Gpu, ...], measured: Mapping[str, int], estimate: int = ESTIMATE_MIB) -> dict[str, int]:
    """MiB of one context by UUID. A GPU that was not measured, as it is full, has the figure of another one of its model,
    a MIG device that of its kind or else of its GPU's model, and what is known nowhere is estimated.

    A measured 0 means that NVML did not show the context. estimate: 0 for simulated GPUs, whose contexts may take nothing.
    """
    known = {gpu.name: size for gpu in gpus if (size := measured.get(gpu.uuid, 0))}

    def of(gpu: Gpu) -> int:
        model = gpu.name.partition(" MIG ")[0] if gpu.parent else gpu.name
        return measured.get(gpu.uuid) or known.get(gpu.name) or known.get(model) or estimate

    return {gpu.uuid: of(gpu) for gpu in gpus}
