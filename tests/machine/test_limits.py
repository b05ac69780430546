"""Limits hold in the machine, whose processor may be another than this one's."""

import re

import pytest

from testbed.engines.box import IMAGE
from tests.machine.conftest import ASKS, Inside

pytestmark = [pytest.mark.machine, pytest.mark.root, pytest.mark.slow]
RUN = "--network none --runtime gpu-hook --annotation gpu-hook.io/devices=1"


def test_memory_ends_at_the_limit(installed: Inside) -> None:
    said = installed(f"docker run --rm --network none --runtime gpu-hook {ASKS} {IMAGE} gpu-probe info fill 64")
    assert "1024 MiB total" in said and "CUDA_ERROR_OUT_OF_MEMORY" in said, said


def test_compute_is_shared(installed: Inside) -> None:
    """Of two programs that never pause and begin together; then the other way round."""
    installed("mkdir -p /root/go; rm -f /root/go/*")
    script = "for turn in 1 2; do until [ -e /go/$turn ]; do sleep 0.1; done; gpu-probe run 500 20 >/go/$0-$turn; done"
    for name, compute in (("large", 70), ("small", 30)):
        asks = f"{RUN} --volume /root/go:/go --annotation gpu-hook.io/compute={compute}"
        installed(f"docker run -d --name {name} {asks} {IMAGE} sh -c '{script}' {name}")
    for turn, percent in ((1, 70), (2, 30)):
        installed(f"gpu-hook set large --compute {percent}; gpu-hook set small --compute {100 - percent}")
        installed(f"touch /root/go/{turn}; sleep 20")
        installed.until(f"grep kernels /root/go/large-{turn} && grep kernels /root/go/small-{turn}")
        said = [installed(f"cat /root/go/{name}-{turn}") for name in ("large", "small")]
        large, small = (sum(int(word) for word in re.findall(r" (\d+)%", one)[2:-2]) for one in said)
        assert abs(100 * large / (large + small) - percent) < 8, said
    installed("docker rm -f large small; rm -r /root/go")
