"""Back-off, events, taints, the webhook configurations' patch, addresses, tokens of nodes: the controller's small pure parts."""

from pathlib import Path
from typing import Any

import pytest

from oci_hook.errors import ClusterError, SettingsError
from oci_hook.kube import names
from oci_hook.kube.controller import access, authority, options, taints
from oci_hook.kube.controller.backoff import Backoff
from oci_hook.kube.controller.controller import rules_of
from oci_hook.kube.controller.events import BURST, MOST_KNOWN, REPEAT, About, EventBook
from oci_hook.kube.controller.node_key import AUDIENCE, POD, UID, node_of_pod, pod_of
from oci_hook.kube.controller.service import check_update

OPTIONS = options.Options("127.0.0.1", 8443, "gpu-hook", ("a",))
ABOUT = About("ns", "p", "u")


def test_waits_double_up_to_the_most_and_begin_anew() -> None:
    full, half = Backoff(1, 8, lambda: 1.0), Backoff(1, 8, lambda: 0.0)
    assert [full.failed() for _ in range(6)] == [1, 2, 4, 8, 8, 8]
    assert [half.failed() for _ in range(6)] == [0.5, 1, 2, 4, 4, 4]
    full.worked()
    assert full.failed() == 1
    for _ in range(5000):
        assert full.failed() <= 8


def test_a_repeated_event_is_one_object_with_a_count() -> None:
    book = EventBook()
    first = book.add(ABOUT, "R", "m", True, 0, "t0")
    assert first and first[0] == "POST" and first[2]["count"] == 1 and first[2]["type"] == "Warning"
    assert [book.add(ABOUT, "R", "m", True, 1 + n, "t1") for n in range(9)] == [None] * 9
    again = book.add(ABOUT, "R", "m", True, REPEAT + 1, "t2")
    assert again == ("PATCH", f"{first[1]}/{first[2]['metadata']['name']}", {"count": 11, "lastTimestamp": "t2"})


def test_events_are_limited_in_rate_and_memory() -> None:
    book = EventBook()
    written = [book.add(About("ns", f"p{n}", f"u{n}"), "R", "m", True, 1, "t") for n in range(2 * MOST_KNOWN)]
    assert sum(w is not None for w in written) == BURST and book.dropped == 2 * MOST_KNOWN - BURST
    assert len(book._known) <= MOST_KNOWN
    assert book.add(About("ns", "late", "x"), "R", "m" * 9999, True, 2, "t")[2]["message"] == "m" * 1000  # type: ignore[index]


def node(mode: str = "", taint: bool = False, ours: bool = False, other: bool = False) -> dict[str, Any]:
    listed = [taints.TAINT] * taint + [{"key": "x", "effect": "NoExecute"}] * other
    return {
        "metadata": {
            "name": "n",
            "resourceVersion": "7",
            "labels": {names.T9K_MODE: mode} if mode else {},
            "annotations": {taints.TAINTED: "xgn"} if ours else {},
        },
        "spec": {"taints": listed},
    }


