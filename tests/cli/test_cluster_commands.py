"""`explain --pod` and `ps --cluster` on a dump of a cluster."""

import http.server
import json
import threading
import urllib.parse
from pathlib import Path

import pytest
from click.testing import CliRunner

from oci_hook.cli.main import cli
from oci_hook.kube.answers import admission
from oci_hook.kube.formats import names
from oci_hook.kube.placing.cluster_state import ClusterState
from testbed import REPO
from tests.kube.cluster_objects import SIGNER, alloc_of, binding, bound, listing, node, pod


@pytest.fixture
def dump(tmp_path):
    """Two nodes; a pod that runs, one that waits, one that asks for nothing."""
    state = ClusterState()
    nodes = [node("n1", 16_000, digest=listing("u-runs")), node("n2", 8_000)]
    for one in nodes:
        state.apply_node(one)
    runs = pod("runs", memory="12Gi", compute=30, **{"class": "online"})
    state.apply_pod(runs)
    runs = bound(runs, "n1", alloc_of(admission.bind(binding(runs, "n1"), state, 0.0, SIGNER.sign)))
    items = [*nodes, runs, pod("waits", memory="9Gi"), pod("would", memory="4Gi"), pod("plain")]
    path = tmp_path / "a dump.json"
    path.write_text(json.dumps({"kind": "List", "items": items}))
    return str(path)


def run(*words):
    return CliRunner().invoke(cli, list(words))


def test_explain_shows_every_node_and_gpu_with_numbers(dump):
    said = run("explain", "--pod", "default/waits", "--dump", dump)
    assert said.exit_code == 1
    assert "pod default/waits waits: GH-607: 0 of 2 nodes have room" in said.output
    assert "node n1: GH-201: no GPU has 9216 MiB free" in said.output
    assert "3712 of 16000 MiB free, 9216 MiB asked" in said.output
    assert "ask for at most 8000 MiB of memory (node n2)" in said.output
    assert "wait until runs ends (node n1)" in said.output


