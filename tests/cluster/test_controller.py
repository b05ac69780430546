"""The controller against a real kube-apiserver, etcd and kube-scheduler; nodes are plain objects, so no container runs."""

import json
import os
import signal
import subprocess
import time
from typing import Any

import pytest

from oci_hook.core import decision as decisions
from oci_hook.core.decision import signed_text
from oci_hook.kube.controller.trust import certificates, own_secret
from oci_hook.kube.formats import names
from oci_hook.kube.formats.node_info import Digest
from oci_hook.kube.formats.signing import Signer
from testbed.cluster import plain_nodes, programs
from testbed.cluster.api import Refused
from testbed.cluster.controllers import OPTED_IN, Controller
from testbed.cluster.machine import wait
from testbed.cluster.pki import API
from testbed.cluster.plain_nodes import decision
from testbed.cluster.plane import EXTENDER, PODS, WORK, Plane, always, answers, text_of

GIB = 1024


def signed_by(plane: Plane, pod: Any) -> bool:
    """Whether the decision on the pod is for its UID and node and signed with that node's key."""
    found = decisions.read(pod["metadata"]["annotations"][names.ALLOC], json.loads)
    secrets = {int(n): bytes.fromhex(s) for n, s in json.loads(plane.secret()["node-keys"]).items()}
    assert signed_text(found)
    return (found.uid, found.node) == (pod["metadata"]["uid"], pod["spec"]["nodeName"]) and Signer(secrets).holds(found)


def test_a_pod_gets_node_and_gpu_in_one_write_and_bad_words_are_refused_at_create(plane: Plane) -> None:
    plane.ready(plane.controller())
    plane.node("a", 16 * GIB, 16 * GIB)
    plane.create("p", "4Gi")
    pod = plane.bound("p")
    assert signed_by(plane, pod) and pod["spec"]["runtimeClassName"] == "gpu-hook"
    [[uuid, mib, *_]] = decision(pod)["c"]["main"]
    assert uuid.startswith("GPU-a-") and mib == 4 * GIB
    assert pod["spec"]["containers"][0]["resources"]["limits"]["gpu-hook.io/gpus"] == "1"

    for notes, code in (
        ({"gpu-hook.io/memori": "1Gi"}, "GH-102"),
        ({"gpu-hook.io/memory": "-1"}, "GH-101"),
        ({names.ALLOC: "{}"}, "GH-605"),
    ):
        with pytest.raises(Refused, match=code):
            plane.create("bad", annotations=notes)
    with pytest.raises(Refused, match="GH-605"):
        plane.api.merge(f"{PODS}/p", {"metadata": {"annotations": {names.ALLOC: "{}"}}})
    with pytest.raises(Refused, match="GH-605"):
        plane.api.merge(f"{PODS}/p", {"metadata": {"annotations": {names.ALLOC: None}}})
    plane.api.merge(f"{PODS}/p", {"metadata": {"annotations": {"note": "mine"}}})

    plane.create("plain")  # asks for nothing
    assert names.ALLOC not in (plane.bound("plain")["metadata"].get("annotations") or {})


def test_no_part_of_a_pod_s_api_changes_what_it_asks_for(plane: Plane) -> None:
    """Annotations that came with writes of its status, of its other parts, and of a Binding."""
    plane.ready(plane.controller())
    plane.node("a", 16 * GIB)
    plane.create("p", "4Gi")
    before = plane.bound("p")["metadata"]["annotations"]
    plane.create("waits", "4Gi", schedulerName="nobody")
    more = {"metadata": {"annotations": {"gpu-hook.io/memory": "9Gi", names.ALLOC: "{}"}}}
    for part in ("", "/status", "/resize", "/ephemeralcontainers"):
        try:
            plane.api.merge(f"{PODS}/p{part}", more)
        except Refused as e:
            assert "GH-605" in e.message or e.status in (404, 405, 415, 422), (part, e)
        assert plane.pod("p")["metadata"]["annotations"] == before, part
    phase = {"status": {"phase": "Running"}, "metadata": {"annotations": {"note": "mine"}}}
    plane.api.merge(f"{PODS}/p/status", phase)
    assert plane.pod("p")["status"]["phase"] == "Running"
    target = {"target": {"kind": "Node", "name": "a"}, "metadata": {"name": "waits", **more["metadata"]}}
    with pytest.raises(Refused, match="GH-605"):
        plane.api("POST", f"{PODS}/waits/binding", target)


