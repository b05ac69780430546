"""`gpu-hook translate --to dra`: the claims, the places they go to, and that the node's driver reads the same request from them."""

import json
import re
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oci_hook.cli.main import cli
from oci_hook.core import dialects
from oci_hook.core.inventory import Inventory
from oci_hook.core.request import Request, parse
from oci_hook.core.rules import Rules
from oci_hook.errors import RequestError
from oci_hook.kube.dra import allocation
from oci_hook.kube.dra.kubelet_messages import ClaimName
from oci_hook.kube.formats import claim_words, slices
from oci_hook.kube.manifests import translate as kube
from oci_hook.oci import request_mounts
from testbed import REPO
from testbed.installs import UUIDS, make_inventory
from testbed.long import draws
from tests.kube.dra.node import NODE

ALL = Rules(dialects=dialects.NAMES, qgpu_memory_unit="GiB")
CLASSES = {
    item["metadata"]["name"]: item["spec"]
    for item in yaml.safe_load_all((REPO / "packaging/kubernetes/dra/classes.yaml").read_text())
}
UID = "11111111-aaaa-4000-8000-000000000001"
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def run(text: str, *options: str) -> Result:
    return CliRunner().invoke(cli, ["translate", "-", "--to", "dra", *options], input=text, catch_exceptions=False)


def new(text: str) -> list[Any]:
    result = run(text)
    assert result.exit_code == 0, result.stderr
    return list(yaml.safe_load_all(result.stdout))


def refused(text: str) -> str:
    result = run(text)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    return result.stderr


def claims_of(documents: list[Any]) -> dict[str, Any]:
    """The specs of the templates by their names."""
    found = [one for one in documents if one["kind"] == "ResourceClaimTemplate"]
    assert all(one["apiVersion"] == "resource.k8s.io/v1" for one in found)
    return {one["metadata"]["name"]: one["spec"]["spec"] for one in found}


def pod(annotations: dict[str, str], *containers: Any, init: tuple[Any, ...] = (), **spec: Any) -> str:
    listed: dict[str, Any] = {"containers": list(containers) or [{"name": "main"}], **spec}
    if init:
        listed["initContainers"] = list(init)
    return yaml.safe_dump({"kind": "Pod", "metadata": {"name": "p", "annotations": annotations}, "spec": listed})


DEPLOYMENT = """\
# a comment
kind: Deployment
metadata: {name: train, namespace: ml}
spec:
  template:
    metadata:
      annotations:
        tencent.com/vcuda-core-limit: "60"
        other: "x"  # stays
    spec:
      runtimeClassName: nvidia
      containers:
        - name: main
          resources:
            limits:
              cpu: 2
              tencent.com/vcuda-core: 30  # per cent
              tencent.com/vcuda-memory: 16
        - {name: logs, image: busybox}
"""


def test_the_whole_text() -> None:
    result = run(DEPLOYMENT)
    assert result.stderr == "note: Deployment train: runtimeClassName was nvidia\n"
    assert (
        result.stdout
        == """\
# a comment
kind: Deployment
metadata: {name: train, namespace: ml}
spec:
  template:
    metadata:
      annotations:
        other: "x"  # stays
    spec:
      resourceClaims: [{"name": "gpu-main", "resourceClaimTemplateName": "train-gpu-main"}]
      containers:
        - name: main
          resources:
            claims: [{"name": "gpu-main"}]
            limits:
              cpu: 2
        - {name: logs, image: busybox}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: train-gpu-main
  namespace: ml
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly:
          deviceClassName: gpu-share.gpu-hook.io
          capacity:
            requests:
              memory: 4Gi
              compute: '30'
      config:
      - opaque:
          driver: gpu-hook.io
          parameters:
            apiVersion: gpu-hook.io/v1
            kind: Share
            policy: burst-share
            compute-limit: '60'
"""
    )
    data = json.loads(run(DEPLOYMENT, "--json").stdout)
    assert data["objects"][0]["claims"] == {"main": "gpu-main"} and data["objects"][0]["annotations"] == {}


