"""`ps --cluster`, `explain --pod` and `why --cluster` of pods with ResourceClaims, on a dump; the slices are the driver's own."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from oci_hook.cli.main import cli
from oci_hook.core.rules import Rules
from oci_hook.kube.formats import slices
from testbed.installs import UUIDS, make_inventory
from tests.kube.answers.test_claims import a_class
from tests.kube.cluster_objects import pod

Files = dict[str, Any]


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words), catch_exceptions=False)


def a_slice(node: str, devices: list[Any], generation: int = 1) -> Any:
    spec = {
        "driver": "gpu-hook.io",
        "nodeName": node,
        "pool": {"name": node, "generation": generation},
        "devices": devices,
    }
    return {"kind": "ResourceSlice", "metadata": {"name": f"{node}-{generation}"}, "spec": spec}


def claim(
    name: str, memory: str = "", compute: str = "", of: str = "gpu-share.gpu-hook.io", count: int = 1, **status: Any
) -> Any:
    amounts = {key: value for key, value in (("memory", memory), ("compute", compute)) if value}
    exactly: Any = {"deviceClassName": of, "count": count, **({"capacity": {"requests": amounts}} if amounts else {})}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    meta = {"name": name, "namespace": "default"}
    return {"kind": "ResourceClaim", "metadata": meta, "spec": spec, "status": status}


def given(device: Any, memory: str, compute: str = "0", users: tuple[str, ...] = (), **words: Any) -> Any:
    """The status of a claim that is allocated on node n1."""
    result = {"driver": "gpu-hook.io", "pool": "n1", "device": device["name"], "request": "gpu"}
    result["consumedCapacity"] = {"memory": memory, "compute": compute}
    parameters = {"apiVersion": "gpu-hook.io/v1", "kind": "Share", **words}
    config = [{"opaque": {"driver": "gpu-hook.io", "parameters": parameters}}]
    return {
        "allocation": {"devices": {"results": [result, {"driver": "other", "pool": "n1"}], "config": config}},
        "reservedFor": [{"resource": "pods", "name": name} for name in users],
    }


def with_claims(name: str, *claims: str, at: str = "", **words: Any) -> Any:
    """The first by a template."""
    found = pod(name, node_name=at, **words)
    first, *more = claims
    found["spec"]["resourceClaims"] = [{"name": "a", "resourceClaimTemplateName": "t"}]
    found["spec"]["resourceClaims"] += [{"name": f"b{n}", "resourceClaimName": one} for n, one in enumerate(more)]
    found.setdefault("status", {})["resourceClaimStatuses"] = [{"name": "a", "resourceClaimName": first}]
    return found


def with_resource(name: str, resource: str, *counts: str) -> Any:
    """A container for each count of GPUs."""
    found = pod(name, containers=[f"c{n}" for n in range(len(counts))])
    for container, count in zip(found["spec"]["containers"], counts, strict=True):
        container["resources"] = {"limits": {resource: count}}
    return found


def to_be_made(name: str, **more: Any) -> Any:
    found = pod(name, **more)
    found["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    return found


@pytest.fixture
def dump(tmp_path: Path) -> str:
    """A node of two GPUs of 24 GiB; of the first 20 GiB and 60 % are taken, of the other nothing."""
    devices = slices.devices(make_inventory(tmp_path / "driver", tmp_path / "state"), Rules(), (), {})[:2]
    items = [
        *(a_slice("n1", [], 1), a_slice("n1", devices, 2)),
        claim("c-runs", "20Gi", "60", **given(devices[0], "20Gi", "60", ("runs",), **{"class": "online"})),
        *(
            claim("c-fits", "10Gi"),
            claim("c-wide", "30Gi"),
            claim("c-two", "10Gi", count=2),
            claim("c-all", of="gpu.gpu-hook.io"),
        ),
        claim("c-mine", "2Gi", "50", of="mine"),
        claim("c-other", of="nic"),
        {"kind": "DeviceClass", **a_class("gpu.gpu-hook.io", extendedResourceName="gpu-hook.io/gpu")},
        {"kind": "DeviceClass", **a_class("nic", extendedResourceName="nic.io/nic")},
        {"kind": "DeviceClass", **a_class("mine", 'device.driver == "gpu-hook.io"')},
        with_claims("runs", "c-runs", at="n1"),
        *(with_claims(name, f"c-{name}") for name in ("fits", "wide", "two", "all", "mine", "other")),
        *(with_claims("both", "c-all", "c-mine"), with_claims("room", "c-other", "c-fits")),
        *(with_resource("ext", "gpu-hook.io/gpu", "1"), with_resource("ext2", "gpu-hook.io/gpu", "1", "1")),
        with_resource("class", "deviceclass.resource.kubernetes.io/gpu.gpu-hook.io", "1"),
        *(with_resource("ext-nic", "nic.io/nic", "1"), to_be_made("new"), with_claims("lost", "c-lost")),
        *(to_be_made("new-nic", memory="1Gi"), with_claims("nic", "c-other", memory="1Gi")),
        with_claims("done", "c-runs", at="n1", phase="Succeeded"),
    ]
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"items": items}))
    return str(path)


def test_ps_has_all_of_the_compute_beside_a_part_of_the_memory(dump: str) -> None:
    data = json.loads(Path(dump).read_text())
    claim = next(item for item in data["items"] if item["metadata"]["name"] == "c-runs")
    claim["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"]["compute"] = "100"
    Path(dump).write_text(json.dumps(data))
    (row,) = json.loads(run("ps", "--cluster", "--dump", dump, "--json").output)["pods"]
    assert (row["compute"], row["whole"]) == (100, False)


def test_ps_has_the_shares_of_claims(dump: str) -> None:
    (row,) = json.loads(run("ps", "--cluster", "--dump", dump, "--json").output)["pods"]
    assert row == {
        **{"namespace": "default", "pod": "runs", "node": "n1", "address": "0", "uuid": UUIDS[0]},
        **{"memory_mib": 20480, "whole": False, "compute": 60, "class": "online", "ledger": "claim c-runs"},
    }
    assert "claim c-runs" in run("ps", "--cluster", "--dump", dump).output


def test_fractions_are_rounded(dump: str) -> None:
    """The slices have no steps, so a claim consumes what it asks for to the last digit; the node refuses such compute."""
    data = json.loads(Path(dump).read_text())
    found = next(item for item in data["items"] if item["metadata"]["name"] == "c-runs")
    found["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] = {"memory": "4G", "compute": "29500m"}
    Path(dump).write_text(json.dumps(data))
    (row,) = json.loads(run("ps", "--cluster", "--dump", dump, "--json").output)["pods"]
    assert (row["memory_mib"], row["compute"]) == (3814, 30)


def test_a_tenants_deep_claim_hides_nobody(dump: str) -> None:
    """The API server takes 1000 levels and more in a claim's configuration, and in the managedFields of any object."""
    text = Path(dump).read_text()
    deep = json.dumps(claim("deep"))[:-1] + ', "x": ' + '{"a":' * 3000 + "{}" + "}" * 3001
    Path(dump).write_text(text[:-2] + f", {deep}]}}")
    (row,) = json.loads(run("ps", "--cluster", "--dump", dump, "--json").output)["pods"]
    assert row["pod"] == "runs" and run("explain", "--pod", "fits", "--dump", dump).exit_code == 0


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("runs", 0, "pod default/runs is on node n1; `gpu-hook ps --cluster`"),
        ("done", 0, "pod default/done has ended; it holds nothing"),
        ("fits", 0, "1 of 1 nodes have room for its claims; Kubernetes' scheduler chooses"),
        ("wide", 1, "ask for at most 24576 MiB of memory (node n1)"),
        ("two", 1, "1 of its GPUs have room for c-two: 10240 MiB, and 2 asked for"),
        ("all", 0, "the pod gets c-all: all memory"),
        ("mine", 0, "the pod gets c-mine: 2048 MiB, 50 %"),
        ("both", 1, "0 of its GPUs have room for c-mine: 2048 MiB, 50 %"),
        ("other", 0, "pod default/other asks for no GPU"),
        ("room", 0, "the pod gets c-fits: 10240 MiB"),
        ("ext", 0, "the pod gets gpu-hook.io/gpu: all memory"),
        ("ext2", 1, "1 of its GPUs have room for gpu-hook.io/gpu: all memory, and 2 asked for"),
        ("class", 0, "the pod gets deviceclass.resource.kubernetes.io/gpu.gpu-hook.io: all memory"),
        ("ext-nic", 0, "pod default/ext-nic asks for no GPU"),
        ("new", 1, "pod default/new waits: GH-607: its claim gpu is not there yet"),
        ("lost", 1, "pod default/lost waits: GH-607: its claim c-lost is not there yet"),
        ("new-nic", 1, "pod default/new-nic waits: GH-607: 0 of 1 node have room"),
    ],
)
def test_explain_says_where_claims_have_room(dump: str, name: str, status: int, said: str) -> None:
    found = run("explain", "--pod", name, "--dump", dump)
    assert said in found.output and found.exit_code == status, found.output


