"""The node's inventory -> the devices of its ResourceSlices (resource.k8s.io/v1)."""

from collections.abc import Collection
from typing import Any

from oci_hook.core.allocate import places, round_up
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.rules import Rules
from oci_hook.core.units import MIB
from oci_hook.kube.formats import quantity
from oci_hook.kube.formats.claim_words import COMPUTE, DRIVER, MEMORY, SHARES

OTHERS = f"{DRIVER}/taken"  # taint: somebody without a claim holds a part of the GPU
MAX_DEVICES = (
    64  # of a slice whose devices have taints (resource.k8s.io, ResourceSliceMaxDevicesWithTaintsOrConsumesCounters)
)
SUFFIXES = ("Mi", "Gi", "Ti")


def device_name(uuid: str) -> str:
    """The GPU's UUID as a DNS label: a number could be another GPU's by the time a claim is prepared."""
    return "".join(c if c.isascii() and (c.isalnum() or c == "-") else "-" for c in uuid.lower())[:63].strip("-")


def devices(inventory: Inventory, rules: Rules, taken: Collection[str], roots: dict[str, str]) -> list[dict[str, Any]]:
    """taken: the UUIDs of GPUs of which others than claims have a part. roots: the PCI root by UUID. A GPU that has nothing to
    grant is left out."""
    found = [_device(gpu, inventory, rules, gpu.uuid in taken, roots.get(gpu.uuid, "")) for gpu in inventory.gpus]
    return [device for device in found if device is not None]


def parts(devices: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The devices of each slice; one slice where there is none."""
    return [devices[n : n + MAX_DEVICES] for n in range(0, len(devices), MAX_DEVICES)] or [[]]


def least(gpu: Gpu, rules: Rules) -> int:
    """The smallest share in MiB: the rules' own, and what one process's context takes."""
    return round_up(max(rules.memory_min, gpu.context_mib, 1), rules.memory_step)


def most(gpu: Gpu, rules: Rules) -> int:
    """What can be granted of the GPU in MiB, in the rules' steps."""
    memory = gpu.memory_mib - rules.reserve(gpu.memory_mib)
    return memory - memory % rules.memory_step


def _device(gpu: Gpu, inventory: Inventory, rules: Rules, taken: bool, root: str) -> dict[str, Any] | None:
    low, high = least(gpu, rules), most(gpu, rules)
    if high < low:
        return None
    # Without a step: Kubernetes 1.36 rounds up in 64 bits, and a claim of 8Ei would consume less than nothing of the GPU.
    span, part = {"min": size(low)}, {"min": "0"}
    each = {"default": "1", "validValues": ["1"]}  # each claim consumes one, also one that does not name it
    device: dict[str, Any] = {
        "name": device_name(gpu.uuid),
        "allowMultipleAllocations": True,
        "attributes": _attributes(gpu, inventory, root),
        "capacity": {
            MEMORY: {"value": size(high), "requestPolicy": {"default": size(high), "validRange": span}},
            COMPUTE: {"value": "100", "requestPolicy": {"default": "0", "validRange": part}},
            SHARES: {"value": str(places(gpu, rules)), "requestPolicy": each},
        },
    }
    if taken:
        device["taints"] = [{"key": OTHERS, "effect": "NoSchedule"}]
    return device


def _attributes(gpu: Gpu, inventory: Inventory, root: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "uuid": {"string": gpu.uuid[:64]},
        "index": {"int": gpu.index},
        "type": {"string": "mig" if gpu.parent else "gpu"},
    }
    if gpu.name:
        found["productName"] = {"string": gpu.name[:64]}
    if gpu.parent:
        found["parentUUID"] = {"string": gpu.parent[:64]}
    if gpu.numa >= 0:
        found["numa"] = {"int": gpu.numa}
    for name, text in (("cudaComputeCapability", gpu.arch), ("driverVersion", inventory.driver_version)):
        if known := version(text):
            found[name] = {"version": known}
    if root:
        found["resource.kubernetes.io/pcieRoot"] = {"string": root}
    return found


def version(text: str) -> str:
    """8.9 -> 8.9.0, 550.163.01 -> 550.163.1 (semver.org has three numbers without leading zeros); "" for anything else."""
    numbers = text.split(".")
    if not text or len(numbers) > 3 or not all(n.isascii() and n.isdecimal() and len(n) < 10 for n in numbers):
        return ""
    return ".".join(str(int(n)) for n in [*numbers, "0", "0"][:3])


def size(mib: int) -> str:
    """The quantity in the form in which the API server writes it."""
    number, suffix = mib, 0
    while number and number % 1024 == 0 and suffix < len(SUFFIXES) - 1:
        number, suffix = number // 1024, suffix + 1
    return f"{number}{SUFFIXES[suffix]}"


def mib(text: object) -> int:
    """A quantity of bytes in MiB, rounded down: a node never gives more than the scheduler has counted. Raises ValueError."""
    return quantity.milli(text) // (1000 * MIB) if isinstance(text, str) else _no_quantity()


def per_cent(text: object) -> int:
    """Compute, rounded up; a node refuses fractions. Raises ValueError."""
    return -(-quantity.milli(text) // 1000) if isinstance(text, str) else _no_quantity()


def same(published: object, wanted: list[dict[str, Any]]) -> bool:
    """Whether these devices are published. The server adds to a taint when it was set."""
    if not isinstance(published, list):
        return not wanted and published is None
    return [_plain(device) for device in published] == [_plain(device) for device in wanted]


def _plain(device: Any) -> Any:
    if not isinstance(device, dict) or not isinstance(device.get("taints"), list):
        return device
    taints = [
        {k: v for k, v in taint.items() if k != "timeAdded"} for taint in device["taints"] if isinstance(taint, dict)
    ]
    return {**device, "taints": taints}


def _no_quantity() -> int:
    raise ValueError("is not a quantity")
