from typing import Any

import pytest

from oci_hook.core import tiers
from oci_hook.core.tiers import MEMOPS, SLICE, STOP

MEMOPS_WORK = {"held": True, "resumed": True, "written": True, "resume_us": 40.0, "beside": 0.99}
GROUPS_WORK = {"favoured": 0.93, "even": 0.5, "stopped": 0.0, "resumed": 0.48}
INERT = {"favoured": 0.5, "even": 0.5, "stopped": 0.99, "resumed": 0.5}


@pytest.mark.parametrize(
    ("memops", "groups", "bits", "name"),
    [
        (MEMOPS_WORK, GROUPS_WORK, MEMOPS | SLICE | STOP, "2"),
        (MEMOPS_WORK, INERT, MEMOPS, "0.5"),
        (MEMOPS_WORK, {"error": "refused"}, MEMOPS, "0.5"),
        ({"error": "none"}, {**GROUPS_WORK, "stopped": 0.9}, SLICE, "1"),
        ({"error": "none"}, {**GROUPS_WORK, "favoured": 0.5}, STOP, "2"),
        ({"error": "none"}, {**GROUPS_WORK, "resumed": 1.0}, 0, "0"),
        ({"error": "none"}, {**GROUPS_WORK, "even": 0.9}, 0, "0"),
        ({**MEMOPS_WORK, "held": False}, {}, 0, "0"),
        ({**MEMOPS_WORK, "written": False}, {}, 0, "0"),
        ({**MEMOPS_WORK, "resume_us": 5000.0}, {}, 0, "0"),
        ({**MEMOPS_WORK, "beside": 0.5}, {}, 0, "0"),
        ({"held": True, "resumed": False}, None, 0, "0"),
        (None, None, 0, "0"),
    ],
)
def test_what_was_seen_is_judged(memops: Any, groups: Any, bits: int, name: str) -> None:
    found = tiers.judge({"memops": memops, "groups": groups})
    assert (found, tiers.name(found)) == (bits, name)


def test_settings_let_less_than_there_is() -> None:
    assert [tiers.name(tiers.LET[word] & 7) for word in ("none", "slice", "stop")] == ["0.5", "1", "2"]