def test_the_figures_of_each_gpu(dump: str) -> None:
    data = json.loads(run("explain", "--pod", "wide", "--dump", dump, "--json").output)
    (node,) = data["nodes"]
    assert [(gpu["free_mib"], gpu["free_compute"], gpu["containers"]) for gpu in node["gpus"]] == [
        (4096, 40, 1),
        (24576, 100, 0),
    ]
    assert data["problem"]["code"] == "GH-607" and not node["fits"] and node["problem"]["code"] == "GH-201"


def test_a_gpu_with_a_taint_has_no_room(dump: str) -> None:
    data = json.loads(Path(dump).read_text())
    for item in data["items"]:
        for device in item["spec"].get("devices", ()) if item["kind"] == "ResourceSlice" else ():
            device["taints"] = [{"key": "gpu-hook.io/taken", "effect": "NoSchedule"}]
    Path(dump).write_text(json.dumps(data))
    found = run("explain", "--pod", "fits", "--dump", dump)
    assert found.exit_code == 1 and "0 of 1 nodes" in found.output and "without a claim" in found.output


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wide", "which Kubernetes places"),
        ("ext", "which Kubernetes places"),
        ("new", "which Kubernetes places"),
        ("nic", "pod nic waits, and no series of up to 20 moves was found that would give it room"),
        ("other", "pod 'other' asks for no GPU"),
    ],
)
def test_why_proposes_no_moves_for_claims_of_ours(dump: str, name: str, said: str) -> None:
    assert said in run("why", "--cluster", "--pod", name, "--dump", dump).output


@pytest.mark.parametrize(
    "broken", [{"status": {"allocation": {"devices": {"results": [{"driver": "gpu-hook.io"}]}}}}, {"spec": 1}]
)
def test_objects_of_another_form_are_no_crash(dump: str, broken: dict[str, Any]) -> None:
    data = json.loads(Path(dump).read_text())
    next(item for item in data["items"] if item["metadata"]["name"] == "c-wide").update(broken)
    Path(dump).write_text(json.dumps(data))
    for words in (("ps", "--cluster"), ("explain", "--pod", "wide")):
        assert run(*words, "--dump", dump).exit_code in (0, 1)
    assert "GH-608" in run("explain", "--pod", "wide", "--dump", dump).output