def test_an_api_server_asks_about_a_status_only_if_it_can_or_must(plane: Plane) -> None:
    """While the controller is away statuses and labels still change; where the API server has match conditions, it is not asked."""
    controller = plane.ready(plane.controller())
    plane.node("a", 16 * GIB)
    plane.create("p", "4Gi")
    plane.bound("p")
    asked = 'gpu_hook_controller_answers_total{call="create",result="ok"}'
    before = controller.figures()[asked]
    plane.api.merge(f"{PODS}/p/status", {"status": {"phase": "Running"}})
    old = programs.minor() < 28
    assert controller.figures()[asked] - before == old
    controller.stop()
    plane.api.merge(f"{PODS}/p/status", {"status": {"phase": "Failed"}})
    if old:
        with pytest.raises(Refused, match="webhook"):
            plane.api.merge(f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}})
    else:
        plane.api.merge(f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}})
        with pytest.raises(Refused, match="webhook"):
            plane.api.merge(f"{PODS}/p", {"metadata": {"annotations": {"a": "b"}}})


@pytest.mark.promise
def test_no_gpu_is_given_twice_and_a_freed_share_is_given_again(plane: Plane) -> None:
    controller = plane.ready(plane.controller())
    for name in ("a", "b"):
        plane.node(name, 16 * GIB, 16 * GIB)
    for n in range(16):
        plane.create(f"p{n}", "7Gi")
    wait(90, "8 pods have a node", lambda: sum("nodeName" in p["spec"] for p in plane.pods()) == 8)
    always(3, lambda: sum("nodeName" in p["spec"] for p in plane.pods()) == 8)
    taken = plane.granted()
    assert len(taken) == 4 and set(taken.values()) == {14 * GIB}

    # A pod that its node's ledger lists is not gone with its object.
    gone = next(p for p in plane.pods() if "nodeName" in p["spec"])
    node = gone["spec"]["nodeName"]
    sizes = [16 * GIB, 16 * GIB]
    listed = tuple((p["metadata"]["uid"], ("main",)) for p in plane.pods() if p["spec"].get("nodeName") == node)
    plain_nodes.play_digest(plane.api, node, sizes, Digest(listed))
    wait(
        30,
        "the digest is read",
        lambda: controller.figures()[f'gpu_hook_controller_node_grants{{Hostname="{node}"}}'] == 4,
    )
    plane.api("DELETE", f"{PODS}/{gone['metadata']['name']}")
    always(3, lambda: sum("nodeName" in p["spec"] for p in plane.pods()) == 7)
    plain_nodes.play_digest(plane.api, node, sizes, Digest(tuple(r for r in listed if r[0] != gone["metadata"]["uid"])))
    plane.create("next", "7Gi")  # its arrival makes the scheduler look again at the others, too
    wait(120, "the share is given again", lambda: sum("nodeName" in p["spec"] for p in plane.pods()) == 8)
    assert set(plane.granted().values()) == {14 * GIB}


