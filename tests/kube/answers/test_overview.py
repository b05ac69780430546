"""The cluster as data: exactly the changes, totals that agree with the state, any names of nodes and pods."""

import json
import random
from typing import Any

import pytest

from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.rules import Rules
from oci_hook.core.terms import Terms
from oci_hook.errors import CODES
from oci_hook.kube.answers import overview
from oci_hook.kube.answers.overview import FULL, MOST_GONE, MOST_WAITING, Overview, Waiting
from oci_hook.kube.formats.node_info import Digest
from oci_hook.kube.placing.choose import Question, choose
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.pod.asked import PodWords, asked
from tests.kube.cluster_objects import node, pod

NASTY = '"><img src=x onerror=alert(1)>\u2028\ud800'


class Cluster:
    def __init__(self) -> None:
        self.state = ClusterState()
        self.overview = Overview()
        self.waiting: dict[str, Waiting] = {}
        self.leader: dict[str, Any] = {"leads": True}

    def look(self, since: int = 0) -> Any:
        for _ in self.overview.look(self.state, self.waiting, {"default"}, self.leader):
            pass
        return self.parts(since)

    def parts(self, since: int = 0) -> Any:
        return json.loads("".join(self.overview.parts(since)))

    def place(self, name: str, **words: Any) -> str:
        obj = pod(name, **words)
        self.state.apply_pod(obj)
        found = choose(self.state, Question(self.state.pods[f"u-{name}"].words))
        assert not isinstance(found, dict), found
        self.state.reserve(self.state.pods[f"u-{name}"].words, found.node, found.fit, 0.0)
        return found.node


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.state.apply_node(node("a", 100, 100))
    made.state.apply_node(node("b", 100))
    return made


def gpus(said: Any, name: str) -> Any:
    return next(n["gpus"] for n in said["nodes"] if n["name"] == name)


def test_what_is_granted_is_shown_and_offline_apart(cluster: Cluster) -> None:
    at = cluster.place("p", memory=30, compute=20)
    cluster.place("q", memory=10, compute=10, **{"class": "offline"}, node_placement="binpack")
    cluster.place("w", gpus=1)
    said = cluster.look()
    cells = sorted(cell for n in said["nodes"] for cell in n["gpus"])
    assert sum(cell[1] for cell in cells) == 140 and sum(cell[3] for cell in cells) == 10
    assert sum(cell[6] == 2 for cell in cells) == 1
    figures = said["figures"]
    assert figures["gpus"] == 3 and figures["whole_gpus"] == 1 and figures["memory_mib"] == 300
    assert figures["granted_mib"] == 140 and figures["offline_mib"] == 10 and figures["offline_compute"] == 10
    assert figures["granted_compute"] == 120 and figures["holders"] == figures["reserved"] == 3
    assert figures["free_gpus"] == sum(cell[6] == 0 for cell in cells) and at in ("a", "b")
    assert figures["free_mib"] == sum(spot.free_mib for room in cluster.state.cut.rooms.values() for spot in room.spots)
    assert sorted(n for x in said["nodes"] for n in x["namespaces"])[0][0] == "default"


def test_only_what_changed_is_told(cluster: Cluster) -> None:
    first = cluster.look()
    assert first["version"] == 1 and first["since"] == 0 and len(first["nodes"]) == 2
    same = cluster.look(1)
    assert same["version"] == 1 and same["nodes"] == [] and same.keys() == {"version", "since", "gone", "nodes"}
    cluster.state.apply_node(node("b", 100))  # as with each heartbeat: an unchanged node
    assert cluster.look(1)["version"] == 1
    at = cluster.place("p", memory=30)
    second = cluster.look(1)
    assert second["version"] == 2 and [n["name"] for n in second["nodes"]] == [at] and "leader" not in second
    cluster.state.remove_node("b" if at == "a" else "a")
    third = cluster.look(2)
    assert (
        third["gone"] == ["b" if at == "a" else "a"] and third["nodes"] == [] and third["figures"]["nodes"]["ok"] == 1
    )
    assert cluster.parts(1)["nodes"] == second["nodes"], "a client that missed one update gets both"
    cluster.leader = {"leads": False}
    assert cluster.look(3).keys() == {"version", "since", "leader", "gone", "nodes"}
    cluster.state.apply_node(node("b" if at == "a" else "a", 100))
    back = cluster.look(2)
    assert back["gone"] == [] and len(back["nodes"]) == 1, "it is there again"