@pytest.mark.parametrize(
    ("user", "why"),
    [
        ({"exec": {"command": "aws"}}, "plug-ins (exec) are not run"),
        ({"token": "of-many-rights", "as": "reader"}, "it has 'as', which only kubectl follows"),
    ],
)
def test_kubectl_is_asked_where_the_kubeconfig_needs_it(dump, tmp_path, monkeypatch, user, why):
    config = {"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}
    config |= {"clusters": [{"name": "c", "cluster": {"server": "https://a.example"}}]}
    config |= {"users": [{"name": "u", "user": user}]}
    (tmp_path / "config").write_text(json.dumps(config))
    items = json.loads(Path(dump).read_text())["items"]
    for kind in ("Node", "Pod"):
        found = [item for item in items if item["kind"] == kind]
        (tmp_path / f"{kind.lower()}s").write_text(json.dumps({"items": found}))
    script = f"""#!/bin/sh
echo "$*" >>{tmp_path}/said
case $4 in */nodes) cat {tmp_path}/nodes ;; */pods) cat {tmp_path}/pods ;; *) echo no such thing >&2; exit 1 ;; esac
"""
    (tmp_path / "kubectl").write_text(script)
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    given = ("--kubeconfig", str(tmp_path / "config"))
    assert "pod default/waits waits: GH-607" in run("explain", "--pod", "default/waits", *given).output
    first = (tmp_path / "said").read_text().splitlines()[0]
    assert first == f"--kubeconfig={tmp_path}/config get --raw /api/v1/nodes"
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert why in run("explain", "--pod", "default/waits", *given).output


def test_explain_as_json(dump):
    said = run("explain", "--pod", "waits", "--dump", dump, "--json")
    data = json.loads(said.output)
    assert data["problem"]["code"] == "GH-607" and data["node"] is None and data["asks"]
    assert [(n["name"], n["fits"], n["gpus"][0]["free_mib"]) for n in data["nodes"]] == [
        ("n1", False, 3712),
        ("n2", False, 8000),
    ]
    data = json.loads(run("explain", "--pod", "default/would", "--dump", dump, "--json").output)
    assert data["node"] == "n2" and data["nodes"][1]["gpus"][0]["given"] == ["main: 4096 MiB"]


def test_explain_says_who_would_end_and_where(dump):
    data = json.loads(run("explain", "--pod", "waits", "--dump", dump, "--json").output)
    assert data["would_preempt"] is None
    items = json.loads(Path(dump).read_text())
    waits = next(one for one in items["items"] if one["metadata"]["name"] == "waits")
    waits["spec"]["priority"] = 5
    Path(dump).write_text(json.dumps(items))
    said = run("explain", "--pod", "waits", "--dump", dump)
    assert "would preempt default/runs on node n1 if no disruption budget protects them" in said.output
    data = json.loads(run("explain", "--pod", "waits", "--dump", dump, "--json").output)
    assert data["would_preempt"] == {"node": "n1", "pods": ["default/runs"]} and data["protected"] is None
    items["items"][0]["spec"]["taints"] = [{"key": "k", "effect": "NoSchedule"}]
    Path(dump).write_text(json.dumps(items))
    assert "would preempt" not in run("explain", "--pod", "waits", "--dump", dump).output


@pytest.mark.parametrize(
    "spec", [{"unschedulable": True}, {"taints": [{"key": "k", "effect": "NoSchedule"}]}, {"taints": [{"key": "k"}]}]
)
def test_explain_names_no_node_that_keeps_the_pod_off(dump, spec):
    items = json.loads(Path(dump).read_text())
    items["items"][1]["spec"] = spec
    Path(dump).write_text(json.dumps(items))
    said = run("explain", "--pod", "would", "--dump", dump)
    data = json.loads(run("explain", "--pod", "would", "--dump", dump, "--json").output)
    n2 = data["nodes"][1]
    if "effect" not in str(spec) and "taints" in spec:
        assert said.exit_code == 0 and data["node"] == "n2" and n2["fits"]
        return
    assert said.exit_code == 1 and data["node"] is None and "would go" not in said.output
    assert not n2["fits"] and n2["problem"]["code"] == "GH-607" and n2["gpus"][0]["given"] == []
    assert (
        "node n2: GH-607: a cordon, a taint, or the pod's node selector or affinity keeps it off the node"
        in said.output
    )
    assert "(node n2)" not in said.output, "no change of the pod helps there"


def test_pod_and_manifest_stand_alone(dump):
    for more in (["-a", "gpu-hook.io/memory=1Gi"], ["--manifest", dump], ["--container", "x"], ["-l", "a=b"]):
        said = run("explain", "--pod", "would", "--dump", dump, *more)
        assert said.exit_code == 2 and "take only" in said.output, more


@pytest.mark.parametrize(("allowed", "covers"), [(0, True), (1, True), (0, False)])
def test_explain_keeps_to_disruption_budgets(dump, allowed, covers):
    items = json.loads(Path(dump).read_text())
    for one in items["items"]:
        if one["metadata"]["name"] == "waits":
            one["spec"]["priority"] = 5
        if one["metadata"]["name"] == "runs":
            one["metadata"]["labels"] = {"app": "guarded" if covers else "other"}
    items["items"].append(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "guard", "namespace": "default", "uid": "b"},
            "spec": {"selector": {"matchLabels": {"app": "guarded"}}},
            "status": {"disruptionsAllowed": allowed},
        }
    )
    Path(dump).write_text(json.dumps(items))
    said = run("explain", "--pod", "waits", "--dump", dump).output
    data = json.loads(run("explain", "--pod", "waits", "--dump", dump, "--json").output)
    ends = {"node": "n1", "pods": ["default/runs"]}
    if allowed or not covers:
        assert "\nwould preempt default/runs on node n1\n" in said
        assert (data["would_preempt"], data["protected"]) == (ends, None)
    else:
        assert "would not preempt default/runs on node n1: disruption budgets do not allow it now" in said
        assert (data["would_preempt"], data["protected"]) == (None, ends)


JOB = """
kind: Job
metadata: {name: train}
spec:
  parallelism: %d
  template:
    metadata: {annotations: {gpu-hook.io/memory: 3Gi}}
    spec: {containers: [{name: main}]}
"""


@pytest.mark.parametrize(("count", "fits"), [(1, 1), (3, 3), (4, 3)])
def test_a_manifest_s_pods_at_once(dump, tmp_path, count, fits):
    path = tmp_path / "a job.yaml"
    path.write_text(JOB % count)
    said = run("explain", "--manifest", str(path), "--dump", dump)
    assert said.exit_code == (count != fits) and f"train: {fits} of {count} have room: " in said.output
    if count == fits:
        assert f"{count} pod" in said.output and "all have room at once" in said.output
    else:
        assert "GH-607: 0 of 2 nodes have room" in said.output
    data = json.loads(run("explain", "--manifest", str(path), "--dump", dump, "--json").output)
    assert data["fits"] == (count == fits) and sum(data["pods"][0]["nodes"].values()) == fits