def test_a_pod_that_its_node_refused_is_evicted_and_a_bare_one_is_told(plane: Plane) -> None:
    plane.ready(plane.controller())
    plane.node("a", 16 * GIB)
    template = plain_nodes.pod("x", "4Gi", labels={"app": "x"})
    sets = f"/apis/apps/v1/namespaces/{WORK}/replicasets"
    body = {
        "metadata": {"name": "set"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "x"}},
            "template": {"metadata": template["metadata"], "spec": {**template["spec"], "restartPolicy": "Always"}},
        },
    }
    body["spec"]["template"]["metadata"].pop("name")  # type: ignore[index]
    plane.api("POST", sets, body)
    wait(60, "the set's pod has a node", lambda: any(p["spec"].get("nodeName") for p in plane.pods()))
    plane.create("bare", "4Gi")
    plane.bound("bare")
    owned = next(p for p in plane.pods() if p["metadata"].get("ownerReferences"))

    def play(name: str) -> None:
        waiting = {"reason": "RunContainerError", "message": "runc: GH-201: no GPU has room for 4096 MiB: unknown"}
        status = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
        plane.api.merge(
            f"{PODS}/{name}/status",
            {"status": {"containerStatuses": [{**status, "state": {"waiting": waiting}}]}},
        )

    play(owned["metadata"]["name"])
    play("bare")
    wait(
        60,
        "the set has another pod",
        lambda: owned["metadata"]["uid"] not in {p["metadata"]["uid"] for p in plane.pods()},
    )
    said = lambda name: [e for e in plane.events(name) if "GH-201: no GPU has room" in e and "GpuShareRefused" in e]  # noqa: E731
    wait(30, "both have an event", lambda: bool(said(owned["metadata"]["name"]) and said("bare")))
    assert "not evicted" in said("bare")[0] and "evicted" in said(owned["metadata"]["name"])[0]
    wait(60, "the new one has a node", lambda: sum("nodeName" in p["spec"] for p in plane.pods()) == 2)
    assert plane.pod("bare")["spec"]["nodeName"] == "a"
    assert len(said("bare")) == 1


def test_the_taint_of_t9k_s_mode_is_put_on_and_only_that_one_is_taken_off(plane: Plane) -> None:
    plane.ready(plane.controller())
    plane.node("a", 16 * GIB, labels={names.T9K_MODE: "xgn"})
    taint = {"key": names.T9K_TAINT, "value": "true", "effect": "NoSchedule"}

    def taints(name: str) -> list[Any]:
        return [
            t for t in plane.api.get(f"/api/v1/nodes/{name}")["spec"].get("taints") or [] if t["key"] == names.T9K_TAINT
        ]

    wait(30, "the taint is on", lambda: taints("a") == [taint])
    plane.api.merge("/api/v1/nodes/a", {"metadata": {"labels": {names.T9K_MODE: None}}})
    wait(30, "the taint is off", lambda: taints("a") == [])
    plane.node("b", 16 * GIB)
    plane.api.merge("/api/v1/nodes/b", {"spec": {"taints": [taint]}})
    always(2, lambda: taints("b") == [taint])


def leads(controller: Controller) -> bool:
    return bool(controller.figures()["gpu_hook_controller_leads"])


def bind_review(pod: Any, node: str) -> dict[str, Any]:
    meta = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
    request = {"uid": "r", "operation": "CREATE", "namespace": meta["namespace"], "name": meta["name"]}
    return {"request": {**request, "object": {"metadata": meta, "target": {"kind": "Node", "name": node}}}}


def test_one_leads_and_who_was_paused_for_too_long_answers_nothing(plane: Plane) -> None:
    """Two controllers: the second passes on what it is asked until the first is paused; the first, resumed, decides nothing before
    it has looked at the Lease; and the second knows what the first decided last."""
    first = plane.ready(plane.controller())
    plane.node("a", 16 * GIB)
    second = plane.controller(second=True)
    plane.create("p", "9Gi")
    plane.bound("p")
    token = plane.secret()["webhook-token"]
    wait(30, "the second listens", lambda: second.ask("GET", "/healthz")[0] == 200)
    always(4, lambda: leads(first) and not leads(second))
    wait(30, "both are ready", lambda: first.ready() and second.ready())
    review = bind_review(plane.pod("p"), "a")
    alone = {"Gpu-Hook-Forwarded": "1"}  # as if another controller asked: it is not passed on
    assert second.ask("POST", f"/bindings/{token}", review, alone)[0] == 503
    text_of(second.ask("POST", f"/bindings/{token}", review))

    first.pause()
    wait(60, "the second leads", lambda: leads(second))
    first.resume()
    status, text = first.ask("POST", f"/bindings/{token}", review, alone)
    assert status == 503, text
    always(5, lambda: leads(second) and not leads(first))
    assert second.figures()['gpu_hook_controller_node_grants{Hostname="a"}'] == 1

    second.stop()  # by SIGTERM: it gives the Lease back
    wait(60, "the first leads again", lambda: leads(first))
    second.start()
    wait(30, "the second listens", lambda: second.ask("GET", "/healthz")[0] == 200)
    first.stop(signal.SIGKILL)
    wait(60, "the second leads again", lambda: leads(second))


