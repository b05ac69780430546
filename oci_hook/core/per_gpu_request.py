"""Parses the `request` annotation, which describes each GPU of a container by itself, so that they may differ.

    {"CONTAINER": [{"memory": "4Gi", "compute": 30, "device": 0}, ...], ...}     or     [{...}, ...]

The list alone applies to the same containers as a key without a suffix. An entry has the parts PARTS, with the values of
the annotation keys of the same names, as text or as number; an empty entry is a whole GPU. Every function raises
ValueError with the words to put after the value in a message.
"""

from oci_hook.core import units, value_parsers
from oci_hook.core.terms import GpuRequest

PARTS = ("memory", "compute", "device")


def gpus(value: object) -> tuple[GpuRequest, ...]:
    """The list of one container -> what is asked of each GPU."""
    if not isinstance(value, list) or not 1 <= len(value) <= value_parsers.MAX_GPUS:
        raise ValueError(f"has no list of 1 to {value_parsers.MAX_GPUS} GPUs for this container")
    entries = tuple(entry(item, number) for number, item in enumerate(value, 1))
    named = [gpu.device for gpu in entries if gpu.device is not None]
    for device in named:
        if named.count(device) > 1:
            raise ValueError(f"names GPU {device} twice")
    return entries


def entry(item: object, number: int) -> GpuRequest:
    if not isinstance(item, dict):
        raise ValueError(f"GPU {number} is not an object with {', '.join(PARTS)}")
    for key in item:
        if key not in PARTS:
            raise ValueError(f"GPU {number} has {units.show(key)}; a GPU has {', '.join(PARTS)}")
    memory = text(item, "memory", number)
    compute = text(item, "compute", number)
    device = text(item, "device", number)
    try:
        return GpuRequest(
            None if device is None else value_parsers.device(device),
            None if memory is None else units.memory(memory),
            None if compute is None else units.percent(compute),
        )
    except ValueError as e:
        said = ", ".join(f"{key} {units.show(str(item[key]))}" for key in PARTS if key in item)
        raise ValueError(f"GPU {number} ({said}) {e}") from None


def text(item: "dict[str, object]", key: str, number: int) -> str | None:
    """A part of an entry, as the text of an annotation."""
    value = item.get(key)
    if key not in item:
        return None
    if type(value) is int and 0 <= value <= units.MAX_MEMORY_MIB:
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"GPU {number}: {key} is neither text nor a whole number in bounds")
    return value
