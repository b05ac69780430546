"""The metrics' text as Prometheus' own parser reads it."""

from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from oci_hook.agent.counters import Counters
from oci_hook.agent.serve.metrics import exposition
from oci_hook.agent.serve.view import view
from oci_hook.agent.watch import sampler
from oci_hook.agent.watched import Watched
from oci_hook.core.grant import Grant
from oci_hook.core.slot_page import Gate
from oci_hook.errors import CODES, Problem
from oci_hook.ledger import events
from tests.agent.parts import grant, inventory

NASTY = 'x"\\\n\x1b[31m{}\udcff' + "y" * 500


def node(*grants: Grant, **agent: Any) -> dict[str, Any]:
    status = {"state": "ok", "problems": {}, "started": 1.5, **agent}
    gpus = {
        "GPU-0": sampler.GpuSample(5 << 20, 1 << 30, 40, ()),
        "GPU-1": sampler.GpuSample(0, 0, -1, (), "GPU is lost"),
    }
    return view(inventory(), {g.key: g for g in grants}, gpus, {g.key: Watched() for g in grants}, (), {}, status)


def test_metrics_are_what_prometheus_reads(tmp_path: Path) -> None:
    counters = Counters()
    counters.follow(str(tmp_path))
    events.refused(str(tmp_path), "c", [Problem("GH-201", "no room"), Problem("GH-101", "bad")])
    events.record(str(tmp_path), "refused", codes=["GH-201", "made up", 7])
    for seconds in (0.002, 0.02, 100.0):
        events.granted(str(tmp_path), grant("k", "c"), seconds)
    counters.follow(str(tmp_path))
    same = [grant("k1", "same"), grant("k2", "same"), grant("k3", NASTY, namespace=NASTY, pod=NASTY, container=NASTY)]
    text = exposition(node(*same), counters).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found and sample.name.startswith("gpu_hook_")
            assert all(len(v) <= 64 and v.isprintable() for v in sample.labels.values())
            found[key] = sample.value
    assert found["gpu_hook_refusals_total", (("code", "GH-201"),)] == 2
    assert found["gpu_hook_refusals_total", (("code", "GH-101"),)] == 1
    # Each from the start: of a series that begins with its first refusal, Prometheus sees no increase.
    assert {labels[0][1] for name, labels in found if name == "gpu_hook_refusals_total"} == set(CODES)
    assert found["gpu_hook_refusals_total", (("code", "GH-303"),)] == 0
    assert found["gpu_hook_create_duration_seconds_bucket", (("le", "0.0025"),)] == 1
    assert found["gpu_hook_create_duration_seconds_bucket", (("le", "5.0"),)] == 2
    assert found["gpu_hook_create_duration_seconds_bucket", (("le", "+Inf"),)] == 3
    assert found["gpu_hook_gpu_memory_used_bytes", (("UUID", "GPU-0"), ("gpu", "0"))] == 5 << 20
    assert ("gpu_hook_gpu_memory_used_bytes", (("UUID", "GPU-1"), ("gpu", "1"))) not in found  # not known is not 0
    assert found["gpu_hook_gpu_error", (("UUID", "GPU-1"), ("gpu", "1"))] == 1
    entitled = [v for (name, _), v in found.items() if name == "gpu_hook_container_compute_guarantee_ratio"]
    assert sorted(entitled) == [0, 0, 0, 0.3, 0.3, 0.3]


def test_the_gates_waits_are_a_histogram() -> None:
    held = grant("k", "c")
    watched = Watched()
    watched.set_gate("GPU-0", Gate(waits=(1, 2, 1, *[0] * 11, 3, 4), waited=9.5))
    watched.set_gate("GPU-1", Gate())  # a shim that does not count them
    status = {"state": "ok", "problems": {}, "started": 1.5}
    text = exposition(view(inventory(), {"k": held}, {}, {"k": watched}, (), {}, status), Counters()).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    waits = families["gpu_hook_container_gate_wait_seconds"]
    assert waits.type == "histogram" and {s.labels["UUID"] for s in waits.samples} == {"GPU-0"}
    bins = {float(s.labels["le"]): s.value for s in waits.samples if "le" in s.labels}
    assert list(bins.values()) == [1, 4, 4, 4, 4, 4, 4, 7, 11] and list(bins)[:2] == [64e-6, 256e-6]
    assert [s.value for s in waits.samples if "le" not in s.labels] == [9.5, 11]
    assert len(families["gpu_hook_container_gate_launches"].samples) == 2