@pytest.mark.parametrize(
    ("more", "fits"),
    [
        ("", 3),
        ("nodeSelector: {zone: b}", 0),
        ("tolerations: [{operator: Exists}]", 3),
        ("resources: {requests: {cpu: 1}}", 2),
        ("resources: {limits: {cpu: 3}}", 0),
    ],
)
def test_a_manifest_s_pods_go_only_where_the_scheduler_lets_them(dump, tmp_path, more, fits):
    """The nodes' other resources count for all of them together."""
    items = json.loads(Path(dump).read_text())
    n1, n2, *_ = items["items"]
    n1["spec"] = {"unschedulable": "tolerations" not in more}
    n2["status"] = {"allocatable": {"cpu": "2"}}
    Path(dump).write_text(json.dumps(items))
    path = tmp_path / "a job.yaml"
    path.write_text(
        (JOB % 3).replace("3Gi", "2Gi").replace("spec: {cont", f"spec: {{{more + ', ' if more else ''}cont")
    )
    said = run("explain", "--manifest", str(path), "--dump", dump)
    assert f"train: {fits} of 3 have room" in said.output, said.output
    if "cpu" in more:
        assert "the node has too little cpu left" in said.output and "keeps it off the node" in said.output


def test_what_of_a_manifest_is_not_counted_is_named(dump, tmp_path):
    path = tmp_path / "m.yaml"
    more = "{kind: DaemonSet, metadata: {name: d}, spec: {template: {}}}\n---\n{kind: 'Ser\tvice'}\n"
    path.write_text(f"{JOB % 1}---\n{more}")
    said = run("explain", "--manifest", str(path), "--dump", dump)
    assert said.exit_code == 0 and "not counted: 'DaemonSet', 'Ser\\tvice'" in said.output, said.output
    data = json.loads(run("explain", "--manifest", str(path), "--dump", dump, "--json").output)
    assert data["left_out"] == ["'DaemonSet'", "'Ser\\tvice'"] and "warnings" not in data
    path.write_text((JOB % 1).replace("gpu-hook.io/memory: 3Gi", 'tencent.com/qgpu-memory: "10"'))
    said = run("explain", "--manifest", str(path), "--dump", dump)
    assert "qGPU's requests are not read here" in said.stderr


@pytest.mark.parametrize("text", [b"", b"\xff", b"{kind: Service}", b"[[["])
def test_what_is_no_manifest_is_one_line_with_its_code(dump, tmp_path, text):
    path = tmp_path / "m.yaml"
    path.write_bytes(text)
    said = run("explain", "--manifest", str(path), "--dump", dump)
    assert said.exit_code != 0 and "GH-107" in said.output and len(said.output.strip().splitlines()) == 1
    assert run("explain", "--manifest", str(tmp_path / "no"), "--dump", dump).exit_code != 0


@pytest.mark.parametrize(
    "name, words", [("plain", "asks for no GPU"), ("runs", "is on node n1"), ("would", "would go to node n2")]
)
def test_explain_of_pods_that_need_none(dump, name, words):
    said = run("explain", "--pod", name, "--dump", dump)
    assert said.exit_code == 0 and words in said.output


def test_ps_lists_who_holds_what(dump):
    said = run("ps", "--cluster", "--dump", dump)
    assert said.exit_code == 0
    assert said.output.splitlines()[1].split()[:4] == ["default", "runs", "n1", "0"]
    assert "30%" in said.output and "online" in said.output and "granted" in said.output
    (one,) = json.loads(run("ps", "--cluster", "--dump", dump, "--json").output)["pods"]
    assert (one["pod"], one["node"], one["memory_mib"], one["ledger"]) == ("runs", "n1", 12288, "granted")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"items": [1]}', '{"items": [{"kind": "Pod", "metadata": {"name": "x"}}]}']
)
def test_a_dump_that_is_none_is_refused(tmp_path, text):
    path = tmp_path / "dump"
    path.write_text(text)
    for words in (("ps", "--cluster"), ("explain", "--pod", "x")):
        said = run(*words, "--dump", str(path))
        assert said.exit_code == 1 and said.output.startswith("GH-608"), said.output


def test_a_pod_that_is_not_there(dump):
    assert "GH-608: there is no pod default/nobody" in run("explain", "--pod", "nobody", "--dump", dump).output
    assert "GH-608" in run("ps", "--cluster", "--dump", dump + "x").output


# --- an API server


FOLDER = "/clusters/c-1"  # as where a server manages several clusters


