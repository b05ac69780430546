from typing import Any

import pytest

from oci_hook.core import tiers
from oci_hook.core.tiers import MEMOPS

WORK = {"held": True, "resumed": True, "written": True, "resume_us": 40.0, "beside": 0.99}


@pytest.mark.parametrize(
    ("memops", "bits", "name"),
    [
        (WORK, MEMOPS, "0.5"),
        ({"error": "refused"}, 0, "0"),
        ({**WORK, "held": False}, 0, "0"),
        ({**WORK, "resumed": False}, 0, "0"),
        ({**WORK, "written": False}, 0, "0"),
        ({**WORK, "resume_us": 5000.0}, 0, "0"),
        ({**WORK, "beside": 0.5}, 0, "0"),
        ({"held": True, "resumed": False}, 0, "0"),
        (None, 0, "0"),
    ],
)
def test_what_was_measured_is_judged(memops: Any, bits: int, name: str) -> None:
    found = tiers.judge({"memops": memops})
    assert (found, tiers.name(found)) == (bits, name)


def test_a_gpu_without_findings_has_tier_0() -> None:
    assert tiers.judge({}) == 0
    assert tiers.judge({"error": "no answer within 90 s"}) == 0