def test_changes_told_one_after_the_other_give_the_whole() -> None:
    rng = random.Random(7)
    cluster = Cluster()
    known: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    version = 0
    for step in range(300):
        name = f"n{rng.randrange(12)}"
        match rng.randrange(5):
            case 0:
                cluster.state.apply_node(node(name, *[100] * rng.randrange(1, 4)))
            case 1:
                cluster.state.remove_node(name)
            case 2:
                for uid in list(cluster.state.reservations)[:1]:
                    cluster.state.release(uid)
                    cluster.state.remove_pod(uid, 0.0)
            case _:
                cluster.state.apply_pod(pod(f"p{step}", memory=rng.choice((1, 50, 99, 100))))
                found = choose(cluster.state, Question(cluster.state.pods[f"u-p{step}"].words))
                if isinstance(found, dict):
                    cluster.waiting[f"u-p{step}"] = Waiting("GH-607", "GH-607: no")
                else:
                    cluster.state.reserve(cluster.state.pods[f"u-p{step}"].words, found.node, found.fit, 0.0)
        if rng.random() < 0.4:
            said = cluster.look(version)
            assert said["since"] == version
            known = {k: v for k, v in known.items() if k not in said["gone"]} | {n["name"]: n for n in said["nodes"]}
            rest |= {k: said[k] for k in ("leader", "figures", "waiting") if k in said}
            version = said["version"]
            whole = cluster.parts()
            assert known == {n["name"]: n for n in whole["nodes"]}
            assert all(rest[k] == whole[k] for k in ("leader", "figures", "waiting"))
            fresh = Overview()
            for _ in fresh.look(cluster.state, cluster.waiting, {"default"}, cluster.leader):
                pass
            anew = json.loads("".join(fresh.parts()))
            assert known == {n["name"]: n for n in anew["nodes"]} and rest["figures"] == anew["figures"]


def test_more_nodes_that_went_than_are_remembered(cluster: Cluster) -> None:
    cluster.look()
    for i in range(MOST_GONE + 1):
        cluster.state.apply_node(node(f"x{i}", 1))
    cluster.look()
    before = cluster.overview.version
    for i in range(MOST_GONE + 1):
        cluster.state.remove_node(f"x{i}")
    cluster.look()
    assert not cluster.overview.knows(before) and cluster.overview.knows(cluster.overview.version)
    assert not cluster.overview.knows(cluster.overview.version + 1) and not cluster.overview.knows(-1)
    assert len(cluster.parts()["nodes"]) == 2


def test_nodes_that_cannot_be_used_are_shown_with_why(cluster: Cluster) -> None:
    broken = node("c", 100)
    broken["metadata"]["annotations"]["gpu-hook.io/inventory"] = "{}"
    broken["metadata"]["labels"] = {"gpu-hook.io/node": "true"}
    cluster.state.apply_node(broken)
    silent = {"metadata": {"name": "d", "labels": {"gpu-hook.io/node": "true"}}, "spec": {}}
    cluster.state.apply_node(silent)
    cluster.state.apply_node({"metadata": {"name": "no-gpus"}, "spec": {}})
    digest = node("e", 100)
    digest["metadata"]["annotations"]["gpu-hook.io/ledger"] = NASTY
    cluster.state.apply_node(digest)
    said = {n["name"]: n for n in cluster.look()["nodes"]}
    assert said.keys() == {"a", "b", "c", "d", "e"}
    assert said["c"]["state"] == said["e"]["state"] == "problem" and "its inventory" in said["c"]["problem"]
    assert said["d"]["state"] == "no report" and len(said["e"]["gpus"]) == 1
    assert cluster.parts()["figures"]["nodes"] == {"ok": 2, "problem": 2, "no report": 1}
    version = cluster.overview.version
    assert cluster.look(version)["nodes"] == [], "an unchanged node with a problem is sent once"


def test_grants_without_a_decision_and_names_that_are_no_names(cluster: Cluster) -> None:
    local = Grant(
        "k", Identity("", NASTY, ""), Life(""), (Share("GPU-a-1", 40, 30),), terms=Terms(priority_class="offline")
    )
    cluster.state.apply_node(node("a", 100, 100, digest=Digest(local=(local,))))
    cluster.state.apply_pod(pod(NASTY, memory=30))
    cluster.waiting[f"u-{NASTY}"] = Waiting("GH-607", NASTY * 1000)
    said = cluster.look()
    assert gpus(said, "a")[1] == [100, 40, 0, 40, 30, 1, 1]
    assert said["waiting"][0]["name"] == NASTY and len(said["waiting"][0]["words"]) <= 300
    "".join(cluster.overview.parts()).encode("ascii")


