"""`doctor --cluster`: each thing that an upgrade or a person may have taken away is a finding with its remedy; the certificates are
the controller's own."""

import base64
import time
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from oci_hook.cli import doctor_cluster
from oci_hook.cli.doctor_cluster import LISTS, Found, examine
from oci_hook.cli.main import cli
from oci_hook.errors import GhError, refuse
from oci_hook.kube.controller.trust import certificates
from testbed import REPO
from tests.kube.cluster_objects import node

NOW = time.time()
BUNDLE = certificates.renewed(certificates.Certificates(), ("localhost",), 90 * 86400, NOW).bundle


def named(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {}, **more.pop("metadata", {})}, **more}


def of_gpus(name: str, namespace: str, **spec: Any) -> dict[str, Any]:
    return named(name, metadata={"namespace": namespace}, spec=spec)


def labelled(name: str, value: str) -> dict[str, Any]:
    found: dict[str, Any] = node(name, 16_000)
    found["metadata"].setdefault("labels", {})["gpu-hook.io/node"] = value
    found.setdefault("status", {})["nodeInfo"] = {"kubeletVersion": "v1.36.2"}
    return found


def whole(now: float = NOW) -> Any:
    """A cluster with both ways, and nothing wrong at this time."""
    hooks = [
        {
            "name": name,
            "clientConfig": {
                "caBundle": base64.b64encode(BUNDLE.encode()).decode(),
                "service": {"path": f"/{name.split('.')[0]}/token"},
            },
        }
        for name in doctor_cluster.WEBHOOKS
    ]
    renewed = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(now - 2))
    words = ["kube-scheduler", "--config=/etc/kubernetes/scheduler.yaml"]
    scheduler = named(
        "kube-scheduler-a",
        metadata={"labels": {"component": "kube-scheduler"}},
        spec={"containers": [{"command": words}]},
    )
    return {
        "webhooks": [named("gpu-hook", webhooks=hooks), named("other")],
        "deployments": [named("gpu-hook-controller", spec={"replicas": 2}, status={"readyReplicas": 2})],
        "leases": [named("gpu-hook-controller", spec={"holderIdentity": "c-1", "renewTime": renewed})],
        "configmaps": [named("gpu-hook-ca", data={"ca.crt": BUNDLE, "generation": "1"})],
        "runtimeclasses": [named("gpu-hook", handler="gpu-hook")],
        "namespaces": [named("team", metadata={"labels": {"gpu-hook.io/namespace": "enabled"}}), named("default")],
        "quotas": [
            of_gpus("ours", "team", hard={"requests.gpu-hook.io/gpus": "1", "requests.cpu": "4"}),
            of_gpus("theirs", "default", hard={"requests.nvidia.com/gpu": "1"}),
        ],
        "limitranges": [of_gpus("cpu", "team", limits=[{"type": "Container", "max": {"cpu": "4"}}])],
        "nodes": [labelled("n1", "true"), labelled("n2", "claims")],
        "schedulers": [scheduler, named("coredns", spec={"containers": [{}]})],
        "deviceclasses": [named("gpu-share.gpu-hook.io"), named("gpu.gpu-hook.io")],
        "resourceslices": [named("s", spec={"driver": "gpu-hook.io", "nodeName": "n2"})],
    }


def states(found: Found) -> dict[str, str]:
    """check -> its state, of all that is not well; each with a remedy where it is more than a note."""
    results = examine(found, NOW)
    assert all(one.code and (one.fix or one.check == "objects") for one in results if one.state in ("warn", "fail"))
    assert all(len(f"{one.code}: {one.message}") < 300 for one in results)
    return {one.check: one.state for one in results if one.state != "ok"}


def test_a_whole_cluster_has_nothing_to_fix() -> None:
    assert whole().keys() == LISTS.keys()
    assert states(whole()) == {}
    lines = [one.message for one in examine(whole(), NOW)]
    assert "2 nodes, kubelets v1.36.2" in lines and "1 report 1 GPU and have keys" in lines


Change = Callable[[Any], object]


