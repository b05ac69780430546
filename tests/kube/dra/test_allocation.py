"""The driver's pure parts: slices that the API server admits, and input of any shape."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_hook.core.inventory import Gpu
from oci_hook.core.rules import Rules
from oci_hook.core.units import MIB
from oci_hook.errors import GhError
from oci_hook.kube.dra import allocation, cdi, kubelet_messages
from oci_hook.kube.dra.kubelet_messages import ClaimName
from oci_hook.kube.dra.publisher import pcie_root
from oci_hook.kube.formats import quantity, slices
from testbed.installs import UUIDS, make_inventory
from tests.kube.dra.node import NODE, result

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # RFC 1123
UID = "11111111-aaaa-4000-8000-000000000001"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@given(
    memory=st.integers(1, 200_000),
    context=st.integers(0, 900),
    step=st.integers(1, 5000),
    least=st.integers(1, 9000),
    reserve=st.integers(0, 2000),
    compute_step=st.integers(1, 100),
)
def test_each_device_is_as_the_api_server_wants_it(
    memory: int, context: int, step: int, least: int, reserve: int, compute_step: int
) -> None:
    """validateRequestPolicyRange of resource.k8s.io: what is not so is refused with the whole slice."""
    rules = Rules(memory_step=step, memory_min=least, memory_reserve=reserve, compute_step=compute_step)
    gpu = Gpu(UUIDS[0], 0, 0, memory, "A GPU", context_mib=context, arch="8.9", numa=1)
    found = slices.devices(inventory().replace(gpus=(gpu,)), rules, (), {})
    if not found:
        assert slices.most(gpu, rules) < slices.least(gpu, rules)
        return
    (device,) = found
    assert LABEL.fullmatch(device["name"])
    shares = device["capacity"].pop("shares")  # validateRequestPolicyValidValues
    assert int(shares["value"]) >= 1 and shares["requestPolicy"] == {"default": "1", "validValues": ["1"]}
    for capacity in device["capacity"].values():
        value, policy = quantity.whole(capacity["value"]), capacity["requestPolicy"]
        default, low = quantity.whole(policy["default"]), quantity.whole(policy["validRange"]["min"])
        assert low <= default <= value
        assert policy["validRange"].keys() == {"min"}  # with a step, the scheduler of 1.36.2 lets 8Ei consume -8Ei
    assert quantity.whole(device["capacity"]["memory"]["value"]) <= (memory - reserve) * MIB


def inventory() -> Any:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return make_inventory(Path(folder) / "driver", Path(folder) / "state")


INVENTORY = inventory()


def test_names_sizes_and_versions() -> None:
    assert slices.device_name("MIG-a1B2/7_0") == "mig-a1b2-7-0"
    assert [slices.size(n) for n in (1, 1023, 1024, 24576, 1 << 20, 1 << 30)] == [
        "1Mi",
        "1023Mi",
        "1Gi",
        "24Gi",
        "1Ti",
        "1024Ti",
    ]
    versions = ("8.9", "550.163.01", "12", "", "1.2.3.4", "8.x", "-1.0")
    assert [slices.version(text) for text in versions] == ["8.9.0", "550.163.1", "12.0.0", "", "", "", ""]
    assert slices.mib("1") == 0 and slices.mib("1Gi") == 1024 and slices.mib("4G") == 3814


def test_a_mig_device_is_a_device_of_its_own() -> None:
    gpu = Gpu("MIG-00000000-0000-4000-8000-000000000009", 0, 0, 9856, "A100 MIG 1g.10gb", parent=UUIDS[0], instance=1)
    (device,) = slices.devices(INVENTORY.replace(gpus=(gpu,)), Rules(), (), {})
    assert device["attributes"]["type"] == {"string": "mig"} and device["attributes"]["parentUUID"] == {
        "string": UUIDS[0]
    }


def test_the_scheduler_knows_how_many_may_have_a_part() -> None:
    """Else it places small claims on a GPU until its memory is full, and the node refuses all beyond the 64th."""
    for rules, most in ((Rules(), "64"), (Rules(max_shares_per_gpu=3), "3"), (Rules(memory_per_share=8192), "3")):
        for device in slices.devices(INVENTORY, rules, (), {}):
            assert device["capacity"]["shares"]["value"] == most


@pytest.mark.parametrize(
    ("consumed", "rules", "why"),
    [
        (
            {"memory": "5Gi"},
            {"memory_step": 2048},
            "5120 MiB is no multiple of this node's step; ask for 4096 or 6144 MiB",
        ),
        ({"memory": "1Gi"}, {"memory_step": 2048}, "1024 MiB is no multiple of this node's step; ask for 2048 MiB"),
        (
            {"memory": "4Gi", "compute": "33"},
            {"compute_step": 5},
            "33 % is no multiple of this node's step; ask for 30 or 35 %",
        ),
        ({"memory": "4Gi", "compute": "30"}, {"memory_step": 2048, "compute_step": 5}, ""),
        ({"memory": "4G"}, {}, ""),
    ],
)
def test_amounts_are_in_the_nodes_steps(consumed: Any, rules: Any, why: str) -> None:
    claim = {
        "metadata": {"uid": UID},
        "status": {"allocation": {"devices": {"results": [{**result(), "consumedCapacity": consumed}]}}},
    }
    try:
        allocation.asked(claim, ClaimName("default", UID, "c1"), NODE, INVENTORY, Rules(**rules))
    except GhError as e:
        assert why and allocation.in_one_line(e) == f"GH-101: ResourceClaim default/c1: {why}"
        return
    assert not why


def test_what_the_server_adds_is_no_difference() -> None:
    wanted = slices.devices(INVENTORY, Rules(), (UUIDS[0],), {UUIDS[1]: "pci0000:00"})
    assert wanted[1]["attributes"]["resource.kubernetes.io/pcieRoot"] == {"string": "pci0000:00"}
    published = [dict(device) for device in wanted]
    published[0]["taints"] = [{**published[0]["taints"][0], "timeAdded": "2026-11-24T00:00:00Z"}]
    assert slices.same(published, wanted) and not slices.same(published[:1], wanted)
    assert not slices.same([1, 2], wanted) and not slices.same({}, wanted) and slices.same(None, [])


def test_pcie_roots(tmp_path: Path) -> None:
    device = tmp_path / "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
    device.mkdir(parents=True)
    (tmp_path / "bus").mkdir()
    (tmp_path / "bus/0000:3b:00.0").symlink_to(device)
    assert pcie_root("00000000:3B:00.0", str(tmp_path / "bus")) == "pci0000:3a"
    for wrong in ("", "../..", "00000000:99:00.0"):
        assert pcie_root(wrong, str(tmp_path / "bus")) == ""


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_value_error(data: bytes) -> None:
    for read in (
        kubelet_messages.claim_names,
        kubelet_messages.registration_status,
        lambda d: list(kubelet_messages.parts(d)),
    ):
        try:
            read(data)
        except ValueError:
            pass


def test_too_many_claims_are_refused() -> None:
    one = kubelet_messages.chunk(1, kubelet_messages.text(2, UID))
    assert len(kubelet_messages.claim_names(one * kubelet_messages.MAX_CLAIMS)) == kubelet_messages.MAX_CLAIMS
    try:
        kubelet_messages.claim_names(one * (kubelet_messages.MAX_CLAIMS + 1))
    except ValueError:
        return
    raise AssertionError("it was read")


@given(status=JSON, results=JSON, parameters=JSON, key=st.text(max_size=80), word=JSON, consumed=JSON)
def test_a_claim_of_any_shape_is_read_or_refused_in_one_line(
    status: Any, results: Any, parameters: Any, key: str, word: Any, consumed: Any
) -> None:
    share = {"apiVersion": allocation.API, "kind": allocation.KIND}
    config = [parameters, {"opaque": {"driver": "gpu-hook.io", "parameters": {**share, key: word}}}]
    meta = {"metadata": {"uid": UID}}
    for claim in (
        {**meta, "status": status},
        {**meta, "status": {"allocation": {"devices": {"results": results}}}},
        {
            **meta,
            "status": {"allocation": {"devices": {"results": [result()], "config": config}}, "reservedFor": status},
        },
        {**meta, "status": {"allocation": {"devices": {"results": [{**result(), "consumedCapacity": consumed}]}}}},
    ):
        try:
            allocation.asked(claim, ClaimName("default", UID, "c1"), NODE, INVENTORY, Rules())
        except GhError as e:
            line = allocation.in_one_line(e)
            assert line.startswith("GH-") and line.isprintable()
        allocation.is_current(claim, UID, NODE)


def test_only_our_own_cdi_files_are_ours() -> None:
    assert cdi.uid_of(cdi.file_name(UID)) == UID
    for name in (
        "gpu-hook.io-claim-.json",
        "gpu-hook.io-claim-../x.json",
        "other.json",
        "gpu-hook.io-claim-1-1.json.5.new",
    ):
        assert cdi.uid_of(name) == ""
