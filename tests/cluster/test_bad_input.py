"""What people, other schedulers and stolen keys can write about a pod: each gets a code, and no GPU."""

import base64
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest

from oci_hook.core import decision as decisions
from oci_hook.core.decision import DecidedShare, DecidedTerms, Decision
from oci_hook.core.layout import ALLOC
from oci_hook.kube.formats.signing import node_key
from testbed.cluster import lab
from testbed.cluster.api import Api, Refused
from testbed.cluster.controllers import OPTED_IN
from tests.cluster.whole import OURS, Namespace, Whole, pod

MEMORY = {"gpu-hook.io/memory": "2Gi"}
OTHERS = "1" * 64  # a secret that is not the controller's


class Forger:
    """Signs with the controller's own secret, or with others."""

    def __init__(self, whole: Whole) -> None:
        data = whole.object("-n", OURS, "get", "secret", "gpu-hook-controller")["data"]
        self.secrets = json.loads(base64.b64decode(data["node-keys"]))
        self.newest = max(map(int, self.secrets))

    def __call__(self, uid: str, node: str, gpu: str, *, key_of: str = "", container: str = "main", **more: Any) -> str:
        """key_of: another node, whose key signs."""
        secrets = {int(number): bytes.fromhex(more.get("secret", key)) for number, key in self.secrets.items()}
        generation = more.get("generation", self.newest)
        secrets.setdefault(generation, bytes.fromhex(OTHERS))
        shares = ((container, (DecidedShare(gpu, more.get("mib", 2048)),)),)
        made = Decision(uid, node, generation, shares, ((container, DecidedTerms("best-effort", "default")),))
        key = node_key(secrets[generation], key_of or node)
        signature = hmac.digest(key, decisions.signed_text(made).encode(), "sha256").hex()
        return decisions.text(made.replace(sig=signature))


def waiting(namespace: Namespace, name: str, **more: Any) -> str:
    """A pod of our RuntimeClass that no scheduler binds; its uid."""
    namespace.apply(pod(name, notes=MEMORY, runtimeClassName="gpu-hook", schedulerName="nobody", **more))
    return str(namespace.get(name)["metadata"]["uid"])