def test_who_waits_and_what_would_help(cluster: Cluster) -> None:
    for name, words, expected in (
        ("big", {"memory": 300}, "300 MiB of one GPU; no GPU has more than 100 MiB free"),
        ("many", {"gpus": 3}, "3 GPUs of one node; no node has more than 2 with room"),
        ("both", {"memory": 100, "compute": 100}, "no node for all together"),
    ):
        cluster.state.apply_pod(pod(name, **words))
        cluster.waiting[f"u-{name}"] = Waiting("GH-201", "GH-201: no room")
        said = {p["name"]: p for p in cluster.look()["waiting"]}
        assert expected in said[name]["help"], name
    cluster.state.apply_pod(pod("own", memory=1, node="exclusive"))
    cluster.waiting["u-own"] = Waiting("GH-609", "GH-609: taken")
    cluster.state.apply_pod(pod("new", memory=1))
    cluster.state.apply_pod(pod("asks-nothing"))
    other = pod("other", memory=1)
    other["metadata"]["namespace"] = "not-enabled"
    cluster.state.apply_pod(other)
    said = {p["name"]: p for p in cluster.look()["waiting"]}
    assert said.keys() == {"big", "many", "both", "own", "new"}
    assert said["own"]["help"] == CODES["GH-609"] and said["new"]["code"] == said["new"]["help"] == ""
    assert set(FULL) <= CODES.keys()


@pytest.mark.parametrize("more", [0, 1])
def test_many_wait(cluster: Cluster, more: int) -> None:
    for i in range(MOST_WAITING + more):
        made = pod(f"p{i}", memory=300)
        made["metadata"]["creationTimestamp"] = f"2026-01-01T{i // 60:02}:{i % 60:02}:00Z"
        cluster.state.apply_pod(made)
    said = cluster.look()
    assert said["figures"]["waiting"] == MOST_WAITING + more and len(said["waiting"]) == MOST_WAITING
    assert said["waiting"][0]["name"] == "p0" and said["waiting"][0]["since"] == "2026-01-01T00:00:00Z"


def test_each_piece_of_a_look_is_small() -> None:
    """The controller makes decisions between two pieces, and these may change everything."""
    cluster = Cluster()
    for i in range(300):
        cluster.state.apply_node(node(f"n{i}", *[100] * 8))
    for steps, _ in enumerate(cluster.overview.look(cluster.state, {}, {"default"}, {})):
        if steps % 3 == 0:
            cluster.state.remove_node(f"n{steps % 300}")
            cluster.state.apply_node(node(f"m{steps % 50}", 100))
    assert steps > 300, "one node at a time"
    said = cluster.look()
    cluster.state.refresh()
    assert {n["name"] for n in said["nodes"]} == set(cluster.state.cut.rooms)


def big_pod(n: int, containers: int, mib: int, **more: Any) -> Any:
    return pod(f"big{n:03}", containers=[f"c{i}" for i in range(containers)], memory=mib, **more)


def test_pods_of_many_containers_are_read_once_and_few_in_each_look(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 pods of many containers took 2 s of each update, every 2 s."""
    read: list[int] = []

    def counted(words: PodWords, rules: Rules) -> Any:
        read.append(len(words.containers))
        return asked(words, rules)

    monkeypatch.setattr(overview, "asked", counted)
    for n in range(40):
        cluster.state.apply_pod(big_pod(n, 64, 2000 + n))
    cluster.state.apply_pod(pod("zzz", memory=500))
    cluster.waiting = {f"u-big{n:03}": Waiting("GH-201", "x") for n in range(40)}
    cluster.waiting["u-zzz"] = Waiting("GH-201", "x")
    looks = []
    for _ in range(6):
        read.clear()
        rows = {row["name"]: row["help"] for row in cluster.look()["waiting"]}
        assert rows["zzz"].startswith("it asks for 500 MiB"), "a usual pod waits for no other one"
        looks.append((sum(read), sum(bool(text) for text in rows.values())))
    assert all(0 < count <= overview.MOST_READ + 1 for count, _ in looks[:3]) and looks[-1] == (0, 41)
    assert all(rows[f"big{n:03}"].startswith(f"it asks for {2000 + n} MiB") for n in range(40))
    cluster.state.apply_pod(big_pod(3, 64, 3000))
    assert cluster.look()["waiting"][3]["help"].startswith("it asks for 3000 MiB") and read == [64]
    cluster.state.remove_pod("u-big003", 0.0)
    assert len(cluster.look()["waiting"]) == 40 and read == [64]


def test_a_pod_of_too_many_words_is_not_read(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(overview, "asked", lambda words, rules: read.append(1) or asked(words, rules))
    words = {f"memory__c{n}": "1" * 500 for n in range(100)}
    cluster.state.apply_pod(big_pod(0, 128, 2000, **words))
    cluster.waiting["u-big000"] = Waiting("GH-201", "no GPU has so much")
    (row,) = cluster.look()["waiting"]
    assert "too many" in row["help"] and row["words"] == "no GPU has so much" and not read
