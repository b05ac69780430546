"""How busy containers are, on its way from the agent to the node's digest: few writes, none while nothing changes, none when off."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.kube.interference import BAND, BURST, DUTY, level
from oci_hook.kube.names import INVENTORY, LEDGER
from oci_hook.kube.node_info import read_digest
from oci_hook.kube.reporter import objects
from oci_hook.kube.reporter.busy import GAP, NodeBusy
from oci_hook.kube.reporter.credential import Credential
from oci_hook.kube.reporter.options import Options
from oci_hook.kube.reporter.reporter import Reporter
from oci_hook.kube.reporter.seen import NODE, PODS
from oci_hook.kube.reporter.status import Status
from oci_hook.kube.reporter.watcher import Change
from tests.cli.box import Install
from tests.kube.reporter.test_http import Server, known, pki, server  # noqa: F401  (fixtures)


def held(name: str) -> Grant:
    who = Identity("", f"id-{name}", "", pod_uid=f"u-{name}", namespace="ns", pod=name, container="main")
    return Grant(f"key-{name}", who, Life(""), (Share("GPU-0", 100, 10, 100, False),))


def line(**figures: tuple[float, float]) -> bytes:
    return json.dumps({"busy": {f"key-{name}": said for name, said in figures.items()}}).encode()


def changes_of(busy: NodeBusy, grants: list[Grant], figures: Any, seconds: int, step: int = 5) -> list[float]:
    """When what is said changed. figures: of the time."""
    changed, last = [], busy.said(grants, "", 0.0)
    for now in range(0, seconds, step):
        busy.take(line(**figures(now)), float(now))
        said = busy.said(grants, "", float(now))
        if said != last:
            changed.append(float(now))
            last = said
    return changed


def test_a_steady_container_is_written_once() -> None:
    grants = [held("a"), held("b")]
    rng = random.Random(1)

    def steady(_: int) -> dict[str, tuple[float, float]]:
        return {"a": (40 + rng.uniform(-5, 5), 1.0), "b": (50 + rng.uniform(-5, 5), rng.uniform(7, 9))}

    changed = changes_of(NodeBusy(), grants, steady, 4 * 3600)
    assert len(changed) <= 2 and GAP <= changed[0] < 3 * GAP, "also where the mean is on a level's bound"


def test_a_wild_one_is_written_once_a_minute_at_most() -> None:
    rng = random.Random(2)
    grants = [held(name) for name in "abcdef"]

    def wild(_: int) -> dict[str, tuple[float, float]]:
        return {name: (rng.choice((0, 100)), rng.choice((0.0, 100.0))) for name in "abcdef"}

    changed = changes_of(NodeBusy(), grants, wild, 3600)
    assert 5 < len(changed) <= 60
    assert all(b - a >= GAP for a, b in zip(changed, changed[1:], strict=False))


def test_what_changes_is_told_and_who_went_is_dropped_at_once() -> None:
    busy, grants = NodeBusy(), [held("a"), held("b")]
    changes_of(busy, grants, lambda now: {"a": (80, 40) if now < 600 else (1, 0), "b": (30, 1)}, 600)
    assert busy.said(grants, "", 600.0) == {"u-a": {"main": (4, 4)}, "u-b": {"main": (2, 1)}}
    assert busy.said(grants[1:], "", 600.0) == {"u-b": {"main": (2, 1)}}, "no wait: the digest is written for it anyway"
    for now in range(600, 1800, 5):
        busy.take(line(a=(1, 0), b=(30, 1)), float(now))
        said = busy.said(grants, "", float(now))
    assert said == {"u-a": {"main": (0, 0)}, "u-b": {"main": (2, 1)}}


def test_after_a_restart_nothing_is_written_before_there_are_new_figures() -> None:
    first, grants = NodeBusy(), [held("a")]
    changes_of(first, grants, lambda _: {"a": (80, 40)}, 300)
    published = json.dumps({"v": 1, "busy": first.said(grants, "", 300.0)})
    second = NodeBusy()
    for now in range(1000, 1000 + 600, 5):
        second.take(line(a=(82, 41)), float(now))
        assert second.said(grants, published, float(now)) == {"u-a": {"main": (4, 4)}}
    silent = NodeBusy()  # the agent says nothing
    assert all(silent.said(grants, published, float(now)) == {"u-a": {"main": (4, 4)}} for now in range(0, 600, 5))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"x",
        b"[]",
        b"{}",
        b'{"busy": 3}',
        b'{"busy": {"a": 1}}',
        b'{"busy": {"a": ["x", 1]}}',
        b'{"busy": {"a": [1]}}',
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_none_is_left_out(text: bytes) -> None:
    busy = NodeBusy()
    busy.take(text, 0.0)
    busy.take(text, 100.0)
    assert busy.said([held("a")], text.decode(), 200.0) == {}


def test_figures_beyond_any_measure_are_levels_all_the_same() -> None:
    busy, grants = NodeBusy(), [held("a")]
    changes_of(busy, grants, lambda _: {"a": (1e300, float("inf"))}, 300)
    assert busy.said(grants, "", 300.0) == {"u-a": {"main": (4, 4)}}
    changes_of(busy := NodeBusy(), grants, lambda _: {"a": (-5, float("nan"))}, 300)
    assert busy.said(grants, "", 300.0)["u-a"]["main"][0] == 0


@pytest.mark.parametrize("bounds", [DUTY, BURST])
def test_a_level_changes_only_well_beyond_its_bound(bounds: tuple[float, ...]) -> None:
    for number, bound in enumerate(bounds):
        assert level(bound * 0.999, bounds) == number and level(bound, bounds) == number + 1
        assert level(bound * (1 + BAND / 2), bounds, number) == number
        assert level(bound * (1 - BAND / 2), bounds, number + 1) == number + 1
        assert level(bound * (1 + BAND), bounds, number) == number + 1
        assert level(bound * (1 - BAND) * 0.999, bounds, number + 1) == number
    assert level(1e9, bounds, 0) == len(bounds) and level(0, bounds, len(bounds)) == 0


# --- the reporter itself, with a real server and a real ledger


class Played:
    """A node that keeps what is written to it."""

    def __init__(self, server: Server, credential: Credential, prefix: Path, interference: bool) -> None:  # noqa: F811
        self.annotations: dict[str, str] = {}
        self.server = server
        server.answer = self.answer
        self.install = Install(prefix)
        (prefix / "plugins").mkdir()
        options = Options(device_plugins=str(prefix / "plugins"), interference=interference)
        self.reporter = Reporter(str(prefix), "n1", options, credential, Status())
        self.reporter._seen.take(Change(NODE, "put", objects.node(self.node())))
        self.reporter._seen.take(Change(PODS, "all", []))

    def node(self) -> dict[str, Any]:
        return {"metadata": {"name": "n1", "annotations": dict(self.annotations)}, "status": {}}

    def answer(self, method: str, path: str, _: str) -> tuple[int, bytes]:
        if method == "PATCH" and path == "/api/v1/nodes/n1":
            self.annotations |= json.loads(self.server.bodies[-1])["metadata"]["annotations"]
        return 200, json.dumps(self.node() if "nodes" in path else {"items": []}).encode()

    def writes(self) -> int:
        return sum(method == "PATCH" and not path.endswith("/status") for method, path, _ in self.server.asked)


@pytest.mark.parametrize("on", [True, False])
def test_the_reporter_writes_levels_where_it_is_told_to_and_nothing_while_they_stay(
    on: bool,
    server: Server,  # noqa: F811
    known: Credential,  # noqa: F811
    tmp_path: Path,
) -> None:
    played = Played(server, known, tmp_path / "pre fix", on)
    who = {"pod_uid": "u-a", "namespace": "ns", "pod": "a", "container": "main"}
    key = played.install.grant("busy-one", Share("GPU-0", 100, 10), who=who).key
    for now in range(0, 600, 10):
        played.reporter.hear(json.dumps({"busy": {key: [60 + now % 70 // 10, 3.0]}}).encode())
        played.reporter.step(float(now))
        if now == 300:
            before = played.writes()
    assert INVENTORY in played.annotations
    found = read_digest(played.annotations[LEDGER], played.install.inventory)
    assert found.busy == ({"u-a": {"main": (3, 2)}} if on else {})
    assert ("busy" in json.loads(played.annotations[LEDGER])) == on, "off: not a byte more than before"
    assert 1 <= before <= 1 + on and played.writes() == before