@pytest.mark.parametrize(
    ("check", "state", "change"),
    [
        ("webhooks", "fail", lambda c: c["webhooks"].clear()),
        ("webhooks", "fail", lambda c: c["webhooks"][0]["webhooks"].pop()),
        ("webhooks", "fail", lambda c: c["webhooks"][0]["webhooks"][1]["clientConfig"].pop("caBundle")),
        (
            "webhooks",
            "fail",
            lambda c: c["webhooks"][0]["webhooks"][1]["clientConfig"]["service"].update(path="/status"),
        ),
        ("controller", "fail", lambda c: c["deployments"].clear()),
        ("controller", "fail", lambda c: c["deployments"][0]["status"].clear()),
        ("controller", "warn", lambda c: c["deployments"][0]["status"].update(readyReplicas=1)),
        ("controller", "fail", lambda c: c["leases"].clear()),
        ("controller", "fail", lambda c: c["leases"][0]["spec"].update(renewTime="2026-01-01T00:00:00.000000Z")),
        ("runtimeclass", "fail", lambda c: c["runtimeclasses"].clear()),
        ("runtimeclass", "fail", lambda c: c["runtimeclasses"][0].update(handler="runc")),
        ("scheduler", "note", lambda c: c["schedulers"][0]["spec"]["containers"][0]["command"].pop()),
        ("namespaces", "note", lambda c: c["namespaces"].pop(0)),
        *(
            ("quotas", "warn", lambda c, key=key: c["quotas"].append(of_gpus("q", "team", hard={key: "1"})))
            for key in ("requests.nvidia.com/gpu", "requests.nvidia.com/mig-1g.5gb", "limits.nvidia.com/gpumem")
        ),
        *(
            (
                "quotas",
                "warn",
                lambda c, part=part: c["limitranges"][0]["spec"]["limits"][0].update({part: {"nvidia.com/gpu": "2"}}),
            )
            for part in ("max", "min", "default", "defaultRequest")
        ),
        ("nodes", "fail", lambda c: c["nodes"][0]["metadata"]["annotations"].clear()),
        ("nodes", "fail", lambda c: c["configmaps"][0]["data"].update(generation="9")),
        ("claims", "fail", lambda c: c["deviceclasses"].pop()),
        ("claims", "fail", lambda c: c["resourceslices"].clear()),
        ("claims", "fail", lambda c: (c["resourceslices"].clear(), c["deviceclasses"].clear())),
        ("objects", "warn", lambda c: c["namespaces"].insert(0, {"metadata": 1})),
    ],
)
def test_what_is_gone_is_found(check: str, state: str, change: Change) -> None:
    found = whole()
    change(found)
    assert states(found) == {check: state}


def test_certificates_that_end_or_change() -> None:
    found = whole()
    assert {one.check: one.state for one in examine(found, NOW + 3600 * 86400)}["authority"] == "warn"
    two = BUNDLE + certificates.renewed(certificates.Certificates(), ("localhost",), 90 * 86400, NOW).bundle
    found["configmaps"][0]["data"]["ca.crt"] = two
    for hook in found["webhooks"][0]["webhooks"]:
        hook["clientConfig"]["caBundle"] = base64.b64encode(two.encode()).decode()
    assert states(found) == {"authority": "note"}
    found["configmaps"][0]["data"]["ca.crt"] = "no certificate"
    assert states(found) == {"authority": "fail", "webhooks": "fail"}


def test_nodes_with_claims_alone_need_no_controller() -> None:
    found = whole()
    found["nodes"].pop(0)
    for kind in ("webhooks", "deployments", "leases", "configmaps", "runtimeclasses", "namespaces"):
        found[kind] = []
    assert states(found) == {}


def test_what_may_not_be_read_is_said() -> None:
    found = whole()
    found["leases"] = refuse("GH-608", "the API server does not list leases: 403 Forbidden")
    assert [(one.check, one.state, one.message) for one in examine(found, NOW) if one.state != "ok"] == [
        ("rights", "warn", "the API server does not list leases: 403 Forbidden")
    ]
    found["nodes"] = refuse("GH-608", "the API server does not list nodes: 403 Forbidden")
    with pytest.raises(GhError, match="nodes"):
        examine(found, NOW)


def test_the_command_says_where_no_server_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "config").write_text(
        '{"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],'
        ' "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "u", "user": {}}]}'
    )
    said = CliRunner().invoke(cli, ["doctor", "--cluster", "--kubeconfig", str(tmp_path / "config")])
    assert said.exit_code == 1 and "GH-608" in said.output
    assert "needs --cluster" in CliRunner().invoke(cli, ["doctor", "--kubeconfig", str(tmp_path / "config")]).output
    monkeypatch.setattr(doctor_cluster, "kinds", lambda _, paths: {name: whole(time.time())[name] for name in paths})
    done = CliRunner().invoke(cli, ["doctor", "--cluster"])
    assert done.exit_code == 0 and done.output.endswith("all is well\n")


def test_the_names_are_those_of_the_manifests() -> None:
    webhooks = (REPO / "packaging/kubernetes/webhooks.yaml").read_text()
    assert all(f"- name: {name}\n" in webhooks or f"- name: {name} " in webhooks for name in doctor_cluster.WEBHOOKS)
    assert (
        f"name: {doctor_cluster.CONTROLLER}\n  namespace: {doctor_cluster.NAMESPACE}"
        in (REPO / "packaging/kubernetes/controller.yaml").read_text()
    )
