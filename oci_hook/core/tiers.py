"""Which preemption tier a GPU has, judged by what a probe measured, never by a status that the driver returned.

Tier 0 is the gate before launches; every GPU has it. Tier 0.5 adds stream memory operations: a stream that waits for a
word in host memory. The bit is that of enum gh_tier in shim/pages/gpu_page.h.
"""

MEMOPS = 1

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RESUME_MOST_US = 1000  # a waiting stream must go on this soon after the store, as held work is promised to
BESIDE_LEAST = 0.8  # of its throughput a neighbour must keep beside a waiting stream: waiting must not cost GPU time


def name(bits: int) -> str:
    """The tier that these bits amount to."""
    return "0.5" if bits & MEMOPS else "0"


def judge(seen: "dict[str, Any]") -> int:
    """The bits for what a probe measured (discovery/tier_probe.py). A figure that is missing counts as a failure."""
    memops = seen.get("memops") or {}
    works = (
        bool(memops.get("held") and memops.get("resumed") and memops.get("written"))
        and memops.get("resume_us", RESUME_MOST_US + 1) <= RESUME_MOST_US
        and memops.get("beside", 0) >= BESIDE_LEAST
    )
    return MEMOPS if works else 0
