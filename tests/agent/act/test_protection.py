"""Containers are judged by the ledger as it is at the look."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from oci_hook.agent.act import protection
from oci_hook.agent.judge.audit_rules import Finding, TenantProcess
from oci_hook.agent.node_state import NodeState
from oci_hook.agent.options import AgentOptions
from oci_hook.agent.watch import sampler
from oci_hook.agent.watched import Watched
from oci_hook.core.grant import Life, Share
from oci_hook.linux.proc import process_life
from oci_hook.observe.account import PageFigures
from tests.agent.parts import grant, inventory
from tests.cli.box import Install


@pytest.mark.parametrize(("back", "limit", "pages"), [("k", 8000, (7, 6)), ("n", 6000, (7, 7))])
def test_nobody_is_judged_as_if_one_that_has_come_back_to_its_gpu_were_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, back: str, limit: int, pages: tuple[int, int]
) -> None:
    """The ledger was read before that. The GPU's memory is lent: a neighbour was granted what is not free."""
    Install(tmp_path)
    node = NodeState(str(tmp_path), AgentOptions("none"))
    node.inventory, init = inventory(gpus=1), process_life(os.getpid())
    now = {
        key: grant(key, key).replace(life=Life("b", None, init), shares=(Share("GPU-0", mib),))
        for key, mib in (("k", limit), ("n", 8000))
    }
    late = {"suspended": 7} if back == "k" else {"moving": 7}
    node.grants, node.watched = {**now, back: now[back].replace(**late)}, {key: Watched() for key in now}
    monkeypatch.setattr(protection.store, "peek", lambda _: tuple(now.values()))
    read = {k: PageFigures((n << 30,), (0,), frozenset({(1, 1)})) for k, n in zip("kn", pages, strict=True)}
    killed: list[Finding] = []
    judge = protection.Protection(
        node,
        SimpleNamespace(take=lambda living, _: setattr(node, "grants", {g.key: g for g in living})),  # type: ignore[arg-type]
        SimpleNamespace(look=lambda uuid: None),  # type: ignore[arg-type]
        SimpleNamespace(find=lambda *_, **__: {1: ("k", TenantProcess(1, 1, "x", 1))}),  # type: ignore[arg-type]
        SimpleNamespace(read=lambda *_: (read, frozenset())),  # type: ignore[arg-type]
        SimpleNamespace(answer=lambda finding, **_: killed.append(finding)),  # type: ignore[arg-type]
    )
    for _ in range(4):
        judge.look("GPU-0", sampler.GpuSample(7 << 30, 8 << 30, 0, ((1, 7 << 30, 0),), at=time.monotonic()))
        time.sleep(0.31)
    assert not killed and node.grants == now
