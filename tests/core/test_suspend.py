"""What a suspended container leaves on its GPUs, and when it may come back."""

import pytest

from oci_hook.core import suspend
from oci_hook.core.allocate import Refusal, allocate, usage
from oci_hook.core.change import GrantChange, changed
from oci_hook.core.gpu_page import gpu_page, weights
from oci_hook.core.grant import Grant, Identity, Life, Share, booked_compute
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.policy_page import amended, policy_page
from oci_hook.core.request import Request
from oci_hook.core.rules import Rules
from oci_hook.core.terms import GpuRequest, Terms
from oci_hook.errors import ApplyError, NoRoomError

U = "GPU-0"
INVENTORY = Inventory("boot", "570", "/", True, (Gpu(U, 0, 0, 10000),), (), (), "", "")
RULES = Rules()


def grant(name: str, memory: int, compute: int = 0, slot: int = 1, **more: object) -> Grant:
    share = Share(U, memory, compute, whole=bool(more.pop("whole", False)), slot=slot)
    life = Life("boot", init=(7, 8))
    terms = Terms(policy="burst-share" if compute else "best-effort")
    return Grant(name * 32, Identity("/r", name, "/b"), life, (share,), terms, **more)  # type: ignore[arg-type]


def suspended(one: Grant) -> Grant:
    return suspend.arrived(suspend.begun(one, (), 100, 10000, 20000, 5), 6)


def free(*grants: Grant) -> tuple[int, int, int]:
    (use,) = usage(INVENTORY, grants, RULES)
    return use.free_mib, use.free_compute, use.containers


def test_its_gpu_is_booked_until_all_has_arrived() -> None:
    one = grant("a", 6000, 60)
    moving = suspend.begun(one, (), 100, 10000, 20000, 5)
    assert (moving.moving, moving.host_mib, moving.suspended) == (5, 100, 0)
    assert free(one) == free(moving) == (4000, 40, 1) and free(suspended(one)) == (10000, 100, 0)
    assert booked_compute(U, (suspended(one),)) == (0, 0) and booked_compute(U, (moving,)) == (60, 0)
    assert suspend.returned(suspended(one)) == suspend.returned(moving) == one


def test_its_container_is_told() -> None:
    one = grant("a", 6000, 60)
    page = policy_page(one, INVENTORY)
    for off in (suspend.begun(one, (), 100, 10000, 20000, 5), suspended(one)):
        assert amended(page, off)[72:76] == b"\1\0\0\0" and amended(amended(page, off), one) == page
        assert gpu_page(U, (off,), 1) == gpu_page(U, (off.replace(frozen=1),), 1) != gpu_page(U, (one,), 1)


def test_its_weight_is_nobodys() -> None:
    one, two = grant("a", 3000, 60), grant("b", 3000, slot=2)
    assert weights(U, (one, two))[2] < weights(U, (suspended(one), two))[2]


@pytest.mark.parametrize(("free_mib", "need", "fits"), [(2000, 1000, True), (1999, 1000, False), (5000, 4001, False)])
def test_the_node_keeps_a_twentieth_of_its_memory(free_mib: int, need: int, fits: bool) -> None:
    one = grant("a", 6000)
    if fits:
        assert suspend.begun(one, (), need, free_mib, 20000, 5).host_mib == need
        coming = suspend.begun(grant("b", 100), (), 1, 9000, 20000, 5)
        with pytest.raises(ApplyError, match="GH-416"):
            suspend.begun(one, (coming,), need, free_mib, 20000, 5)
        suspend.begun(
            one, (suspended(coming.replace(moving=0)),), need, free_mib, 20000, 5
        )  # its memory is in use already
    else:
        with pytest.raises(ApplyError, match="GH-416"):
            suspend.begun(one, (), need, free_mib, 20000, 5)


def test_what_has_nothing_to_suspend() -> None:
    one = grant("a", 6000)
    for other, why in (
        (one.replace(shares=()), "has no GPU"),
        (one.replace(life=Life("boot")), "has not been made yet"),
        (one.replace(moving=3), "is being suspended"),
    ):
        with pytest.raises(ApplyError, match=f"GH-411.*{why}"):
            suspend.begun(other, (), 1, 10000, 20000, 5)


@pytest.mark.parametrize(
    ("one", "others", "why"),
    [
        (grant("a", 6000), (grant("b", 4000),), ""),
        (grant("a", 6000), (grant("b", 4001),), "5999 of 10000 MiB are free, 6000 needed"),
        (grant("a", 10, 60), (grant("b", 10, 41),), "59 of 100 % compute are free, 60 % needed"),
        (grant("a", 10), (grant("b", 10000, whole=True, exclusive=True),), "1 container has it, and only one may"),
        (grant("a", 10000, whole=True, exclusive=True), (grant("b", 10),), "1 container has it, and only one may"),
        (
            grant("a", 10),
            tuple(grant(c, 10, slot=2 + i) for i, c in enumerate("bcdefghijklmnopq")),
            "no more may share",
        ),
    ],
)
def test_it_comes_back_where_there_is_room(one: Grant, others: tuple[Grant, ...], why: str) -> None:
    rules = Rules(max_shares_per_gpu=16)
    if not why:
        back = suspend.returning(suspended(one), others, INVENTORY, rules, 9)
        assert (back.suspended, back.moving, back.host_mib) == (0, 9, 100)
        return
    with pytest.raises(NoRoomError) as said:
        suspend.returning(suspended(one), others, INVENTORY, rules, 9)
    assert "GH-201" in str(said.value) and why in str(said.value)
    suspend.returning(suspended(one), tuple(suspended(other) for other in others), INVENTORY, rules, 9)


def test_its_gpu_may_have_gone() -> None:
    with pytest.raises(NoRoomError, match="GH-202"):
        suspend.returning(suspended(grant("a", 10)), (), INVENTORY.replace(gpus=()), RULES, 9)


def test_its_share_is_not_changed_meanwhile() -> None:
    away, wish = suspended(grant("a", 10)), GrantChange(memory=("mib", 20))
    with pytest.raises(ApplyError, match="GH-411.*suspended.*`gpu-hook resume` it first"):
        changed(away, wish, INVENTORY, (), RULES)
    with pytest.raises(ApplyError, match="GH-411.*suspended for other, and an agent that runs brings it back"):
        changed(away.replace(lent_to="other"), wish, INVENTORY, (), RULES)


def test_there_are_only_so_many_slots() -> None:
    """Suspended containers keep theirs. Without one, a container would count as alone on its GPU."""
    request = Request((GpuRequest(memory=("mib", 10)),))
    many = tuple(suspended(grant("a", 10, slot=i)).replace(key=f"{i:032}") for i in range(1, 65))
    found = allocate(request, INVENTORY, many, RULES)
    assert isinstance(found, Refusal) and "suspended ones included" in str(found.problems[0])
    assert not isinstance(allocate(request, INVENTORY, many[1:], RULES), Refusal)
