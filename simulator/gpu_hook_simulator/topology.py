"""The topology of simulated GPUs: their NUMA nodes, and which pairs an NVLink joins.

NVML answers from the GPU files (gpu.h numa, nvlink). The driver root's sys/ shows the NUMA nodes as well, as /sys does
for real GPUs.
"""

from pathlib import Path
from struct import pack

from oci_hook.core.value import Value

NUMA_AT, NVLINK_AT = 244, 424  # gpu.h struct gpu_head


class Topology(Value):
    """numa: the node of each GPU, () if not known. links: pairs of GPUs with an NVLink between them."""

    numa: tuple[int, ...] = ()
    links: tuple[tuple[int, int], ...] = ()


def parse(numa: str, links: str, gpus: int) -> Topology:
    """Parse --numa and --nvlink. Raises ValueError."""
    nodes = tuple(_number(word, 255) for word in numa.split(",")) if numa else ()
    if nodes and len(nodes) != gpus:
        raise ValueError(f"{len(nodes)} nodes for {gpus} GPUs")
    pairs = []
    for word in links.split(",") if links else ():
        one, _, other = word.partition("-")
        pair = (_number(one, gpus - 1), _number(other, gpus - 1))
        if pair[0] == pair[1]:
            raise ValueError(f"{word[:20]!r} joins a GPU with itself")
        pairs.append(pair)
    return Topology(nodes, tuple(pairs))


def _number(text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= most):
        raise ValueError(f"{text[:20]!r} is no number from 0 to {most}")
    return int(text)


def lay(root: Path, files: Path, topology: Topology, pci: dict[int, str]) -> None:
    """Write the topology into the GPU files and to root/sys. pci: bus id by GPU number, as NVML writes it."""
    joined = dict.fromkeys(pci, 0)
    for one, other in topology.links:
        joined[one] |= 1 << other
        joined[other] |= 1 << one
    for minor, bus in pci.items():
        with open(files / str(minor), "r+b") as f:
            f.seek(NVLINK_AT)
            f.write(pack("<I", joined[minor]))
            if topology.numa:
                f.seek(NUMA_AT)
                f.write(pack("<i", topology.numa[minor]))
        if topology.numa:
            folder = root / "sys/bus/pci/devices" / bus[4:].lower()
            folder.mkdir(parents=True)
            (folder / "numa_node").write_text(f"{topology.numa[minor]}\n")