def bind(namespace: Namespace, name: str, node: str, notes: dict[str, str]) -> None:
    """As any client that may create Bindings."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    metadata = {"name": name, "namespace": namespace.name, "annotations": notes}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
    path = f"/api/v1/namespaces/{namespace.name}/pods/{name}/binding"
    namespace.whole.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(body))


def gpus_of(whole: Whole, node: str) -> list[str]:
    notes = whole.object("get", "node", node)["metadata"]["annotations"]
    return [gpu[0] for gpu in json.loads(notes["gpu-hook.io/inventory"])["gpus"]]


def never_ran(namespace: Namespace, name: str) -> None:
    """No container of the pod has ever run."""
    for each in namespace.get(name)["status"].get("containerStatuses") or ():
        states = {**each["state"], **{f"last {k}": v for k, v in each["lastState"].items()}}
        assert "running" not in states and not each.get("started"), states


@pytest.mark.promise
def test_decisions_that_are_not_the_controllers(whole: Whole, stranger: Namespace) -> None:
    """Bound by a client in a namespace whose Bindings the webhook does not see: the node is alone with what is written."""
    sign = Forger(whole)
    gpu = gpus_of(whole, "n2")[0]
    real = sign("uid-of-another-pod", "n2", gpu)
    cases: dict[str, tuple[Callable[[str], str | None], str]] = {
        "missing": (lambda _: None, "GH-601"),
        "empty": (lambda _: "", "GH-602"),
        "nested": (lambda _: "[" * 60_000, "GH-602"),
        "oversized": (lambda uid: sign(uid, "n2", gpu) + " " * decisions.MAX_TEXT, "GH-602"),
        "changed": (lambda uid: sign(uid, "n2", gpu).replace("2048", "2049"), "GH-602"),
        "forged": (lambda uid: sign(uid, "n2", gpu, secret=OTHERS), "GH-602"),
        "other-key": (lambda uid: sign(uid, "n2", gpu, key_of="n1"), "GH-602"),  # a stolen key of n1
        "stale": (lambda uid: sign(uid, "n2", gpu, generation=0), "GH-602"),
        "future": (lambda uid: sign(uid, "n2", gpu, generation=sign.newest + 7), "GH-606"),
        "other-pod": (lambda _: real, "GH-603"),
        "other-node": (lambda uid: sign(uid, "n1", gpu), "GH-603"),
        "more": (lambda uid: sign(uid, "n2", gpu, mib=4096), "GH-604"),
        "no-gpu": (lambda uid: sign(uid, "n2", "GPU-9"), "GH-202"),
    }
    uids = {name: waiting(stranger, name) for name in cases}
    for name, (made, _) in cases.items():
        alloc = made(uids[name])
        bind(stranger, name, "n2", {} if alloc is None else {ALLOC: alloc})
    for name, (_, code) in cases.items():
        stranger.says(name, code, 240)
        never_ran(stranger, name)
    assert stranger.grants() == {}

    # The digest tells the cluster, and the same pod with a decision that is right runs.
    digest = json.loads(whole.object("get", "node", "n2")["metadata"]["annotations"]["gpu-hook.io/ledger"])
    assert digest["refused"].items() >= {uids[name]: code for name, (_, code) in cases.items()}.items()
    # One that lacks the container gives it nothing.
    uid = waiting(stranger, "other-name")
    bind(stranger, "other-name", "n2", {ALLOC: sign(uid, "n2", gpu, container="sidecar")})
    stranger.runs("other-name")
    uid = waiting(stranger, "right")
    bind(stranger, "right", "n2", {ALLOC: sign(uid, "n2", gpu)})
    stranger.runs("right")
    assert stranger.grants() == {"right/main": ("n2", {gpu: 2048}), "other-name/main": ("n2", {})}


def test_a_namespace_that_has_not_opted_in(whole: Whole, stranger: Namespace) -> None:
    """Our RuntimeClass and our words alone give nothing, also by the scheduler; a pod of another class sees no GPU."""
    stranger.apply(
        pod("class", notes=MEMORY, runtimeClassName="gpu-hook"),
        pod("decided", notes={**MEMORY, ALLOC: "{}"}, runtimeClassName="gpu-hook"),
        pod("words", notes=MEMORY),
    )
    stranger.says("class", "GH-601")
    stranger.says("decided", "GH-602")
    stranger.runs("words")
    assert "MiB total" not in stranger.kubectl("logs", "words")
    never_ran(stranger, "class")
    never_ran(stranger, "decided")
    assert stranger.grants() == {}


def test_decision_keys_that_a_client_writes(whole: Whole, team: Namespace) -> None:
    for key in (ALLOC, f"{ALLOC}.main", "gpu-hook.io/grant"):
        assert "GH-605" in team.refused(pod("early", notes={**MEMORY, key: "{}"}))
        assert "GH-605" in team.refused(pod("early", notes={key: "{}"}))  # though it asks for nothing
    team.apply(pod("one", notes=MEMORY))
    before = team.runs("one")["metadata"]["annotations"]
    for change in ("{}", None):
        patch = json.dumps({"metadata": {"annotations": {ALLOC: change}}})
        try:
            team.kubectl("patch", "pod", "one", "-p", patch)
        except RuntimeError as e:
            assert "GH-605" in str(e)
        else:
            raise AssertionError(f"{ALLOC} was changed to {change}")
    assert team.get("one")["metadata"]["annotations"] == before
    team.kubectl("annotate", "pod", "one", "note=mine")  # others may change


def test_a_binding_of_another_client(whole: Whole, team: Namespace) -> None:
    """The webhook writes the decision, whatever the Binding says; a Binding with other words of ours is denied."""
    sign = Forger(whole)
    gpu = gpus_of(whole, "n2")[0]
    uid = waiting(team, "lies")
    bind(team, "lies", "n2", {ALLOC: sign(uid, "n2", gpu, mib=9000)})
    team.runs("lies")
    ((_, given),) = team.grants().values()
    assert list(given.values()) == [2048]

    waiting(team, "larger")
    team.apply(pod("idle", runtimeClassName="gpu-hook", schedulerName="nobody"))
    for name, notes in (("larger", {"gpu-hook.io/memory": "9Gi"}), ("idle", {**MEMORY, ALLOC: sign("x", "n2", gpu)})):
        with pytest.raises(RuntimeError, match="GH-605"):
            bind(team, name, "n2", notes)
    assert list(team.grants()) == ["lies/main"]


def test_a_status_that_takes_the_decision_away_frees_nothing(whole: Whole, team: Namespace) -> None:
    """By pods/status, while the API server does not ask. What the node granted counts until the container has ended."""
    most, n1 = {"gpu-hook.io/memory": "75%"}, {"kubernetes.io/hostname": "n1"}
    team.apply(pod("first", notes=most, nodeSelector=n1))
    team.runs("first")
    change = [{"op": "remove", "path": "/metadata/annotations/gpu-hook.io~1alloc"}]
    control = whole.cluster.control
    api = Api(control.machine.pid, control.keys.folder)
    path = f"/api/v1/namespaces/{team.name}"
    with pytest.raises(Refused, match="GH-605"):
        api("PATCH", f"{path}/pods/first/status", change, "application/json-patch+json")
    api.merge(path, {"metadata": {"labels": dict.fromkeys(OPTED_IN)}})

    def taken_away() -> bool:  # the API server notices the label a little later
        try:
            api("PATCH", f"{path}/pods/first/status", change, "application/json-patch+json")
        except Refused as e:
            assert "GH-605" in e.message, e
            return False
        return True

    lab.wait(30, "nobody is asked", taken_away)
    api.merge(path, {"metadata": {"labels": OPTED_IN}})
    api.close()
    assert ALLOC not in team.get("first")["metadata"]["annotations"]
    for name in ("second", "third"):
        team.apply(pod(name, notes=most, nodeSelector=n1))
    lab.wait(60, "one of them runs", lambda: len(team.grants()) == 2)
    team.says("third" if "second/main" in team.grants() else "second", "GH-201")
    assert len({uuid for _, shares in team.grants().values() for uuid in shares}) == 2


def test_annotations_that_are_too_large(whole: Whole, team: Namespace) -> None:
    """The API server's bound is 256 KiB for all of a pod; a decision must fit beside what is there."""
    assert "GH-105" in team.refused(pod("long", notes={"gpu-hook.io/memory": "9" * 100_000}))
    for spare in (0, 300):
        name = f"full-{spare}"
        full = pod(name, notes={**MEMORY, "note": ""})
        used = sum(len(k) + len(v) for k, v in full["metadata"]["annotations"].items())
        used += len("gpu-hook.io/asked1")
        full["metadata"]["annotations"]["note"] = "x" * ((256 << 10) - used - spare)
        assert "GH-105" in team.refused(full, by="create")  # `apply` adds an annotation
    assert team.pods() == [] and team.grants() == {}
