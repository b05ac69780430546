"""NVML's process with an NVML that answers in part."""

import json
from types import SimpleNamespace

import pynvml  # type: ignore[import-untyped]
import pytest

from oci_hook.agent.watch import nvml_process, sampler


def test_utilization_after_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver stamps its samples by that clock, and is asked for those since the last one seen."""
    nvml, now = nvml_process.Nvml(), 9_000_000.0
    samples = [(1, now, 40), (2, now + 3600, 50)]  # the second stamp is not valid

    def utilization(handle: object, since: int) -> list[SimpleNamespace]:
        found = [(pid, int(at * 1e6), load) for pid, at, load in samples if at * 1e6 > since]
        return [SimpleNamespace(pid=pid, timeStamp=at, smUtil=load) for pid, at, load in found]

    monkeypatch.setattr(nvml_process.pynvml, "nvmlDeviceGetProcessUtilization", utilization)
    monkeypatch.setattr(nvml_process.time, "time", lambda: now)
    assert nvml.busy("GPU-0", None) == {1: 40}
    now -= 3600
    samples = [(1, now - 1, 30)]
    assert nvml.busy("GPU-0", None) == {1: 30}


def test_a_mig_device_without_a_uuid_hides_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that is destroyed just now."""

    def uuid(part: int) -> str:
        if part == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        return f"MIG-{part}"

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMaxMigDeviceCount", lambda _: 3)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigDeviceHandleByIndex", lambda _, i: i)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", uuid)
    assert nvml_process.Nvml().parts_of(None) == [("MIG-0", 0), ("MIG-2", 2)]


def test_a_lost_gpu_is_no_reason_to_lose_the_others() -> None:
    good = {"used": 1, "total": 2, "busy": 3, "processes": [[1, None, 4]], "error": "", "at": 5.5, "steady": True}
    good["charged"] = {"a": 7}
    bad = {"used": 0, "total": 0, "busy": -1, "processes": [], "error": "GPU is lost", "at": 5.5, "steady": False}
    bad["charged"] = {}
    gpus, error = sampler.parse(json.dumps({"gpus": {"a": good, "b": bad}, "error": ""}).encode())
    assert not error and gpus["a"].processes == ((1, None, 4),) and sampler.lost(gpus["b"].error)
