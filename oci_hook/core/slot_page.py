"""What the host reads of a slot file's head. Twin of shim/slot_page.h. A tenant wrote it: shown, never relied on."""

from struct import Struct

MAGIC = 0x31544F4C53504847
VERSION = 1
HEAD_SIZE = 512
MAX_US = 1 << 32

_MARK = Struct("<QI")
_BOUND = Struct("<Q")
_BOUND_OFFSET = 128


def preempt_bound_us(head: bytes) -> int:
    """How long the container holds the card at most once a higher class has work, in microseconds rounded up; 0 where
    nothing, or nothing that makes sense, is published."""
    if len(head) < _BOUND_OFFSET + _BOUND.size or _MARK.unpack_from(head) != (MAGIC, VERSION):
        return 0
    bound = -(-_BOUND.unpack_from(head, _BOUND_OFFSET)[0] // 1000)
    return bound if bound <= MAX_US else 0
