"""Which boundary a share gets: pure decisions."""

import pytest

from oci_hook.core import boundary
from oci_hook.core.allocate import Allocation, Refusal, allocate
from oci_hook.core.boundary import NO_LIMIT, Limit
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.request import Request, parse
from oci_hook.core.rules import Rules
from oci_hook.core.terms import BOUNDARIES, Terms
from oci_hook.errors import RequestError

OLD = "driver 550 is older than 615"
MIB = 1 << 20


def inventory(*no_limits: str) -> Inventory:
    gpus = tuple(Gpu(f"GPU-{i}", i, i, 8192, no_limits=why) for i, why in enumerate(no_limits))
    return Inventory("boot", "615", "/", True, gpus, (), (), "/cuda", "/nvml")


def grant(wish: str, *shares: Share) -> Grant:
    return Grant("0" * 32, Identity("/r", "a", "/b"), Life("boot"), shares, Terms(boundary=wish))


def ask(*, setting: str = "auto", **keys: str) -> Request:
    request = parse({f"gpu-hook.io/{k}": v for k, v in keys.items()}, {}, "", Rules(boundary=setting))
    assert request is not None
    return request


@pytest.mark.parametrize("setting", BOUNDARIES)
@pytest.mark.parametrize("asked", [None, *BOUNDARIES])
def test_a_container_may_only_strengthen(setting: str, asked: str | None) -> None:
    keys = {"memory": "1Gi", **({"boundary": asked} if asked else {})}
    if asked and BOUNDARIES.index(asked) < BOUNDARIES.index(setting):
        with pytest.raises(RequestError, match="GH-103.*weaker"):
            ask(setting=setting, **keys)
    else:
        assert ask(setting=setting, **keys).terms.boundary == (asked or setting)


@pytest.mark.parametrize("value", ["", "Driver", "none", "auto ", "0"])
def test_other_words(value: str) -> None:
    with pytest.raises(RequestError, match="GH-101"):
        ask(memory="1Gi", boundary=value)


def test_the_word_alone_asks_for_nothing() -> None:
    assert parse({"gpu-hook.io/boundary": "driver"}, {}, "", Rules()) is None


@pytest.mark.parametrize("extra", [0, 1, 300])
@pytest.mark.parametrize("mib", [1, 1024, 1 << 24])
def test_the_limit_is_the_share(mib: int, extra: int) -> None:
    """Soft limits are for nodes that lend."""
    size, plain = (mib + extra) * MIB, Rules(driver_limit_extra=extra)
    lends = plain.replace(oversubscribe=101)
    lent = Share("GPU-0", mib + 100, request_mib=mib)
    for rules, soft in ((plain, 0), (lends, size)):
        assert boundary.limit_of(Share("GPU-0", mib), rules) == Limit("GPU-0", soft, size)
        assert boundary.limit_of(Share("GPU-0", mib, whole=True), rules) == Limit("GPU-0", 0, NO_LIMIT)
        assert boundary.limit_of(lent, rules) == Limit("GPU-0", soft, size + 100 * MIB)


def test_each_gpu_that_can_is_limited() -> None:
    shares = Share("GPU-0", 1), Share("GPU-1", 2), Share("GPU-2", 3, whole=True)
    node = inventory("", OLD, "")
    assert [limit.uuid for limit in boundary.limits_of(grant("auto", *shares), node, Rules())] == ["GPU-0", "GPU-2"]
    assert boundary.limits_of(grant("shim", *shares), node, Rules()) == ()
    assert not boundary.needs_step(grant("shim", *shares), node)
    assert boundary.needs_step(grant("auto", *shares), node)
    assert not boundary.needs_step(grant("auto", shares[1]), node)
    assert boundary.needs_step(grant("driver", shares[1]), node), "somebody must refuse it"
    assert not boundary.needs_step(grant("auto"), node)


def test_what_insists_on_the_driver_lacks_no_limit() -> None:
    shares = Share("GPU-0", 1), Share("GPU-1", 2, whole=True), Share("GPU-2", 3)
    one = (Limit("GPU-0", 1, 1),)
    assert boundary.lacks(grant("driver", *shares), one) == "GPU-2"
    assert boundary.lacks(grant("driver", *shares[:2]), one) == ""
    assert boundary.lacks(grant("auto", *shares), ()) == ""


def test_while_a_share_is_changed_the_larger_limit_holds() -> None:
    old, new = (Limit("a", 1, 1), Limit("b", 5, 5)), (Limit("b", 2, 2), Limit("a", 3, 3))
    assert boundary.changed_limits(old, new) == (Limit("a", 3, 3), Limit("b", 5, 5))
    assert boundary.changed_limits(old, old) == old


def test_the_grant_alone_says_what_limits_are_later() -> None:
    changed = grant("auto", Share("GPU-0", 7), Share("GPU-1", 9))
    rules = Rules(driver_limit_extra=1, oversubscribe=200)
    assert boundary.limits_on(changed, ["GPU-1", "GPU-x"], rules) == (Limit("GPU-1", 10 * MIB, 10 * MIB),)


def test_why_a_gpu_cannot() -> None:
    assert boundary.why_not(False, "615.1", "", True) == ""
    assert "MIG" in boundary.why_not(True, "615.1", "", True)
    assert boundary.why_not(False, "550.1", "missing", False) == "driver 550.1 is older than 615"
    assert boundary.why_not(False, "615.1", "Not Supported", False) == boundary.NO_CGROUP2
    assert boundary.why_not(False, "615.1", "", False) == boundary.NO_CGROUP2
    assert "Not Supported" in boundary.why_not(False, "615.1", "Not Supported", True)


def test_expected() -> None:
    node = inventory("", OLD)
    assert boundary.expected(grant("auto", Share("GPU-0", 1)), node).name == "driver"
    assert boundary.expected(grant("shim", Share("GPU-0", 1)), node).name == "shim"
    both = boundary.expected(grant("auto", Share("GPU-0", 1), Share("GPU-1", 1)), node)
    assert (both.name, both.why) == ("shim", OLD)
    assert boundary.expected(grant("auto", Share("GPU-9", 1)), node).why == "the GPU is no longer there"
    assert boundary.expected(grant("auto", Share("GPU-0", 1, whole=True)), node).why == "it has no memory limit"


def test_placement_with_driver_takes_a_gpu_that_can() -> None:
    found = allocate(ask(memory="1Gi", boundary="driver"), inventory(OLD, "", OLD), (), Rules())
    assert isinstance(found, Allocation) and [share.uuid for share in found.shares] == ["GPU-1"]
    assert isinstance(allocate(ask(memory="1Gi"), inventory(OLD), (), Rules()), Allocation)
    refused = allocate(ask(memory="1Gi", boundary="driver"), inventory(OLD, OLD), (), Rules())
    assert isinstance(refused, Refusal) and refused.problems[0].code == "GH-204" and OLD in str(refused.problems[0])
    full = allocate(ask(memory="9Gi", boundary="driver"), inventory(OLD, ""), (), Rules())
    assert isinstance(full, Refusal) and full.problems[0].code == "GH-201", "room is what the able GPU lacks"
    whole = allocate(ask(gpus="1", boundary="driver"), inventory(OLD), (), Rules())
    assert isinstance(whole, Allocation), "a whole GPU needs no limit"
