"""The agent's side of NVML's process, when that hangs or answers nonsense."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from oci_hook.agent.watch import sampler
from oci_hook.config.settings import load
from oci_hook.ledger import inventory as cache
from testbed.stage import Stage

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def sampled(asker: sampler.Sampler, seconds: float = 20) -> dict[str, sampler.GpuSample]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        asker.ask(time.monotonic())
        if asker.fd >= 0 and (found := asker.receive(time.monotonic())) is not None:
            return found
        time.sleep(0.02)
    raise AssertionError("no sample")


@pytest.mark.root
@root_only
def test_a_hanging_nvml_is_given_up_and_tried_again(box: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "RETRY_SECONDS", 0.1)
    asker = sampler.Sampler(answer_seconds=0.5)
    assert not asker.ask(time.monotonic())  # no inventory yet
    asker.use(cache.load(load(str(box.prefix))))
    asker._answer_seconds = 20
    gpus = sampled(asker)
    assert asker.state == "ok" and len(gpus) == 2 and not any(c.error for c in gpus.values())
    asker._answer_seconds = 0.5
    pid = asker.pid
    os.kill(pid, signal.SIGSTOP)  # as in a driver call that does not return
    asker.ask(time.monotonic())
    states = set()
    for _ in range(100):
        asker.check(time.monotonic())
        states.add(asker.state)
        if asker.state == "down":
            break
        time.sleep(0.02)
    assert {"slow", "down"} <= states and "no answer within" in asker.error
    assert not os.path.exists(f"/proc/{pid}") or b"Z" in Path(f"/proc/{pid}/stat").read_bytes()
    asker._answer_seconds = 20
    assert len(sampled(asker)) == 2 and asker.pid != pid
    asker.stop()


@pytest.mark.root
@root_only
def test_a_hanging_nvml_that_is_told_much_does_not_hang_the_agent(box: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with the cgroups of some hundreds of containers. They are no burden where it does not hang."""
    monkeypatch.setattr(sampler, "RETRY_SECONDS", 0.1)
    asker = sampler.Sampler()
    asker.use(cache.load(load(str(box.prefix))))
    many = [{"GPU": {f"{n}{key}": ["/" * 200] for key in range(1000)}} for n in range(9)]
    sampled(asker)
    pid = asker.pid
    for cgroups in many:
        asker.charge(cgroups)
        sampled(asker)
    assert asker.pid == pid and asker.state == "ok"
    os.kill(pid, signal.SIGSTOP)
    tell = threading.Thread(target=lambda: [asker.charge(cgroups) for cgroups in many], daemon=True)
    tell.start()
    tell.join(20)
    try:
        assert not tell.is_alive()
    finally:
        os.kill(pid, signal.SIGKILL)
    asker.check(time.monotonic())
    assert (asker.state, asker.error, asker.pid) == ("down", "its process ended or hangs", 0)
    assert len(sampled(asker)) == 2
    asker.stop()


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"[]", b"null", b'{"gpus":{"a":1},"error":""}', b'{"gpus":{"a":{"used":"x"}},"error":""}', b"\xff"],
)
def test_an_answer_that_is_none(line: bytes) -> None:
    with pytest.raises(ValueError):
        sampler.parse(line)
