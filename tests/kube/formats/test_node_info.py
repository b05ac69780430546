"""A node's report is read back as written, and any other text is refused."""

import json

import pytest

from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.rules import Rules
from oci_hook.core.terms import Terms
from oci_hook.kube.formats.node_info import (
    Digest,
    NodeInventory,
    digest_text,
    inventory_text,
    read_digest,
    read_inventory,
)

GPUS = (
    Gpu("GPU-a", 0, 0, 81559, name="H100", numa=0, arch="9.0", context_mib=540),
    Gpu("MIG-b", 1, 1, 9856, parent="GPU-b", instance=3, gi=9, ci=0, no_limits="no", missing_mib=512),
)
INVENTORY = Inventory("", "535.1", "", True, GPUS, (), (), "", "", links=(("GPU-a", "MIG-b", 3),), cuda_version="12.2")


def test_the_inventory_is_read_back() -> None:
    said = NodeInventory(INVENTORY, Rules(memory_reserve=("percent", 5), dialects=("t9k",), profile="qgpu"), 2)
    assert read_inventory(inventory_text(said)) == said
    assert read_inventory(inventory_text(NodeInventory(INVENTORY, Rules()))) == NodeInventory(INVENTORY, Rules())
    assert len(inventory_text(said)) < 512


def test_a_gpu_without_missing_memory_is_as_the_first_controllers_read_it() -> None:
    """They take rows of 14 fields alone; a controller that is rolled back to them must place pods on newer nodes."""
    first, second = json.loads(inventory_text(NodeInventory(INVENTORY, Rules())))["gpus"]
    assert (len(first), first[-1]) == (14, 540) and (len(second), second[-1]) == (15, 512)


def test_the_digest_is_read_back() -> None:
    shares = (Share("MIG-b", 9000, 20, 50), Share("GPU-a", 81559, whole=True))
    grant = Grant(
        "local-0",
        Identity("", "default/web/main", "", pod_uid="u1"),
        Life(""),
        shares,
        Terms(priority_class="online"),
        True,
    )
    said = Digest((("u2", ("a", "b")),), (grant,), (("u3", "GH-201"),))
    assert read_digest(digest_text(said, INVENTORY), INVENTORY) == said
    assert read_digest(digest_text(Digest(), INVENTORY), INVENTORY) == Digest()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"v":2}', '{"v":1}', '{"v":1,"gpus":[[1]]}', "{" * 9])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_inventory(text)
    with pytest.raises(ValueError):
        read_digest(text, INVENTORY)


def test_a_gpu_twice_is_refused() -> None:
    data = json.loads(inventory_text(NodeInventory(INVENTORY, Rules())))
    with pytest.raises(ValueError, match="twice"):
        read_inventory(json.dumps({**data, "gpus": [data["gpus"][0]] * 2}))


@pytest.mark.parametrize(
    "number, value", [(1, "0"), (1, True), (3, -1), (3, 1 << 50), (3, 1.5), (4, 7), (5, None), (13, "540"), (0, "")]
)
def test_a_gpu_with_a_field_of_another_kind_is_refused(number, value) -> None:
    data = json.loads(inventory_text(NodeInventory(INVENTORY, Rules())))
    data["gpus"][0][number] = value
    with pytest.raises(ValueError):
        read_inventory(json.dumps(data))


@pytest.mark.parametrize(
    "row",
    [
        ["x", "", [[0, -5, 0, 0, False]], "default", False],
        ["x", "", [[0, "5", 0, 0, False]], "default", False],
        ["x", "", [[9, 5, 0, 0, False]], "default", False],
        ["x", "", [[-1, 5, 0, 0, False]], "default", False],
        ["x", "", [], "nobody's", False],
    ],
)
def test_a_grant_that_takes_less_than_nothing_is_refused(row) -> None:
    text = json.dumps({"v": 1, "pods": {}, "local": [row], "refused": {}})
    with pytest.raises(ValueError):
        read_digest(text, INVENTORY)


def test_text_that_is_nested_deeply_is_refused() -> None:
    with pytest.raises(ValueError):
        read_inventory('{"v":' + "[" * 100_000)


@pytest.mark.parametrize("distance", ["Infinity", "-Infinity", "NaN", "1e999", '"x"'])
def test_a_distance_that_is_no_number_is_refused(distance: str) -> None:
    """Such a text crashed the controller."""
    text = inventory_text(NodeInventory(INVENTORY, Rules())).replace("[0,1,3]", f"[0,1,{distance}]")
    with pytest.raises(ValueError):
        read_inventory(text)


@pytest.mark.parametrize("field", ["driver", "cuda"])
@pytest.mark.parametrize("value", ["5" * 65, "5" * 5000, 570, None, ["570"]])
def test_a_version_that_is_no_short_text_is_refused(field: str, value: object) -> None:
    data = json.loads(inventory_text(NodeInventory(INVENTORY, Rules())))
    with pytest.raises(ValueError, match="version"):
        read_inventory(json.dumps({**data, field: value}))


@pytest.mark.parametrize("uuid", ['GPU-"', "GPU-\n", "GPU-\ud800", "GPU-{}"])
def test_a_uuid_that_no_decision_can_name_is_refused(uuid: str) -> None:
    data = json.loads(inventory_text(NodeInventory(INVENTORY, Rules())))
    data["gpus"][0][0] = uuid
    with pytest.raises(ValueError, match="UUID"):
        read_inventory(json.dumps(data))
