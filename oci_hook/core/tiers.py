"""What a GPU's driver can do for preemption beside time slicing, judged by what was seen to happen, never by a status.

Tier 0 is the gate before launches and needs nothing. 0.5: stream memory operations. 1: time slices of a channel group
of its own. 2: a channel group that stops in the middle of a kernel and goes on. Bits as in shim/gpu_page.h.
"""

MEMOPS, SLICE, STOP = 1, 2, 4

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAMES = ((STOP, "2"), (SLICE, "1"), (MEMOPS, "0.5"))
NONE, SLICES, STOPS = "none", "slice", "stop"
LET = {NONE: MEMOPS, SLICES: MEMOPS | SLICE, STOPS: MEMOPS | SLICE | STOP}  # the setting rules.channel_groups

RESUME_MOST_US = 1000  # a held stream goes on within the time in which held work is promised to
BESIDE_LEAST = 0.8  # of its throughput, a neighbour keeps beside a waiting stream: else waiting costs what running does
EVEN = (0.35, 0.65)  # two equal programs' parts of a GPU
FAVOURED_LEAST = 0.75  # of the GPU, for a slice sixteen times as long as the other's
STOPPED_MOST = 0.05  # of what it did before, a stopped program still does


def name(bits: int) -> str:
    """The highest tier of these."""
    return next((text for bit, text in NAMES if bits & bit), "0")


def judge(seen: "dict[str, Any]") -> int:
    """The bits that what a probe has seen (discovery/tier_probe.py) bears out; what is missing there is not."""
    return (MEMOPS if _memops(seen.get("memops") or {}) else 0) | _groups(seen.get("groups") or {})


def _memops(seen: "dict[str, Any]") -> bool:
    return (
        bool(seen.get("held") and seen.get("resumed") and seen.get("written"))
        and seen.get("resume_us", RESUME_MOST_US + 1) <= RESUME_MOST_US
        and seen.get("beside", 0) >= BESIDE_LEAST
    )


def _groups(seen: "dict[str, Any]") -> int:
    """A control counts if it changes throughput, and if what it changed can be had back."""
    if not all(EVEN[0] <= seen.get(when, 0) <= EVEN[1] for when in ("even", "resumed")):
        return 0
    bits = SLICE if seen.get("favoured", 0) >= FAVOURED_LEAST else 0
    return bits | (STOP if seen.get("stopped", 1) <= STOPPED_MOST else 0)
