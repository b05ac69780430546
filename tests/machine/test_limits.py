"""Limits hold in the machine, whose processor may be another than this one's."""

import re

import pytest

from tests.engines.box import IMAGE
from tests.machine.conftest import ASKS, Inside

pytestmark = [pytest.mark.machine, pytest.mark.root, pytest.mark.slow]
RUN = "--network none --runtime gpu-hook --annotation gpu-hook.io/devices=1"


def test_memory_ends_at_the_limit(installed: Inside) -> None:
    said = installed(f"docker run --rm --network none --runtime gpu-hook {ASKS} {IMAGE} gpu-probe info fill 64")
    assert "1024 MiB total" in said and "CUDA_ERROR_OUT_OF_MEMORY" in said, said


def test_compute_is_shared(installed: Inside) -> None:
    """Of two programs that never pause and begin together; then the other way round."""
    installed("mkdir /root/go")
    waits = "until [ -e /go/now ]; do sleep 0.1; done; gpu-probe run 500 60"
    for name, compute in (("large", 70), ("small", 30)):
        asks = f"{RUN} --volume /root/go:/go --annotation gpu-hook.io/compute={compute}"
        installed(f"docker run -d --name {name} {asks} {IMAGE} sh -c '{waits}'")
    installed("touch /root/go/now; sleep 20; gpu-hook set large --compute 30; gpu-hook set small --compute 70")
    installed("docker wait large small")
    large, small = (seconds(installed(f"docker logs {name}")) for name in ("large", "small"))
    installed("docker rm large small; rm -r /root/go")
    for percent, when in ((70, slice(3, 18)), (30, slice(-15, -2))):
        both = sum(large[when]), sum(small[when])
        assert abs(100 * both[0] / sum(both) - percent) < 8, (large, small)


def seconds(said: str) -> list[int]:
    """The part of the GPU that gpu-probe had in each second, in percent."""
    return [int(word) for word in re.findall(r"(\d+)%", said)]
