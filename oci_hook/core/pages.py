"""The policy page: packs a grant into the 4096 bytes that the shim reads. Twin of shim/pages/policy_page.h."""

from struct import Struct

from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Inventory

MAGIC = 0x31594C4F50484755
VERSION = 1
SIZE = 4096
MAX_GPUS = 16
SEQ_OFFSET = 16

_HEAD = Struct("<QIIIIII40s56x")
_GPU = Struct("<48sQQIIIIQI36x")
POLICY_NUMBERS = {"best-effort": 0, "fixed-share": 1, "burst-share": 2}
CLASS_NUMBERS = {"offline": 0, "default": 1, "online": 2}
_POLICY_CLASS, _POLICY_OFFSET = Struct("<II"), 24
_MEMORY, _MEMORY_OFFSET = Struct("<Q"), 48
_COMPUTE, _COMPUTE_OFFSET = Struct("<II"), 64
WHOLE = 1
MIB = 1 << 20


def amended(page: bytes, grant: Grant) -> bytes:
    """The page of a grant whose limits, policy and class changed; what the GPU itself says stays, and so does seq."""
    new = bytearray(page)
    _POLICY_CLASS.pack_into(new, _POLICY_OFFSET, POLICY_NUMBERS[grant.policy], CLASS_NUMBERS[grant.priority_class])
    for i, share in enumerate(grant.shares):
        at = _HEAD.size + i * _GPU.size
        _MEMORY.pack_into(new, at + _MEMORY_OFFSET, share.memory_mib * MIB)
        _COMPUTE.pack_into(new, at + _COMPUTE_OFFSET, share.compute, share.compute_limit)
    return bytes(new)


def policy_page(grant: Grant, inventory: Inventory, seq: int = 0) -> bytes:
    """The whole page for a grant of at most MAX_GPUS GPUs (ValueError beyond); seq must be even."""
    if len(grant.shares) > MAX_GPUS:
        raise ValueError(f"{len(grant.shares)} GPUs, at most {MAX_GPUS}")
    page = bytearray(SIZE)
    _HEAD.pack_into(
        page,
        0,
        MAGIC,
        VERSION,
        SIZE,
        seq,
        len(grant.shares),
        POLICY_NUMBERS[grant.policy],
        CLASS_NUMBERS[grant.priority_class],
        grant.key.encode(),
    )
    for i, share in enumerate(grant.shares):
        gpu = inventory.gpu(share.uuid)
        _GPU.pack_into(
            page,
            _HEAD.size + i * _GPU.size,
            share.uuid.encode(),
            share.memory_mib * MIB,
            gpu.memory_mib * MIB,
            share.compute,
            share.compute_limit,
            WHOLE if share.whole else 0,
            gpu.minor,
            gpu.context_mib * MIB,
            share.slot,
        )
    return bytes(page)