def test_certificates_and_authority_are_renewed_while_pods_come(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serving certificates of 60 s, a first authority of 120 s: no admission fails while both are renewed."""
    with monkeypatch.context() as patched:
        patched.setattr(certificates, "AUTHORITY_LIVES", 2)
        own = own_secret.renewed(own_secret.Own(), (API,), 60, 1e6, time.time(), os.urandom(64), 0)
    made = {"metadata": {"name": names.CONTROLLER}, "data": own_secret.data(own)}
    plane.api("POST", "/api/v1/namespaces/gpu-hook/secrets", made)
    controller = plane.ready(plane.controller("--certificate-days", f"{60 / 86400:.6f}"))
    plane.node("a", 16 * GIB)
    authorities, served = set(), set()
    begun = time.monotonic()
    n = 0
    while len(authorities) < 2 or n < 20:
        assert time.monotonic() - begun < 420, plane.secret().keys()
        plane.create(f"p{n}", "1Gi")
        plane.bound(f"p{n}")
        plane.api("DELETE", f"{PODS}/p{n}")
        secret = plane.secret()
        authorities.add(secret["ca.crt"])
        served.add(secret["tls.crt"])
        n += 1
        time.sleep(2)
    assert len(served) > 2 and controller.ready()


def test_what_changed_while_the_api_server_was_away_and_compacted_is_read_anew(plane: Plane) -> None:
    controller = plane.ready(plane.controller())
    plane.node("a", 16 * GIB)
    plane.create("p", "4Gi")
    plane.bound("p")
    lists = controller.figures()['gpu_hook_controller_lists_total{kind="nodes"}']
    controller.pause()
    try:
        again(plane)  # the watches are cut
        plane.node("b", 16 * GIB)
        plane.api("DELETE", "/api/v1/nodes/a")
        compact(plane)
        again(plane)  # the API server's own memory of changes begins after them
    finally:
        controller.resume()
    wait(60, "listed anew", lambda: controller.figures()['gpu_hook_controller_lists_total{kind="nodes"}'] > lists)
    wait(60, "ready again", controller.ready)
    wait(30, "b is known", lambda: 'gpu_hook_controller_node_grants{Hostname="b"}' in controller.figures())
    plane.wait_for_webhooks()
    plane.create("q", "4Gi")
    assert plane.bound("q", 120)["spec"]["nodeName"] == "b"
    assert "forgot our version" in controller.log.read_text()


def again(plane: Plane) -> None:
    plane.control.stop("kube-apiserver", signal.SIGKILL)
    plane.control.start("kube-apiserver")


def compact(plane: Plane) -> None:
    """etcd forgets every version but the newest. Its JSON gateway does it without another program."""
    code = """
import json, urllib.request
def ask(path, body):
    request = urllib.request.Request("http://127.0.0.1:2379/v3/" + path, json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request, timeout=10))