class Api(http.server.BaseHTTPRequestHandler):
    """Lists of what the dump has, in pages of two; only for the right token."""

    items: list = []

    def do_GET(self):
        url = urllib.parse.urlparse(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        kind = {f"{FOLDER}/api/v1/nodes": "Node", f"{FOLDER}/api/v1/pods": "Pod"}.get(url.path)
        listed = [{k: v for k, v in one.items() if k != "kind"} for one in self.items if one["kind"] == kind]
        at = int(query.get("continue") or 0)
        assert int(query["limit"]) > 0
        more = str(at + 2) if at + 2 < len(listed) else ""
        status = 403 if self.headers.get("Authorization") != "Bearer right" else 200 if kind else 404
        body = json.dumps({"items": listed[at : at + 2], "metadata": {"continue": more}}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(dump):
    with open(dump) as f:
        handler = type("Handler", (Api,), {"items": json.load(f)["items"]})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}{FOLDER}"
        found.shutdown()
        thread.join()


def kubeconfig(tmp_path, url, token):
    path = tmp_path / "kube config"
    path.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": {"token": token}}],
            }
        )
    )
    return str(path)


def test_the_api_server_says_the_same_as_a_dump(tmp_path, server, dump):
    for words in (("ps", "--cluster", "--json"), ("explain", "--pod", "default/would", "--json")):
        asked = run(*words, "--kubeconfig", kubeconfig(tmp_path, server, "right"))
        assert asked.exit_code == 0 and asked.output == run(*words, "--dump", dump).output


def test_the_kubeconfig_of_kubectl_is_found(tmp_path, server, monkeypatch):
    """Also where its first file says nothing of the API server."""
    (tmp_path / "first").write_text("preferences: {}\n")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/first:{kubeconfig(tmp_path, server, 'right')}")
    assert "runs" in run("ps", "--cluster").output


def test_an_api_server_that_refuses_or_is_not_there(tmp_path, server, dump):
    said = run("ps", "--cluster", "--kubeconfig", kubeconfig(tmp_path, server, "wrong"))
    assert said.exit_code == 1 and "GH-608" in said.output and "403" in said.output
    said = run("ps", "--cluster", "--kubeconfig", kubeconfig(tmp_path, "http://127.0.0.1:1", "right"))
    assert said.exit_code == 1 and "GH-608" in said.output and "refused" in said.output
    both = ("--kubeconfig", kubeconfig(tmp_path, server, "right"), "--dump", dump)
    assert "give only one" in run("ps", "--cluster", *both).output


def test_the_page_has_every_key(dump):
    page = (REPO / "docs/reference/json.md").read_text()
    explained = json.loads(run("explain", "--pod", "waits", "--dump", dump, "--json").output)
    (held,) = json.loads(run("ps", "--cluster", "--dump", dump, "--json").output)["pods"]
    path = Path(dump).with_name("job.yaml")
    path.write_text(JOB % 1)
    manifest = json.loads(run("explain", "--manifest", str(path), "--dump", dump, "--json").output)
    keys = {
        *manifest,
        *manifest["pods"][0],
        *explained,
        *explained["nodes"][0],
        *explained["nodes"][0]["gpus"][0],
        *explained["problem"],
        *held,
    }
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ({"kind": "Job"}, "lacks 'template' in a 'Job'"),
        ({"kind": "Job", "spec": 5}, "a value of the wrong kind in a 'Job'"),
        ({"kind": "Job", "spec": {"template": 5}}, "a value of the wrong kind in a 'Job'"),
        ({"kind": "Pod", "spec": {"containers": [5]}}, "a value of the wrong kind in a 'Pod'"),
    ],
)
def test_a_broken_manifest_is_told_in_words_of_its_own(dump, tmp_path, manifest, words):
    path = tmp_path / "a job.json"
    path.write_text(json.dumps(manifest))
    said = run("explain", "--manifest", str(path), "--dump", dump)
    assert said.exit_code == 1 and f"GH-107: the manifest {'' if words[0] == 'l' else 'has '}{words}" in said.output
    assert "Error" not in said.output


@pytest.mark.parametrize(("mode", "fits"), [("sgn", 0), ("xgn", 1), ("", 0)])
def test_a_manifest_s_pods_go_to_nodes_of_their_t9k_mode(dump, tmp_path, mode, fits):
    """As the webhook's pods do: one for whole GPUs goes to a node for such pods where the cluster has one."""
    items = json.loads(Path(dump).read_text())
    n1, n2, *_ = items["items"]
    n1["metadata"]["labels"] = {names.T9K_MODE: "xgn"}
    n2["metadata"]["labels"] = {names.T9K_MODE: mode}
    Path(dump).write_text(json.dumps(items))
    path = tmp_path / "t9k.yaml"
    path.write_text(
        "{kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, resources: {limits: {tensorstack.dev/nvidia-gpu: 1}}}]}}"
    )
    said = run("explain", "--manifest", str(path), "--dump", dump)
    assert f"p: {fits} of 1 have room" in said.output, said.output
