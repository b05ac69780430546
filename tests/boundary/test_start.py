"""The driver's limit at a container's start and end, with real runc: by the server, and by the helper without it."""

import pytest

from tests.boundary.node import ASK, Node
from tests.conftest import Bundle

pytestmark = pytest.mark.root
BOTH = pytest.mark.parametrize("node", [{"limits": "dmem"}, {"limits": "misc"}], indirect=True, ids=["dmem", "misc"])


@BOTH
@pytest.mark.parametrize("served", [True, False], ids=["server", "helper"])
def test_a_share_has_the_drivers_limit_while_it_runs(node: Node, bundle: Bundle, served: bool) -> None:
    if served:
        node.serve()
    id = node.start(bundle(ASK))
    cgroup = node.cgroup(id)
    assert node.limits(cgroup) == [1024]
    [record] = node.records()
    assert record.state == "set" and record.id == id
    assert node.delete(id).returncode == 0
    assert node.limits(cgroup) == [-2], "neither limit nor cgroup is left"
    assert node.records() == [] and node.grants() == ()
