"""The GPU page: which containers share a GPU, and how. shim/pages/gpu_page.h has the same layout.

A weight is a part of the GPU in hundredths of a per cent. A container with a guarantee has its per cent as weight. The
containers without one divide what the guarantees leave, in equal parts and at least one per cent together, so that none
of them starves; guarantees of class offline leave less to offline containers alone, and the others' to the others. Weights
count among containers of one class. Those of class online that compete freely (Grant.competes) have equal ones, whatever they
have booked.
"""

from _struct import Struct  # `struct` is one more file to read

from oci_hook.core.grant import Grant, Share
from oci_hook.core.terms import CLASS_NUMBERS, OFFLINE, ONLINE

MAGIC = 0x3130555047504847
VERSION = 1
SIZE = 4096
SEQ_OFFSET = 16
SLOTS = 64
SLOT_FILE_SIZE = 8192
ONE_PERCENT = 100  # of weight
PPM = 10_000  # of one per cent

_HEAD = Struct("<QIIIIQQ48sI36x")
_SLOT = Struct("<BBHIIIQQ")
COUNTS_OFFSET = _HEAD.size + SLOTS * _SLOT.size


def on_gpu(uuid: str, grants: tuple[Grant, ...]) -> "list[tuple[Grant, Share]]":
    """The grants that have a slot on this GPU's page, with their shares of the GPU, in the order of the slots."""
    found = [(grant, share) for grant in grants for share in grant.shares if share.slot and share.uuid == uuid]
    return sorted(found, key=lambda pair: pair[1].slot)


def free_slot(uuid: str, grants: tuple[Grant, ...]) -> int:
    """The lowest free slot on the GPU's page, as Share.slot has it; 0 when all are taken."""
    taken = {share.slot for _, share in on_gpu(uuid, grants)}
    return next((slot for slot in range(1, SLOTS + 1) if slot not in taken), 0)


def guaranteed(grant: Grant, share: Share) -> int:
    """The per cent of the GPU that the container is guaranteed; 0 for best-effort."""
    return 0 if grant.terms.policy == "best-effort" or share.whole else share.compute


def cap(grant: Grant, share: Share) -> int:
    """The per cent of the GPU that the container may never exceed, even if it is alone there; 0: no such limit."""
    if grant.terms.policy == "best-effort" or share.whole or not share.compute:
        return 0
    most = share.compute if grant.terms.policy == "fixed-share" and not grant.competes else share.compute_limit
    return most if most < 100 else 0


def weights(uuid: str, grants: tuple[Grant, ...]) -> dict[int, int]:
    """The weight of each container on the GPU, by Share.slot. A suspended one leaves its own to the others."""
    all_of_it = on_gpu(uuid, grants)
    there = [pair for pair in all_of_it if not pair[0].suspended]
    booked = {share.slot: guaranteed(grant, share) for grant, share in there}
    offline = {share.slot for grant, share in there if grant.terms.priority_class == OFFLINE}
    found = {share.slot: 1 for grant, share in all_of_it if grant.suspended}
    for some in (offline, booked.keys() - offline):
        equal = _part(100 - sum(booked[slot] for slot in some), sum(not booked[slot] for slot in some))
        found.update({slot: booked[slot] * ONE_PERCENT or equal for slot in some})
    online = {share.slot: grant.competes for grant, share in there if grant.terms.priority_class == ONLINE}
    if any(online.values()):
        free = [slot for slot, competes in online.items() if competes or not booked[slot]]
        each = _part(100 - sum(booked[slot] for slot in online if slot not in free), len(free))
        found.update(dict.fromkeys(free, each))
    return found


def _part(percent: int, among: int) -> int:
    """One of so many equal parts, as a weight; all of them together are one per cent at least."""
    return max(1, max(1, percent) * ONE_PERCENT // max(1, among))


def promised(grant: Grant, share: Share, grants: tuple[Grant, ...]) -> int:
    """The per cent of the GPU that the container should have while it wants work and no higher class does: its guarantee,
    but for one that competes freely no more than an equal part among its class."""
    if not grant.competes:
        return guaranteed(grant, share)
    rivals = sum(g.terms.priority_class == ONLINE for g, _ in on_gpu(share.uuid, grants))
    return min(guaranteed(grant, share), 100 // max(1, rivals))


def gpu_page(
    uuid: str, grants: tuple[Grant, ...], generation: int, time_scale: int = 1, seq: int = 0, tiers: int = 0
) -> bytes:
    """The page of a GPU, made from all living grants of the node. tiers: the GPU's bits of core/tiers.py."""
    weight = weights(uuid, grants)
    present = 0
    page = bytearray(SIZE)
    for grant, share in on_gpu(uuid, grants):
        slot = share.slot - 1
        present |= 1 << slot
        _SLOT.pack_into(
            page,
            _HEAD.size + slot * _SLOT.size,
            CLASS_NUMBERS[grant.terms.priority_class],
            1 if grant.stopped else 0,
            weight[share.slot],
            cap(grant, share) * PPM,
            grant.linger,
            0,
            grant.born,
            0,
        )
    _HEAD.pack_into(page, 0, MAGIC, VERSION, SIZE, seq, time_scale, generation, present, uuid.encode(), tiers)
    return bytes(page)


def counts(contexts: dict[int, int], until: int) -> bytes:
    """The words at COUNTS_OFFSET: how many processes of each container are on the GPU, by Share.slot; until: nanoseconds of
    the monotonic clock. Less than one is one: a process may have come since."""
    each = bytes(min(255, max(1, contexts.get(slot, 1))) for slot in range(1, SLOTS + 1))
    return until.to_bytes(8, "little") + each


def head(page: bytes) -> tuple[int, int, int]:
    """(seq, generation, time scale) of a page; (1, 0, 1), which means that it must not be read, of any other bytes."""
    if len(page) < _HEAD.size:
        return 1, 0, 1
    magic, version, size, seq, time_scale, generation, _, _, _ = _HEAD.unpack_from(page)
    if (magic, version, size) != (MAGIC, VERSION, SIZE):
        return 1, 0, 1
    return seq, generation, max(1, time_scale)


def seq_of(generation: int) -> int:
    """The seqlock word of a complete page: even, and different for each generation."""
    return 2 * generation & 0xFFFFFFFF


def born(page: bytes) -> dict[int, int]:
    """The `born` of each grant in a page, by Share.slot; empty for any other bytes."""
    if not head(page)[1] or len(page) < SIZE:
        return {}
    present = _HEAD.unpack_from(page)[6]
    at = _HEAD.size
    slots = [i for i in range(SLOTS) if present >> i & 1]
    return {i + 1: _SLOT.unpack_from(page, at + i * _SLOT.size)[6] for i in slots}


def tiers_of(page: bytes) -> int:
    """The tier bits of a page; 0 for any other bytes."""
    return int(_HEAD.unpack_from(page)[8]) if head(page)[1] else 0
