"""The account pages that the agent keeps open, and those that it cannot open."""

from types import SimpleNamespace
from typing import Any

import pytest

from oci_hook.agent.watch import accounts
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.observe.account import REST, DamagedPage


def test_a_page_that_cost_much_to_be_found_damaged_is_looked_at_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, spent, took = 5.0, 0.0, 0.1
    looks: list[tuple[int, int]] = []

    def look(pid: int, start: int, cgroup: str) -> None:
        nonlocal spent
        looks.append((pid, start))
        spent += took
        raise DamagedPage("it has too many mounts")

    monkeypatch.setattr(accounts, "Account", look)
    clocks = SimpleNamespace(monotonic=lambda: now, thread_time=lambda: spent)
    monkeypatch.setattr(accounts, "time", clocks, raising=False)
    grant = Grant("k" * 32, Identity("/run", "x", "/b"), Life("boot", None, (5, 5)), (Share("GPU-0", 1),))
    node: Any = SimpleNamespace(grants={grant.key: grant}, problem=lambda *_: None)
    pages = accounts.Accounts(node)

    def read() -> None:
        assert pages.read(node.grants) == ({grant.key: "it has too many mounts"}, frozenset())

    for _ in range(3):
        read()
    assert looks == [(5, 5)]
    node.grants[grant.key] = grant.replace(life=Life("boot", None, (6, 6)))
    read()
    assert looks == [(5, 5), (6, 6)]
    now += REST * took + 0.1
    took = 0.0
    read()
    now += 0.001
    read()
    assert looks == [(5, 5), (6, 6), (6, 6), (6, 6)]  # what costs nothing is looked at each time
    took = 1.0
    read()
    pages.forget({grant.key})
    read()
    assert len(looks) == 6
