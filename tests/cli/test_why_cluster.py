"""`why --cluster` on a dump of a cluster, and by an API server."""

import http.server
import json
import threading
import urllib.parse

import pytest
from click.testing import CliRunner

from oci_hook.cli import why_cluster
from oci_hook.cli.main import cli
from oci_hook.kube.moves.defrag import Move, MovePlan
from tests.cli.test_cluster_commands import kubeconfig
from tests.kube.cluster_objects import node, pod
from tests.kube.moves.test_defrag import Cluster, owned

WAITS, BARE = "default/waits", "default/bare"


def objects():
    cluster = Cluster(node("n1", 16_000, 16_000), node("n2", 16_000))
    web = owned("web", memory="6Gi", compute=30)
    web["metadata"]["labels"] = {"app": "web"}
    cluster.put(web, "n1", 0)
    cluster.put(pod("bare", memory="8Gi"), "n1", 1)
    cluster.put(owned("db", "StatefulSet", memory="8Gi"), "n2", 0)
    return [*cluster.nodes, *cluster.pods, pod("waits", memory="15Gi"), pod("plain"), pod("huge", memory="17Gi")]


def a_budget(allowed):
    return {
        "apiVersion": "policy/v1beta1",
        "kind": "PodDisruptionBudget",
        "metadata": {"namespace": "default", "name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": allowed},
    }


def test_to_cordon_is_advised_only_for_another_node():
    move = Move("u", "ns", "p", "ReplicaSet/r", "n1", ("G0",), "n1", ("G1",), 1, 1, "n1")
    addresses = {("n1", "G0"): "0", ("n1", "G1"): "1"}
    for instead, advised in (("", False), ("n1", False), ("n2", True)):
        plan = MovePlan((move.replace(instead=instead),), True, None, (0, 1))
        assert any("cordon" in line for line in why_cluster.lines("", 20, plan, {}, addresses)) == advised


@pytest.fixture
def dump(tmp_path):
    def write(*more, items=None):
        path = tmp_path / "a dump.json"
        path.write_text(json.dumps({"kind": "List", "items": [*(objects() if items is None else items), *more]}))
        return str(path)

    return write


def run(*words):
    return CliRunner().invoke(cli, ["why", "--cluster", *words])


def test_moves_for_a_pod_that_waits(dump):
    said = run("--pod", WAITS, "--dump", dump(a_budget(1)))
    assert said.exit_code == 0, said.output
    assert "pod default/waits has room after 1 move (fewer may be enough)" in said.output
    assert "1. default/web (ReplicaSet/set, 6Gi, 30 %): n1 GPU 0 -> n" in said.output
    assert "then default/waits has room on n1 GPU 0" in said.output and "delete it" in said.output
    assert "1 pod without an owner that recreates it" in said.output
    assert "warning" not in said.stderr
    data = json.loads(run("--pod", "waits", "--dump", dump(a_budget(1)), "--json").stdout)
    (move,) = data["moves"]
    assert (move["pod"], move["owner"], move["from"]["node"], move["memory_mib"]) == (
        "web",
        "ReplicaSet/set",
        "n1",
        6144,
    )
    assert move["from"]["gpus"] == [{"address": "0", "uuid": "GPU-n1-0"}] and data["reached"]
    assert data["place"] == {"node": "n1", "gpus": [{"address": "0", "uuid": "GPU-n1-0"}]}
    assert data["fixed"] == [{"reason": "without an owner that recreates it", "pods": 1}]


def test_a_budget_is_kept_to_and_its_absence_is_told(dump):
    said = run("--pod", WAITS, "--dump", dump(a_budget(0)))
    assert "1. default/db (StatefulSet/set" in said.output and "1 pod protected by a PodDisruptionBudget" in said.output
    said = run("--pod", WAITS, "--dump", dump())
    assert said.exit_code == 0 and "warning: GH-608: no PodDisruptionBudgets were read" in said.stderr
    assert "pods,pdb" not in said.stderr  # such a dump of a cluster without budgets looks the same


def test_moves_for_free_gpus(dump):
    said = run("--defrag", "--dump", dump(a_budget(1)))
    assert said.exit_code == 0
    assert "0 GPUs without a container, 1 after 1 move (fewer may be enough, and others may free more)" in said.output
    assert json.loads(run("--defrag", "--dump", dump(), "--json").stdout)["free_gpus"] == {"before": 0, "after": 1}
    said = run("--defrag", "--moves", "0", "--dump", dump())
    assert (
        "0 GPUs without a container, and no series of up to 0 moves was found that frees another" in said.output
        and said.exit_code == 0
    )
    said = run("--defrag", "--dump", dump(items=[]))
    assert said.exit_code == 0 and said.stdout.startswith(
        "0 GPUs without a container, and no series of up to 20 moves was found that frees another"
    )