newest = int(ask("kv/range", {"key": "AA=="})["header"]["revision"])
ask("kv/compaction", {"revision": newest, "physical": True})
"""
    subprocess.run(
        ["nsenter", "-t", str(plane.control.machine.pid), "-n", "--", "/usr/bin/python3", "-c", code],
        check=True,
        timeout=30,
    )


def test_a_controller_that_is_killed_between_reservation_and_binding_loses_and_doubles_nothing(plane: Plane) -> None:
    """With the extender; the controller is killed while 24 pods for 24 places are being placed."""
    options = ("--extender-address", f"127.0.0.1:{EXTENDER}")
    controller = plane.ready(plane.controller(*options))
    plane.use_extender()
    for name in ("a", "b", "c"):
        plane.node(name, 16 * GIB, 16 * GIB)
    try:
        for n in range(24):
            while True:
                try:
                    plane.create(f"p{n}", "3500Mi")
                    break
                except Refused as e:
                    assert "webhook" in e.message, e  # nobody answers at this moment
                    time.sleep(0.2)
            if n in (6, 14):
                controller.stop(signal.SIGKILL)
                controller.start()
        wait(240, "all have a node", lambda: all("nodeName" in p["spec"] for p in plane.pods()))
        assert len(plane.pods()) == 24
        assert set(plane.granted().values()) == {4 * 3500} and len(plane.granted()) == 6
        assert all(signed_by(plane, pod) for pod in plane.pods())
    finally:
        plane.control.use_scheduler_config({})


def token_for(plane: Plane, account: str, audience: str, pod: Any = None) -> str:
    spec: dict[str, Any] = {"audiences": [audience], "expirationSeconds": 600}
    if pod:
        spec["boundObjectRef"] = {
            "kind": "Pod",
            "apiVersion": "v1",
            "name": pod["metadata"]["name"],
            "uid": pod["metadata"]["uid"],
        }
    made = plane.api("POST", f"/api/v1/namespaces/gpu-hook/serviceaccounts/{account}/token", {"spec": spec})
    return str(made["status"]["token"])


SETS = "/apis/apps/v1/namespaces/gpu-hook/daemonsets"


def daemon_set(name: str, account: str) -> dict[str, Any]:
    labels = {"set": name}
    spec = {**plain_nodes.pod("x")["spec"], "serviceAccountName": account}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": template}}


def test_a_node_learns_its_own_keys_and_nobody_else_s(plane: Plane) -> None:
    controller = plane.ready(plane.controller())
    plane.node("a", 16 * GIB)
    folder = "/api/v1/namespaces/gpu-hook"
    for name in ("gpu-hook-node", "other"):
        plane.api("POST", f"{folder}/serviceaccounts", {"metadata": {"name": name}})
    for name, account in (("gpu-hook-node", "gpu-hook-node"), ("other", "other"), ("another", "gpu-hook-node")):
        plane.api("POST", SETS, daemon_set(name, account))
    try:
        found: dict[str, Any] = {}

        def all_run() -> bool:
            for pod in plane.api.get(f"{folder}/pods")["items"]:
                if pod["spec"].get("nodeName") == "a":
                    found[pod["metadata"]["labels"]["set"]] = pod
            return len(found) == 3

        wait(60, "the sets' pods have a node", all_run)
        real, other, another = found["gpu-hook-node"], found["other"], found["another"]
        loose = plane.api(
            "POST", f"{folder}/pods", plain_nodes.pod("loose", serviceAccountName="gpu-hook-node", nodeName="a")
        )
        mine = token_for(plane, "gpu-hook-node", "gpu-hook-controller", real)

        def ask(token: str) -> tuple[int, str]:
            return controller.ask("POST", "/v1/node-key", b"", {"Authorization": f"Bearer {token}"})

        answer = text_of(ask(mine))
        assert answer["node"] == "a"
        secrets = {int(n): bytes.fromhex(s) for n, s in json.loads(plane.secret()["node-keys"]).items()}
        assert answer["keys"].keys() == {"1"} and answer["keys"]["1"] != secrets[1].hex()
        for token in (
            token_for(plane, "gpu-hook-node", "gpu-hook-controller"),  # of no pod
            token_for(plane, "gpu-hook-node", "https://kubernetes.default.svc", real),
            token_for(plane, "gpu-hook-node", "gpu-hook-controller", loose),
            token_for(plane, "gpu-hook-node", "gpu-hook-controller", another),
            token_for(plane, "other", "gpu-hook-controller", other),
            mine[:-4] + "AAAA",
            "x",
        ):
            assert ask(token)[0] == 403, token
        assert ask("")[0] == 401 and ask("x" * 9000)[0] in (400, 401)
        plane.api("DELETE", f"{folder}/pods/{real['metadata']['name']}?gracePeriodSeconds=0")
        wait(30, "the token of a deleted pod is worth nothing", lambda: ask(mine)[0] == 403)
    finally:
        plane.api("DELETE", SETS)
        for name in ("gpu-hook-node", "other"):
            plane.api("DELETE", f"{folder}/serviceaccounts/{name}")
        plane.api("DELETE", f"{folder}/pods?gracePeriodSeconds=0")


def test_slow_large_and_wrong_callers_do_not_stop_it(plane: Plane) -> None:
    controller = plane.ready(plane.controller())
    plane.node("a", 16 * GIB)
    token = plane.secret()["webhook-token"]
    for path in ("/bindings", "/pods", "/bindings/", f"/bindings/{token[:-1]}", f"/bindings/{token}x", "/filter", "/preempt",
                 f"/extender/{token}/filter", f"/filter/{token}", "/../pods", "/"):  # fmt: skip
        assert controller.ask("POST", path, {})[0] == 404, path
    for body in (b"", b"{", b"[]", b"null", b'{"request":7}', b"[" * 100_000, b'"' + b"a" * 1000):
        assert controller.ask("POST", f"/pods/{token}", body)[0] == 400, body[:20]
    assert controller.ask("POST", f"/bindings/{token}", b"x" * (9 << 20))[0] in (0, 413)

    sockets = []
    for n in range(600):  # more than one address may have; half of them begin a request
        try:
            connection = controller.connection()
            connection.connect()
            if n % 2:
                connection.sock.sendall(b"POST /bindings/x HTTP/1.1\r\nContent-Length: 99\r\n")
            sockets.append(connection)
        except OSError:
            pass
    try:
        plane.create("p", "4Gi")
        plane.bound("p")
        wait(60, "they are cut", lambda: controller.figures()["gpu_hook_controller_connections_cut_total"] >= 500)
    finally:
        for connection in sockets:
            connection.close()
    assert controller.ready()


def test_who_knows_the_webhooks_token_gets_no_decision_for_a_namespace_without_the_label(plane: Plane) -> None:
    """Whoever makes a pod may learn it: the API server's error names the URL that it could not reach."""
    controller = plane.ready(plane.controller())
    plane.node("a", 16 * GIB)
    grants = 'gpu_hook_controller_node_grants{Hostname="a"}'
    wait(30, "the node is read", lambda: grants in controller.figures())
    token, outside = plane.secret()["webhook-token"], "/api/v1/namespaces/outside"
    plane.api("POST", "/api/v1/namespaces", {"metadata": {"name": "outside"}})
    try:
        wait(60, "it has its service account", lambda: answers(plane.api, f"{outside}/serviceaccounts/default"))
        theirs = plane.api("POST", f"{outside}/pods", plain_nodes.pod("theirs", "4Gi", schedulerName="nobody"))

        def asked() -> Any:
            return text_of(controller.ask("POST", f"/bindings/{token}", bind_review(theirs, "a")))["response"]

        assert not asked()["allowed"] and asked()["status"]["message"].startswith("GH-601")
        assert controller.figures()[grants] == 0
        plane.api.merge(outside, {"metadata": {"labels": OPTED_IN}})
        wait(30, "the label is read", lambda: asked()["allowed"])
        plane.api.merge(outside, {"metadata": {"labels": dict.fromkeys(OPTED_IN)}})
        wait(30, "it is read that the label is gone", lambda: not asked()["allowed"])
    finally:
        plane.api("DELETE", f"{outside}/pods?gracePeriodSeconds=0")
        plane.api("DELETE", outside)