def test_the_taint_follows_the_mode_and_only_ours_is_taken_off() -> None:
    put = taints.patch(node("xgn", other=True))
    assert put[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    assert put[1]["value"] == [{"key": "x", "effect": "NoExecute"}, taints.TAINT]
    assert put[2] == {"op": "add", "path": "/metadata/annotations", "value": {taints.TAINTED: "xgn"}}
    off = taints.patch(node("sgn", taint=True, ours=True, other=True))
    assert off[1]["value"] == [{"key": "x", "effect": "NoExecute"}] and off[2]["op"] == "remove"
    assert taints.patch(node(taint=False, ours=True))[1]["op"] == "remove"  # somebody took the taint off; the note goes
    for nothing in (node("xgn", taint=True), node("xgn", taint=True, ours=True), node("sgn", taint=True), node()):
        assert taints.patch(nothing) == []


def test_a_configuration_gets_bundle_and_token_in_each_webhook_and_nothing_where_it_has_them() -> None:
    have: dict[str, Any] = {
        "metadata": {"name": "x", "resourceVersion": "3"},
        "webhooks": [
            {"clientConfig": {"service": {"name": "s", "namespace": "n", "path": "/pods"}}},
            {"clientConfig": {"url": "https://h:1/bindings/old", "caBundle": "eA=="}},
        ],
    }
    patch = authority.configuration_patch(have, "x", "tok")
    assert {(p["path"], p["value"]) for p in patch} == {
        ("/metadata/resourceVersion", "3"),
        ("/webhooks/0/clientConfig/caBundle", "eA=="),
        ("/webhooks/0/clientConfig/service/path", "/pods/tok"),
        ("/webhooks/1/clientConfig/url", "https://h:1/bindings/tok"),
    }
    have["webhooks"][0]["clientConfig"] = {"service": {"path": "/pods/tok"}, "caBundle": "eA=="}
    have["webhooks"][1]["clientConfig"]["url"] = "https://h:1/bindings/tok"
    assert authority.configuration_patch(have, "x", "tok") == []


@pytest.mark.parametrize("text", ["", "8443", ":8443", "h:", "h:0", "h:65536", "h:x", "h:-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ClusterError, match="GH-608"):
        options.address(text)


def test_addresses_and_names() -> None:
    assert options.address("[::1]:1") == ("::1", 1) and options.loopback("127.0.0.2:65535") == ("127.0.0.2", 65535)
    for text in ("0.0.0.0:1", "10.0.0.1:1", "localhost:1"):
        with pytest.raises(ClusterError, match="no loopback"):
            options.loopback(text)
    assert options.server_names("ns", "https://10.9.9.9:1", "0.0.0.0")[-1] == "10.9.9.9"
    assert "gpu-hook-controller.ns.svc" in options.server_names("ns", "", "::")


def status(**changed: Any) -> dict[str, Any]:
    extra = {POD: ["p"], UID: ["u"]}
    user = {"username": "system:serviceaccount:gpu-hook:gpu-hook-node", "extra": extra}
    return {"authenticated": True, "audiences": [AUDIENCE], "user": user, **changed}


def test_a_url_that_callers_cannot_use() -> None:
    for url in ("ftp://a:1", "a:1", "http://a:1"):
        with pytest.raises(ClusterError, match="GH-608: .* is no URL"):
            options.server_names("ns", url, "127.0.0.1")


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "is no kubeconfig"), ("root:x:0:0", "is no kubeconfig"), ("kind: Config", "has no current-context")],
)
def test_a_file_that_is_no_kubeconfig(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(ClusterError, match=f"GH-608: .*/file gives no way to the API server: it {why};"):
        access.load(str(tmp_path / "file"))


def test_a_wrong_line_is_named_with_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("dialects: [qgpu]\n")
    with pytest.raises(SettingsError) as e:
        rules_of(str(tmp_path / "file"))
    assert str(e.value).startswith(f"GH-501: {tmp_path}/file:1: dialects: qgpu needs qgpu_memory_unit")


def test_a_reviewed_token_names_a_pod_of_the_nodes_account() -> None:
    assert pod_of(status(), OPTIONS) == ("p", "u")
    for wrong in (
        status(authenticated=False),
        status(audiences=["https://kubernetes.default.svc"]),
        status(audiences=None),
        status(user={}),
        status(user={"username": "system:serviceaccount:other:gpu-hook-node", "extra": {POD: ["p"], UID: ["u"]}}),
        status(user={"username": "system:serviceaccount:gpu-hook:gpu-hook-node"}),  # not bound to a pod
        status(
            user={"username": "system:serviceaccount:gpu-hook:gpu-hook-node", "extra": {POD: ["p", "q"], UID: ["u"]}}
        ),
    ):
        assert pod_of(wrong, OPTIONS) is None


def test_the_node_of_a_pod_of_our_daemon_set() -> None:
    def made(kind: str = "DaemonSet", owner: str = "gpu-hook-node", **meta: Any) -> dict[str, Any]:
        owners = [{"kind": kind, "name": owner, "controller": True}]
        return {"metadata": {"uid": "u", "ownerReferences": owners, **meta}, "spec": {"nodeName": "n7"}}

    assert node_of_pod(made(), "u", OPTIONS) == "n7"
    assert node_of_pod(made(), "v", OPTIONS) is None
    assert node_of_pod(made(kind="ReplicaSet"), "u", OPTIONS) is None
    assert node_of_pod(made(owner="another"), "u", OPTIONS) is None
    assert node_of_pod(made(deletionTimestamp="now"), "u", OPTIONS) is None
    assert node_of_pod({**made(), "spec": {}}, "u", OPTIONS) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"gpu-hook.io/memory": "1Mi"}, {"gpu-hook.io/memory": "16Gi"}),
        ({}, {"gpu-hook.io/memory": "16Gi"}),  # no sum at all
        ({"gpu-hook.io/memory": "1Mi"}, {"gpu-hook.io/memory": "1Mi", "gpu-hook.io/gpus": "8"}),
        ({"gpu-hook.io/memory": "1Mi"}, {"gpu-hook.io/memory": "1Mi", "gpu-hook.io/node": "exclusive"}),
        ({"gpu-hook.io/memory": "100%"}, {"gpu-hook.io/exclusive": "true"}),
    ],
)
def test_a_pod_that_waits_does_not_ask_for_more_than_its_quota_counted(
    before: dict[str, str], after: dict[str, str]
) -> None:
    with pytest.raises(ClusterError, match="GH-605"):
        check_update({"metadata": {"annotations": before}}, {"metadata": {"annotations": after}})
    check_update({"metadata": {"annotations": before}}, {"metadata": {"annotations": {**before, "other": "x"}}})


def test_an_update_may_change_anything_but_what_we_decided() -> None:
    old = {"metadata": {"annotations": {names.ALLOC: "x", "a": "1"}}}
    check_update(old, {"metadata": {"annotations": {names.ALLOC: "x", "a": "2", "b": "3"}}})
    for notes in ({names.ALLOC: "y"}, {}, None):
        with pytest.raises(ClusterError, match="GH-605"):
            check_update(old, {"metadata": {"annotations": notes}})
    with pytest.raises(ClusterError, match="GH-605"):
        check_update({"metadata": {}}, old)
