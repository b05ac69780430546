"""Which GPUs a spec's own device rules reach. The oracle: cgroup v1's exception list, as the kernel keeps it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_hook.core.device_rules import bounds, reachable_gpus, starts_closed
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import MIG, Gpu, GpuNode, Inventory

DENY: dict[str, Any] = {"allow": False, "access": "rwm"}
ALL: dict[str, Any] = {"allow": True, "access": "rwm"}


def c(minor: int | None = None, major: int | None = 195, access: str = "rw", allow: bool = True) -> dict[str, Any]:
    rule: dict[str, Any] = {"allow": allow, "type": "c", "access": access}
    if major is not None:
        rule["major"] = major
    if minor is not None:
        rule["minor"] = minor
    return rule


@pytest.mark.parametrize(
    ("rules", "reached"),
    [
        ([], []),
        ([DENY], []),
        ([{"allow": True, "access": "rwm"}], ["every GPU"]),
        ([{"allow": True}], ["every GPU"]),
        ([{"allow": True, "type": "a", "major": -1, "minor": -1, "access": "rwm"}], ["every GPU"]),
        ([DENY, {"allow": True, "type": "a", "access": "m"}], ["every GPU"]),  # runc: "a" is all or nothing
        ([{"allow": True, "access": "rwm"}, DENY], []),
        ([DENY, c(0)], []),
        ([DENY, c(1)], ["195:1"]),
        ([DENY, c(1, access="r")], ["195:1"]),
        ([DENY, c(1, access="m")], []),
        ([DENY, c()], ["every GPU"]),
        ([DENY, c(-1)], ["every GPU"]),
        ([DENY, c(1, major=None)], ["195:1"]),
        ([DENY, c(major=None, access="m")], []),
        ([DENY, c(major=None, access="rwm")], ["every GPU"]),
        ([DENY, c(255), c(254)], []),
        ([DENY, c(5, major=1)], []),
        ([DENY, {**c(1), "type": "b"}], []),
        ([DENY, {**c(1), "type": "u"}], ["195:1"]),
        ([DENY, c(1), c(1, allow=False)], []),
        ([DENY, c(1), c(1, allow=False, access="w")], ["195:1"]),
        ([DENY, c(1), c(1, allow=False, access="w"), c(1, allow=False, access="r")], ["195:1"]),  # crun: not for both
        (
            [ALL, {"allow": False, "type": "a", "major": 5, "minor": 5, "access": "rwm"}],
            ["every GPU"],
        ),  # crun: only 5:5
        ([ALL, {"allow": False, "type": "a", "access": "m"}], ["every GPU"]),
        ([ALL, {"allow": False, "type": "a", "access": "r"}], ["every GPU"]),
        ([ALL, c(1), {"allow": False, "type": "a", "access": "rw"}], []),
        ([ALL, {"allow": False, "type": "a", "major": -1, "minor": -1}], []),
        ([DENY, c(1, allow=False), c(1)], ["195:1"]),
        ([DENY, c(), c(1, allow=False)], ["every GPU"]),  # cgroup v1 does not take this back
        ([DENY, c(1), c(allow=False)], ["195:1"]),  # nor this
        ([DENY, c(1), c(2), DENY, c(3)], ["195:3"]),
        ([DENY, {"allow": True, "type": "c", "major": 195, "minor": 1, "access": ""}], ["195:1"]),
        ([DENY, {"allow": True, "type": "c", "major": 195, "minor": 1, "access": None}], ["195:1"]),
        ([DENY, {"allow": True, "type": "c", "major": 195, "minor": 1, "access": 5}], ["195:1"]),
        ([DENY, {"allow": True, "type": "c", "major": "195", "minor": None, "access": "r"}], ["every GPU"]),
        ([DENY, {"allow": "yes", "type": "c", "major": 195, "minor": 1}], []),
    ],
)
def test_reachable(rules: list[dict[str, Any]], reached: list[str]) -> None:
    assert reachable_gpus(rules, [0]) == reached


def test_the_nodes_of_other_gpus() -> None:
    gpus = tuple(Gpu(uuid, i, minor, 8) for i, (uuid, minor) in enumerate([("MIG-0", 4), ("MIG-1", 4), ("GPU-1", 7)]))
    nodes = (
        GpuNode("", "compute", "/dev/nvidia-fs0", 510, 0),
        GpuNode("GPU-1", "graphics", "/dev/dri/card1", 226, 1),
        GpuNode("MIG-0", MIG, "/dev/nvidia-caps/nvidia-cap21", 240, 21),  # their common GPU instance
        GpuNode("MIG-1", MIG, "/dev/nvidia-caps/nvidia-cap21", 240, 21),
        GpuNode("MIG-0", MIG, "/dev/nvidia-caps/nvidia-cap22", 240, 22),
        GpuNode("MIG-1", MIG, "/dev/nvidia-caps/nvidia-cap23", 240, 23),
    )
    inventory = Inventory("b", "580", "/", False, gpus, (), (), "/c", "/m", nodes=nodes)

    def of(*uuids: str) -> object:
        grant = Grant("k", Identity("/r", "c", "/b"), Life("b"), tuple(Share(uuid, 8) for uuid in uuids))
        return bounds(grant, inventory)

    assert of("MIG-1") == ({4}, {(226, 1), (240, 22)})
    assert of("GPU-1", "MIG-0") == ({4, 7}, {(240, 23)})
    assert of() == (set(), {(226, 1), (240, 21), (240, 22), (240, 23)})


def test_starts_closed() -> None:
    assert not starts_closed([])
    assert not starts_closed([c(1, allow=False)])
    assert not starts_closed([{"allow": True}])
    assert starts_closed([DENY])
    assert starts_closed([c(1), {"allow": False, "type": "a"}])


class KernelV1:
    """security/device_cgroup.c in small: a default and exceptions that are matched exactly."""

    def __init__(self) -> None:
        self.open, self.exceptions = False, dict[tuple[int, int], set[str]]()

    def write(self, rule: dict[str, Any]) -> None:
        if rule.get("type", "a") == "a":
            self.open, self.exceptions = rule["allow"], {}
            return
        key = (rule.get("major", -1), rule.get("minor", -1))
        if rule["allow"] != self.open:
            self.exceptions[key] = self.exceptions.get(key, set()) | set(rule["access"])
        elif key in self.exceptions:
            self.exceptions[key] -= set(rule["access"])

    def may(self, major: int, minor: int, access: str) -> bool:
        if not self.open:  # match_exception: one entry that has all of it
            return any(a in (-1, major) and b in (-1, minor) and access in e for (a, b), e in self.exceptions.items())
        return not any(a in (-1, major) and b in (-1, minor) and access in e for (a, b), e in self.exceptions.items())


rules = st.lists(
    st.builds(
        lambda allow, all_, major, minor, access: (
            {"allow": allow, "type": "a", "access": "rwm"} if all_ else c(minor, major, access, allow)
        ),
        st.booleans(),
        st.integers(0, 7).map(lambda n: n == 0),
        st.sampled_from([195, 195, 1, None]),
        st.sampled_from([0, 1, 2, None]),
        st.sampled_from(["r", "w", "m", "rw", "rwm"]),
    ),
    max_size=7,
)


@given(rules)
def test_never_less_than_the_kernel_lets_through(rules: list[dict[str, Any]]) -> None:
    kernel = KernelV1()
    for rule in rules:
        kernel.write(rule)
    reached = reachable_gpus(rules, [0])
    for minor in (1, 2, 77):
        if kernel.may(195, minor, "r") or kernel.may(195, minor, "w"):
            assert "every GPU" in reached or f"195:{minor}" in reached
