"""Limits that outlive their grant: what is cleared, and what belongs to somebody else by now."""

import pytest

from oci_hook.boundary import limit_records, protocol
from oci_hook.boundary.limit_records import SET, SETTING, LimitRecord
from oci_hook.core.boundary import Limit
from oci_hook.linux.proc import boot_id
from testbed.boundary import ASK, Node, Stub
from testbed.containers import Bundle

pytestmark = pytest.mark.root
KEY = "0" * 32
MIB = 1 << 20
LONG = 60.0


def leave(node: Node, cgroup: str, inode: int, mib: int, state: str = SET, boot: str = "") -> None:
    """A record of a grant that the ledger does not have."""
    limits = (Limit(node.uuids[0], mib * MIB, mib * MIB),)
    (node.state / "boundary").mkdir(mode=0o700, exist_ok=True)
    limit_records.write(str(node.state), LimitRecord(KEY, "gone", boot or boot_id(), state, ((cgroup, inode),), limits))


def put(stub: Stub, node: Node, cgroup: str, mib: int) -> None:
    name = node.uuids[0] + cgroup.replace("/", "_")
    (stub.folder / "limits" / name).write_text(f"{mib * MIB} {mib * MIB}\n")


def sweep(node: Node) -> list[str]:
    return protocol.ask(str(node.state), {"do": "sweep"}, LONG)["grants"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("state", [SET, SETTING])
def test_a_removed_cgroups_limit_is_cleared_by_its_path(node: Node, state: str) -> None:
    stub = Stub(node)
    node.serve()
    put(stub, node, "/sys/fs/cgroup/gone", 77)
    leave(node, "/sys/fs/cgroup/gone", 5, 77, state)
    assert sweep(node) == [KEY] and stub.limits() == [] and node.records() == []


def test_a_new_container_of_the_same_path_keeps_its_limit(node: Node, bundle: Bundle) -> None:
    """Also where it is as large as the old one's."""
    stub = Stub(node)
    node.serve()
    id = node.start(bundle(ASK))
    for mib in (1024, 77):
        leave(node, node.cgroup(id), 5, mib)
        assert sweep(node) == [KEY]
        assert stub.limits() == [f"{node.uuids[0]} 1024"] and [r.id for r in node.records()] == [id]


def test_a_start_without_a_limit_of_its_own_clears_too(node: Node, bundle: Bundle) -> None:
    """The setting is shim by now, and the container may have the cgroup's path of one that crashed."""
    stub = Stub(node)
    put(stub, node, "/sys/fs/cgroup/gone", 77)
    leave(node, "/sys/fs/cgroup/gone", 5, 77)
    node.set(boundary="shim")
    node.start(bundle(ASK))
    assert stub.limits() == [] and node.records() == []


def test_what_somebody_else_set_for_a_path_stays(node: Node) -> None:
    """The path is a cgroup again, without a grant of ours; a limit that is ours is cleared all the same."""
    stub = Stub(node)
    node.serve()
    for mib, left in ((77, []), (55, [f"{node.uuids[0]} 55"])):
        put(stub, node, "/sys/fs/cgroup", mib)
        leave(node, "/sys/fs/cgroup", 5, 77)
        assert sweep(node) == [KEY] and stub.limits() == left


def test_records_of_an_earlier_boot_ask_no_driver(node: Node) -> None:
    stub = Stub(node)
    stub.fault("fail init")
    node.serve()
    leave(node, "/sys/fs/cgroup/gone", 5, 77, boot="another")
    before = len(stub.calls())
    assert sweep(node) == [KEY] and len(stub.calls()) == before and node.records() == []


def test_what_cannot_be_cleared_stays_recorded(node: Node) -> None:
    stub = Stub(node)
    node.serve()
    put(stub, node, "/sys/fs/cgroup/gone", 77)
    leave(node, "/sys/fs/cgroup/gone", 5, 77)
    for fault in ("fail get", "fail set", "wrong set"):
        stub.fault(fault)
        assert sweep(node) == [] and len(node.records()) == 1 and len(stub.limits()) == 1
    stub.fault("")
    assert sweep(node) == [KEY] and stub.limits() == []


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"key":1}', b"\xff", b'{"cgroups":[[1]]}'])
def test_a_damaged_record_stops_nobody(node: Node, bundle: Bundle, text: bytes) -> None:
    (node.state / "boundary").mkdir(mode=0o700, exist_ok=True)
    (node.state / "boundary" / KEY).write_bytes(text)
    id = node.start(bundle(ASK))
    assert node.limits(node.cgroup(id)) == [1024]
    assert [record.id for record in node.records()] == [id]
    assert not (node.state / "boundary" / KEY).exists()
