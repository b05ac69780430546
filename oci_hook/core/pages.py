"""The policy page: packs a grant into the 4096 bytes that the stand-in reads. Twin of shim/policy_page.h."""

from struct import Struct

from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Inventory

MAGIC = 0x31594C4F50484755
VERSION = 1
SIZE = 4096
MAX_CARDS = 16
SEQ_OFFSET = 16

_HEAD = Struct("<QIIIIII40s56x")
_CARD = Struct("<48sQQIIIIQ40x")
_POLICY = {"best-effort": 0, "fixed-share": 1, "burst-share": 2}
_CLASS = {"offline": 0, "default": 1, "online": 2}
WHOLE = 1
MIB = 1 << 20


def policy_page(grant: Grant, inventory: Inventory, seq: int = 0) -> bytes:
    """The whole page for a grant of at most MAX_CARDS cards (ValueError beyond); seq must be even."""
    if len(grant.shares) > MAX_CARDS:
        raise ValueError(f"{len(grant.shares)} cards, at most {MAX_CARDS}")
    page = bytearray(SIZE)
    _HEAD.pack_into(
        page,
        0,
        MAGIC,
        VERSION,
        SIZE,
        seq,
        len(grant.shares),
        _POLICY[grant.policy],
        _CLASS[grant.priority_class],
        grant.key.encode(),
    )
    for i, share in enumerate(grant.shares):
        card = inventory.card(share.uuid)
        _CARD.pack_into(
            page,
            _HEAD.size + i * _CARD.size,
            share.uuid.encode(),
            share.memory_mib * MIB,
            card.memory_mib * MIB,
            share.compute,
            share.compute_limit,
            WHOLE if share.whole else 0,
            card.minor,
            card.context_mib * MIB,
        )
    return bytes(page)
