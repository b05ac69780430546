"""Channel-group controls of a test's simulated card, and what the card page lets containers use of them."""

import os
import struct
from typing import Any

from oci_hook.sim import driver_root

TSG_MODE_AT = 332  # struct card_head
TIERS_AT = 88  # struct gh_card_page


def controls(p: Any, mode: str) -> None:
    """What they do from now on: work, inert, error."""
    with open(p.sim.cards / "0", "r+b") as card:
        card.seek(TSG_MODE_AT)
        card.write(struct.pack("<I", driver_root.TSG.index(mode)))


def let(p: Any, tiers: int) -> None:
    """Bits of core/tiers.py. The page is written anew, which makes its readers look."""
    with open(p.card.place / "card", "r+b") as page:
        p.card.write()
        seq = struct.unpack("<I", os.pread(page.fileno(), 4, 16))[0]
        os.pwrite(page.fileno(), struct.pack("<I", seq + 1), 16)
        os.pwrite(page.fileno(), struct.pack("<I", tiers), TIERS_AT)
        os.pwrite(page.fileno(), struct.pack("<I", seq + 2), 16)
    p.card.seq = seq + 4
