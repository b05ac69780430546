"""suspend/mover.py, without a driver."""

import os
from pathlib import Path

import pytest

from oci_hook.core.grant import Grant, Identity, Life
from oci_hook.errors import GhError
from oci_hook.linux import cgroup
from oci_hook.linux.proc import process_life
from oci_hook.suspend import mover
from tests.linux.test_memory_room import MIB, group


@pytest.mark.parametrize(("need", "code"), [(90, ""), (300, "GH-416"), (450, "GH-415")])
def test_others_in_a_cgroup_above_are_not_its_own_fault(
    need: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is killed for GH-416."""
    inner = group(group(tmp_path / "slice", 2, str(1000 * MIB), 900, 0) / "box", 2, str(500 * MIB), 100, 0)
    monkeypatch.setattr(cgroup, "v1_path", lambda pid, controller: None)
    monkeypatch.setattr(cgroup, "v2_path", lambda pid: str(inner))
    grant = Grant("k", Identity("/run", "a", "/b"), Life("", init=process_life(os.getpid())), ())
    try:
        mover._check_cgroup(grant, need)
        said = ""
    except GhError as e:
        (problem,) = e.problems
        said = problem.code
    assert said == code