def test_a_pod_for_which_no_moves_help(dump):
    said = run("--pod", "huge", "--dump", dump())
    assert (
        said.exit_code == 1
        and "pod huge waits, and no series of up to 20 moves was found that would give it room" in said.output
    )
    assert json.loads(run("--pod", "huge", "--dump", dump(), "--json").stdout)["reached"] is False
    items = [one for one in objects() if one["metadata"]["name"] != "web"]
    said = run("--pod", WAITS, "--dump", dump(items=items))
    assert said.exit_code == 0 and "has room without a move" in said.output


def test_what_cannot_be_moved_for(dump):
    whole = pod("node", gpus="all", node="exclusive")
    ended = pod("ended", memory=5, phase="Failed")
    for name, code in (
        (BARE, "GH-608"),
        ("plain", "GH-608"),
        ("nobody", "GH-608"),
        ("ended", "GH-608"),
        ("node", "GH-609"),
    ):
        said = run("--pod", name, "--dump", dump(whole, ended))
        assert said.exit_code == 1 and said.output.startswith(code) and said.output.count("\n") == 1, said.output
        assert (
            json.loads(run("--pod", name, "--dump", dump(whole, ended), "--json").stdout)["errors"][0]["code"] == code
        )


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--pod", "a", "--defrag"],
        ["--defrag", "name"],
        ["--defrag", "-a", "x=y"],
        ["--defrag", "--moves", "-1"],
        ["--defrag", "--moves", "1001"],
    ],
)
def test_wrong_usage(words):
    assert run(*words).exit_code == 2


def test_options_of_the_cluster_without_it():
    for words in (["--defrag"], ["--pod", "x"], ["--moves", "3"], ["--dump", "x"], ["--kubeconfig", "x", "c"]):
        assert CliRunner().invoke(cli, ["why", *words]).exit_code == 2, words


@pytest.mark.parametrize("change", ["status", "selector", "metadata"])
def test_a_budget_that_is_none_is_one_line(dump, change):
    odd = a_budget(1)
    {"status": odd, "selector": odd["spec"], "metadata": odd}[change][change] = (
        {"name": "x"} if change == "metadata" else []
    )
    if change == "status":
        odd["status"] = {"disruptionsAllowed": "many"}
    if change == "selector":
        odd["spec"]["selector"] = {"matchExpressions": ["x"]}
    said = run("--defrag", "--dump", dump(odd))
    assert said.exit_code == 1 and said.output.startswith("GH-608") and said.output.count("\n") == 1


def test_pods_that_are_odd_are_one_line(dump):
    for spec in ({"containers": [7]}, {"topologySpreadConstraints": [7]}, {"tolerations": [7]}):
        obj = objects()
        obj[2]["spec"].update(spec)
        obj[1]["spec"]["taints"] = [{"key": "k", "effect": "NoSchedule"}]
        said = run("--pod", WAITS, "--dump", dump(items=obj))
        assert said.exit_code == 1 and said.output.startswith("GH-608") and said.output.count("\n") == 1, said.output


# --- an API server


class Api(http.server.BaseHTTPRequestHandler):
    """budgets: API version -> objects; another version is not there."""

    items: list = []
    budgets: dict = {}

    def do_GET(self):
        path = urllib.parse.urlparse(self.path).path
        kinds = {"/api/v1/nodes": "Node", "/api/v1/pods": "Pod"}
        listed = None
        if path in kinds:
            listed = [{k: v for k, v in one.items() if k != "kind"} for one in self.items if one["kind"] == kinds[path]]
        else:
            listed = self.budgets.get(path.removeprefix("/apis/").removesuffix("/poddisruptionbudgets"))
        body = json.dumps({"items": listed or []}).encode()
        self.send_response(404 if listed is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    "budgets, moved, warned",
    [
        ({"policy/v1beta1": [a_budget(0)]}, "db", False),
        ({"policy/v1": [a_budget(0)], "policy/v1beta1": []}, "db", False),
        ({"policy/v1": []}, "web", False),
        ({}, "web", True),
    ],
)
def test_budgets_of_every_kubernetes(tmp_path, budgets, moved, warned):
    """policy/v1 came with 1.21, policy/v1beta1 went with 1.25; a lister may have no right."""
    stripped = {
        version: [{k: v for k, v in one.items() if k not in ("kind", "apiVersion")} for one in found]
        for version, found in budgets.items()
    }
    handler = type("Handler", (Api,), {"items": objects(), "budgets": stripped})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            config = kubeconfig(tmp_path, f"http://127.0.0.1:{server.server_port}", "t")
            said = run("--pod", WAITS, "--kubeconfig", config)
        finally:
            server.shutdown()
            thread.join()
    assert said.exit_code == 0, said.output
    assert f"1. default/{moved} " in said.output
    assert ("no PodDisruptionBudgets were read" in said.stderr) == warned
    assert ("protected by" in said.output) == (moved == "db")
