"""The GPU page: who shares a GPU, and how. Twin of shim/pages/gpu_page.h.

Weights are parts of the GPU in hundredths of a percent. A guarantee is its per cent; containers without one share what
the guarantees of the whole GPU leave, in equal parts, and at least one per cent together: none is ever starved.
"""

from struct import Struct

from oci_hook.core.grant import Grant, Share
from oci_hook.core.terms import CLASS_NUMBERS

MAGIC = 0x3144524143504847
VERSION = 1
SIZE = 4096
SEQ_OFFSET = 16
SLOTS = 64
SLOT_FILE_SIZE = 8192
ONE_PERCENT = 100  # of weight
PPM = 10_000  # of one per cent

_HEAD = Struct("<QIIIIQQ48sI36x")
_SLOT = Struct("<BBHIIIQQ")


def on_gpu(uuid: str, grants: tuple[Grant, ...]) -> "list[tuple[Grant, Share]]":
    """The grants that have a slot on this GPU, with their shares of it, by slot."""
    found = [(grant, share) for grant in grants for share in grant.shares if share.slot and share.uuid == uuid]
    return sorted(found, key=lambda pair: pair[1].slot)


def free_slot(uuid: str, grants: tuple[Grant, ...]) -> int:
    """The lowest free slot of a GPU, as Share.slot has it; 0 when all are taken."""
    taken = {share.slot for _, share in on_gpu(uuid, grants)}
    return next((slot for slot in range(1, SLOTS + 1) if slot not in taken), 0)


def guaranteed(grant: Grant, share: Share) -> int:
    """Per cent of the GPU that are the container's before others'; 0 for best-effort."""
    return 0 if grant.terms.policy == "best-effort" or share.whole else share.compute


def cap(grant: Grant, share: Share) -> int:
    """Per cent of the GPU that it may never exceed, also alone; 0 where it may have all of it."""
    if grant.terms.policy == "best-effort" or share.whole or not share.compute:
        return 0
    most = share.compute if grant.terms.policy == "fixed-share" else share.compute_limit
    return most if most < 100 else 0


def gpu_page(
    uuid: str, grants: tuple[Grant, ...], generation: int, time_scale: int = 1, seq: int = 0, tiers: int = 0
) -> bytes:
    """The whole page of a GPU from all living grants of the node. tiers: the GPU's bits of core/tiers.py."""
    there = [(grant, share, guaranteed(grant, share)) for grant, share in on_gpu(uuid, grants)]
    firm = [percent for _, _, percent in there if percent]
    left = max(1, 100 - sum(firm))
    equal = max(1, left * ONE_PERCENT // max(1, len(there) - len(firm)))
    present = 0
    page = bytearray(SIZE)
    for grant, share, percent in there:
        slot = share.slot - 1
        present |= 1 << slot
        _SLOT.pack_into(
            page,
            _HEAD.size + slot * _SLOT.size,
            CLASS_NUMBERS[grant.terms.priority_class],
            1 if grant.frozen else 0,
            percent * ONE_PERCENT or equal,
            cap(grant, share) * PPM,
            grant.linger,
            0,
            grant.born,
            0,
        )
    _HEAD.pack_into(page, 0, MAGIC, VERSION, SIZE, seq, time_scale, generation, present, uuid.encode(), tiers)
    return bytes(page)


def head(page: bytes) -> tuple[int, int, int]:
    """(seq, generation, time scale) of a page, or of whatever is in its place: then (1, 0, 1), not to be read."""
    if len(page) < _HEAD.size:
        return 1, 0, 1
    magic, version, size, seq, time_scale, generation, _, _, _ = _HEAD.unpack_from(page)
    if (magic, version, size) != (MAGIC, VERSION, SIZE):
        return 1, 0, 1
    return seq, generation, max(1, time_scale)


def seq_of(generation: int) -> int:
    """The seqlock's word of a page that is complete: even, and another one for each generation."""
    return 2 * generation & 0xFFFFFFFF


def born(page: bytes) -> dict[int, int]:
    """By Share.slot: the `born` of each grant in a page; none of whatever is in its place."""
    if not head(page)[1] or len(page) < SIZE:
        return {}
    present = _HEAD.unpack_from(page)[6]
    at = _HEAD.size
    slots = [i for i in range(SLOTS) if present >> i & 1]
    return {i + 1: _SLOT.unpack_from(page, at + i * _SLOT.size)[6] for i in slots}


def tiers_of(page: bytes) -> int:
    """The bits of a page; 0 of whatever is in its place."""
    return int(_HEAD.unpack_from(page)[8]) if head(page)[1] else 0
