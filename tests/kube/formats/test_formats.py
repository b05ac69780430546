"""Adjacent versions read each other's formats. That version's own code wrote formats/VERSION/; each release adds a folder
(CONTRIBUTING.md). Fields that a node or controller of the next version adds are ignored."""

import json
from pathlib import Path
from typing import Any

import pytest

from oci_hook.config import cluster
from oci_hook.core import decision
from oci_hook.core.inventory import Gpu
from oci_hook.kube.controller.lead.leader import _seen
from oci_hook.kube.controller.trust import own_secret
from oci_hook.kube.controller.trust.authority import Authority
from oci_hook.kube.controller.trust.own_secret import Own
from oci_hook.kube.formats.node_info import GPU_FIELDS, read_digest, read_inventory
from oci_hook.kube.formats.signing import Signer

FORMATS = Path(__file__).parent
VERSIONS = sorted(file.parent.name for file in FORMATS.glob("*/inventory.json"))
NEW = {"added": [1, {"x": "y"}]}


def text(version: str, name: str) -> str:
    return (FORMATS / version / f"{name}.json").read_text()


def of(version: str, name: str) -> Any:
    return json.loads(text(version, name))


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_node_of_an_earlier_version_says_is_read(version: str) -> None:
    said = read_inventory(text(version, "inventory"))
    assert [gpu.uuid for gpu in said.inventory.gpus] == ["GPU-a", "MIG-b"]
    assert (said.key, said.rules.memory_reserve, said.inventory.gpus[0].memory_mib) == (2, ("percent", 5), 81559)
    digest = read_digest(text(version, "digest"), said.inventory)
    assert digest.pods == (("u2", ("a", "b")),) and digest.refused == (("u3", "GH-201"),)
    assert [share.memory_mib for share in digest.local[0].shares] == [9000, 81559]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_node_of_a_later_version_adds_is_left_out(version: str) -> None:
    data, digest = of(version, "inventory"), of(version, "digest")
    expected = read_inventory(json.dumps(data))
    plain = Gpu("", 0, 0, 0).fields()
    rows = [[*row, *(plain[name] for name in GPU_FIELDS[len(row) :]), "added", 7] for row in data["gpus"]]
    later = {**data, **NEW, "gpus": rows}
    later["rules"] = {**data["rules"], "added_setting": {"a": [1]}}
    assert read_inventory(json.dumps(later)) == expected
    known = read_digest(json.dumps(digest), expected.inventory)
    row = digest["local"][0]
    longer = [*row[:2], [[*share, "added"] for share in row[2]], *row[3:], "added"]
    assert read_digest(json.dumps({**digest, **NEW, "local": [longer]}), expected.inventory) == known


@pytest.mark.parametrize("version", VERSIONS)
def test_a_node_of_an_earlier_version_has_no_fields_that_came_later(version: str) -> None:
    """Simulates a GPU row that lacks its last field."""
    data = of(version, "inventory")
    short = read_inventory(json.dumps({**data, "gpus": [row[:-1] for row in data["gpus"]]}))
    assert [gpu.context_mib for gpu in short.inventory.gpus] == [0, 0]
    with pytest.raises(ValueError):
        read_inventory(json.dumps({**data, "gpus": [row[:3] for row in data["gpus"]]}))  # without its size


@pytest.mark.parametrize("version", VERSIONS)
def test_a_decision_of_an_earlier_version_is_verified_with_that_version_s_secret(version: str) -> None:
    found = decision.read(text(version, "decision").strip(), json.loads)
    secrets = own_secret.read(of(version, "secret")["data"]).secrets
    assert Signer(dict(secrets.generations)).holds(found) and found.shares("a")
    assert json.loads(decision.text(found)) == of(
        version, "decision"
    )  # our decision has the text that this version reads


@pytest.mark.parametrize("version", VERSIONS)
def test_node_keys_are_read_with_and_without_what_is_added(version: str) -> None:
    said = of(version, "node-key")
    known = cluster.parsed(json.dumps(said).encode())
    assert known.node == "n1" and [number for number, _ in known.keys] == [1, 2]
    assert cluster.parsed(json.dumps({**said, **NEW}).encode()) == known


@pytest.mark.parametrize("version", VERSIONS)
def test_the_lease_of_an_earlier_version_has_no_address(version: str) -> None:
    lease = of(version, "lease")
    seen = _seen(lease)
    assert (seen.holder, seen.duration, seen.transitions, seen.address) == ("old-1", 15, 1, "")
    lease["metadata"]["annotations"] = {"gpu-hook.io/leader": "new-2 10.0.0.1:8443 pod"}  # that version keeps it
    assert _seen(lease).address == ""
    lease["spec"]["holderIdentity"] = "new-2"
    assert (_seen(lease).address, _seen(lease).pod) == ("10.0.0.1:8443", "pod")


class Kept:
    """An API server with one Secret."""

    def __init__(self, secret: Any) -> None:
        self.secret = secret

    async def put(self, path: str, body: Any) -> Any:
        self.secret = body
        return body


@pytest.mark.parametrize("version", VERSIONS)
def test_a_controller_does_not_take_out_of_the_secret_what_a_later_version_keeps_there(version: str) -> None:
    import asyncio

    kept = Kept(of(version, "secret"))
    kept.secret["data"]["added"] = "eA=="
    own = own_secret.read(kept.secret["data"])
    authority = Authority(kept, Options(), lambda own: None, lambda: True, lambda: 0)  # type: ignore[arg-type]
    asyncio.run(authority._write(kept.secret, own.replace(webhook_token="f" * 32)))
    assert kept.secret["data"]["added"] == "eA==" and own_secret.read(kept.secret["data"]).webhook_token == "f" * 32
    assert own_secret.read(kept.secret["data"]).secrets == own.secrets != Own().secrets


class Options:
    namespace = "gpu-hook"
