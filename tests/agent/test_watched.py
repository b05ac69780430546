"""The agent's knowledge of one container."""

import pytest

from oci_hook.agent.watched import Watched


def test_two_looks_within_a_tenth_of_a_second_are_one_point(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()
    for at, used in ((10.01, 1), (10.04, 2), (10.06, 3), (9.0, 4)):  # the clock was set back
        monkeypatch.setattr("time.time", lambda at=at: at)
        watched.note("GPU-0", used, 50)
    assert watched.history == {"GPU-0": [(10.0, 2, 50), (10.1, 3, 50), (9.0, 4, 50)]}