def test_our_own_annotations_and_whole_gpus() -> None:
    """An init container has the claim of the one after it that asks for the same; a sidecar lives beside that one."""
    text = pod(
        {"gpu-hook.io/memory.prep": "3000Mi", "gpu-hook.io/memory.side": "3000Mi", "gpu-hook.io/memory.main": "3000Mi"}
        | {"gpu-hook.io/gpus.big": "2", "gpu-hook.io/node-placement": "spread"},
        *({"name": "main"}, {"name": "big"}, {"name": "none"}),
        init=({"name": "prep"}, {"name": "side", "restartPolicy": "Always"}),
        runtimeClassName="gpu-hook",
    )
    first, *rest = new(text)
    names = {c["name"]: (c.get("resources") or {}).get("claims") for c in first["spec"]["containers"]}
    names |= {c["name"]: c["resources"]["claims"] for c in first["spec"]["initContainers"]}
    main, side, big = ([{"name": f"gpu-{name}"}] for name in ("main", "side", "big"))
    assert names == {"prep": main, "side": side, "main": main, "big": big, "none": None}
    assert "runtimeClassName" not in first["spec"]
    found = claims_of(rest)
    assert found["p-gpu-main"] == found["p-gpu-side"]
    assert found["p-gpu-big"]["devices"]["requests"] == [
        {"name": "gpu", "exactly": {"deviceClassName": "gpu.gpu-hook.io", "count": 2}}
    ]
    assert sorted(found) == ["p-gpu-big", "p-gpu-main", "p-gpu-side"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (pod({"gpu-hook.io/compute": "30"}), "compute alone means as much memory, in per cent"),
        (pod({"gpu-hook.io/compute": "30", "gpu-hook.io/memory": "30%"}), "container main: memory, in per cent"),
        (pod({"gpu-hook.io/memory": "30%"}), "memory, in per cent of the GPU, which a claim cannot say"),
        (pod({"gpu-hook.io/gpus": "all"}), "every GPU of a node"),
        (pod({"gpu-hook.io/node": "exclusive"}), "every GPU of a node"),
        (pod({"gpu-hook.io/devices": "0:1"}), "cannot name the device '0:1'"),
        ("kind: Pod\nmetadata: {annotations: {gpu-hook.io/memory: 1Gi}}\nspec: {containers: [{name: a}]}\n", "no name"),
    ],
)
def test_what_no_claim_can_say_is_refused(text: str, why: str) -> None:
    assert "GH-107" in refused(text) and why in refused(text)


def test_what_the_scheduler_cannot_be_told_is_a_note() -> None:
    asked = {"memory": "1Gi", "memory-request": "512Mi", "apart-from": "web", "placement": "spread"}
    text = pod({f"gpu-hook.io/{key}": value for key, value in asked.items()})
    said = run(text).stderr.splitlines()
    assert said == [
        "note: Pod p: container main: memory-request: 512Mi has no equivalent in a claim, and is left out",
        "note: Pod p: container main: placement: spread has no equivalent in a claim, and is left out",
        "note: Pod p: container main: apart-from: web has no equivalent in a claim, and is left out",
    ]
    assert "config" not in claims_of(new(text))["p-gpu-main"]["devices"]


