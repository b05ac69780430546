"""The policy page: packs a grant into the 4096 bytes that the shim reads. shim/pages/policy_page.h has
the same layout."""

from _struct import Struct  # `struct` is one more file to read

from oci_hook.core.grant import Grant, Share
from oci_hook.core.inventory import Inventory
from oci_hook.core.terms import CLASS_NUMBERS, POLICY_NUMBERS, Terms
from oci_hook.core.units import MIB

MAGIC = 0x31594C4F50484755
VERSION = 1
SIZE = 4096
MAX_GPUS = 16
SEQ_OFFSET = 16

_HEAD = Struct("<QIIII8x40s56x")
_GPU = Struct("<48sQQIIIIQIIQ24x")
_TERMS, _TERMS_OFFSET = Struct("<II"), 24
_SUSPENDED, _SUSPENDED_OFFSET = Struct("<II"), 72  # and the seconds of memory_wait
_HOLD, _HOLD_OFFSET = Struct("<Q"), 80
HOLD_MOST = 3600 * 10**9  # ns; a later end of a hold is damage (shim/process/policy.c)
_MEMORY, _MEMORY_OFFSET = Struct("<Q"), 48
_COMPUTE, _COMPUTE_OFFSET = Struct("<II"), 64
_REQUEST, _REQUEST_OFFSET = Struct("<Q"), 96
WHOLE = 1


def amended(page: bytes, grant: Grant) -> bytes:
    """The page after the grant's limits, policy or class changed, or it was suspended; the GPU's figures and seq stay."""
    new = bytearray(page)
    _put_terms(new, grant.terms)
    _SUSPENDED.pack_into(new, _SUSPENDED_OFFSET, grant.off_gpu, grant.memory_wait)
    for i, share in enumerate(grant.shares):
        at = _HEAD.size + i * _GPU.size
        _MEMORY.pack_into(new, at + _MEMORY_OFFSET, share.memory_mib * MIB)
        _COMPUTE.pack_into(new, at + _COMPUTE_OFFSET, _compute(grant, share), share.compute_limit)
        _REQUEST.pack_into(new, at + _REQUEST_OFFSET, share.request_mib * MIB)
    return bytes(new)


def held(page: bytes, until: int) -> bytes:
    """The page with what would take device memory held until then (ns of the monotonic clock); 0: not held."""
    new = bytearray(page)
    _HOLD.pack_into(new, _HOLD_OFFSET, until)
    return bytes(new)


def hold_of(page: bytes) -> int:
    """Until when it is held, as in `held`."""
    return int(_HOLD.unpack_from(page, _HOLD_OFFSET)[0])


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
        grant.key.encode(),
    )
    _put_terms(page, grant.terms)
    _SUSPENDED.pack_into(page, _SUSPENDED_OFFSET, grant.off_gpu, grant.memory_wait)
    for i, share in enumerate(grant.shares):
        gpu = inventory.gpu(share.uuid)
        _GPU.pack_into(
            page,
            _HEAD.size + i * _GPU.size,
            share.uuid.encode(),
            share.memory_mib * MIB,
            gpu.memory_mib * MIB,
            _compute(grant, share),
            share.compute_limit,
            WHOLE
            if share.whole and share.memory_mib >= gpu.memory_mib
            else 0,  # not where the node reserves a part of it
            gpu.minor,
            gpu.context_mib * MIB,
            share.slot,
            gpu.block_bytes,
            share.request_mib * MIB,
        )
    return bytes(page)


def _compute(grant: Grant, share: Share) -> int:
    """The guarantee. With best-effort, compute is a booking, which says nothing about how the container runs."""
    return 0 if grant.terms.policy == "best-effort" else share.compute


def _put_terms(page: bytearray, terms: Terms) -> None:
    """Writes those of the terms that the page has."""
    _TERMS.pack_into(page, _TERMS_OFFSET, POLICY_NUMBERS[terms.policy], CLASS_NUMBERS[terms.priority_class])