def test_names_that_are_taken_get_a_number() -> None:
    one = pod({"gpu-hook.io/memory": "1Gi"})
    there = "kind: ResourceClaimTemplate\nmetadata: {name: p-gpu-main}\n"
    documents = list(yaml.safe_load_all(run(f"{there}---\n{one}---\n{one}").stdout))
    assert [d["metadata"]["name"] for d in documents[3:]] == ["p-gpu-main-2", "p-gpu-main-3"]
    assert documents[2]["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == "p-gpu-main-3"


@pytest.mark.parametrize("claims", ['[{"name": "x"}]', "\n      - name: x\n        request: a"])
@pytest.mark.parametrize("limits", ["limits: {nvidia.com/gpumem: 1024}", "limits: {nvidia.com/gpumem: 1024, cpu: 1}"])
def test_claims_of_others_stay(claims: str, limits: str) -> None:
    text = f"""\
kind: Pod
metadata: {{name: p}}
spec:
  resourceClaims:
  - name: x
    resourceClaimTemplateName: nic
  containers:
  - name: main
    resources:
      {limits}
      claims: {claims}
"""
    (first, _) = new(text)
    assert [c["name"] for c in first["spec"]["resourceClaims"]] == ["x", "gpu-main"]
    assert sorted(c["name"] for c in first["spec"]["containers"][0]["resources"]["claims"]) == ["gpu-main", "x"]
    assert first["spec"]["containers"][0]["resources"].get("limits") == ({"cpu": 1} if "cpu" in limits else None)


@pytest.mark.parametrize("key", ["gpu-hook.io/gpus", "NVIDIA_VISIBLE_DEVICES"])
def test_nothing_asked_is_unchanged(key: str) -> None:
    text = pod({key: "none"})
    assert run(text).stdout == text and "nothing requests" in run(text).stderr


def test_each_claim_of_a_pod_has_a_name_of_its_own() -> None:
    """Container names are as long as claims' names may be."""
    names = ["n" * 62 + "a", "n" * 62 + "b", "main"]
    (first, *templates) = new(
        pod(
            {"gpu-hook.io/memory": "1Gi"},
            *({"name": name} for name in names),
            resourceClaims=[{"name": "gpu-main", "resourceClaimTemplateName": "nic"}],
        )
    )
    claims = [one["name"] for one in first["spec"]["resourceClaims"]]
    assert len(set(claims)) == 4 and all(map(LABEL.fullmatch, claims)) and len(templates) == 3
    (used,) = first["spec"]["containers"][2]["resources"]["claims"]
    assert used["name"] == "gpu-main-2"


# A claim means what its annotations mean.


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    folder = tmp_path_factory.mktemp("node")
    return make_inventory(folder / "driver", folder / "state")


def allocated(claim: dict[str, Any], inventory: Inventory) -> Any:
    """As Kubernetes' scheduler does it, on GPUs in their order."""
    devices = claim["devices"]
    results, config = [], []
    free = [slices.device_name(gpu.uuid) for gpu in inventory.gpus]
    for request in devices["requests"]:
        wanted = request["exactly"]
        config += CLASSES[wanted["deviceClassName"]].get("config", [])
        for _ in range(wanted.get("count", 1)):
            named = [
                slices.device_name(gpu.uuid)
                for gpu in inventory.gpus
                for selector in wanted.get("selectors", ())
                if re.search(rf'"{gpu.uuid}"$|index == {gpu.index}$', selector["cel"]["expression"])
            ]
            device = named[0] if named else next(name for name in free)
            free.remove(device)
            amounts = {"consumedCapacity": wanted["capacity"]["requests"]} if "capacity" in wanted else {}
            results.append(
                {"request": request["name"], "driver": "gpu-hook.io", "pool": NODE, "device": device, **amounts}
            )
    status = {"allocation": {"devices": {"results": results, "config": [*config, *devices.get("config", [])]}}}
    meta = {"uid": UID, "name": "c", "namespace": "default"}
    return allocation.asked(
        {"metadata": meta, "status": status}, ClaimName("default", UID, "c"), NODE, inventory, Rules()
    )


WORD = st.fixed_dictionaries(
    {},
    optional={
        "memory": st.sampled_from(["1Gi", "3000Mi", "25%"]),
        "compute": st.sampled_from(["5", "30"]),
        "gpus": st.sampled_from(["1", "2", "none"]),
        "devices": st.sampled_from(["0", "0,1", UUIDS[1]]),
        "policy": st.sampled_from(["best-effort", "fixed-share", "burst-share"]),
        "class": st.sampled_from(["online", "offline"]),
        "compute-limit": st.sampled_from(["40", "90"]),
        "exclusive": st.sampled_from(["true", "false"]),
        "visible": st.sampled_from(["index", "uuid"]),
        "preempt-tolerance": st.just("1ms"),
        "capabilities": st.just("compute"),
        "boundary": st.just("shim"),
        "request": st.sampled_from(
            ['[{"memory": "1Gi"}, {"memory": "2Gi", "compute": 5}]', '[{"memory": "1Gi", "device": 1}]']
        ),
    },
)


@settings(
    max_examples=draws(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(words=WORD)
def test_the_driver_reads_the_same_request(words: dict[str, str], inventory: Inventory) -> None:
    annotations = {f"gpu-hook.io/{key}": value for key, value in words.items()}
    try:
        wanted = parse(annotations, {}, "main", Rules(dialects=()), decode=request_mounts.decode)
        text = kube.translate(pod(annotations), ALL, to_claims=True).text
    except RequestError as e:
        assert all(len(str(p)) <= 300 for p in e.problems)
        return
    found = claims_of(list(yaml.safe_load_all(text)))
    if wanted is None or not wanted.gpus:
        assert not found
        return
    (claim,) = found.values()
    assert all(LABEL.fullmatch(one["name"]) for one in claim["devices"]["requests"])
    got = allocated(claim, inventory).request
    assert plain(got) == plain(wanted.replace(placement=None))


def plain(request: Request) -> Request:
    """Without the GPUs' names, which only the claim's result has."""
    return request.replace(gpus=tuple(gpu.replace(device=None) for gpu in request.gpus))


def test_the_classes_are_those_that_are_installed() -> None:
    assert set(CLASSES) == {claim_words.SHARE_CLASS, claim_words.GPU_CLASS}
