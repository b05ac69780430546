"""What a scrape of the controller says, read by Prometheus' own parser."""

import asyncio
from collections.abc import AsyncIterator

from prometheus_client.parser import text_string_to_metric_families

from oci_hook.kube.controller.serve.metrics import Metrics, node_lines
from oci_hook.kube.placing.choose import Chosen, Question, choose
from oci_hook.kube.pod.asked import words
from tests.kube.cluster_objects import cluster, node, pod

MIB = 1 << 20


def scrape(metrics: Metrics) -> dict[str, float]:
    async def no_nodes() -> AsyncIterator[str]:
        yield ""

    text = asyncio.run(metrics.text(no_nodes())).decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    said = {"".join([s.name, *(f" {key}={value}" for key, value in s.labels.items())]): s.value for s in samples}
    assert len(said) == len(samples)
    return {name.removeprefix("gpu_hook_controller_"): value for name, value in said.items()}


def test_figures_without_labels_begin_with_0() -> None:
    first = ("failures_total", "holds", "leads", "certificate_end_timestamp_seconds", "connections_cut_total")
    assert scrape(Metrics()) == dict.fromkeys(first, 0)


def test_a_scrape_tells_what_was_counted() -> None:
    metrics = Metrics()
    for _ in range(2):
        metrics.count("refusals", "bind", "GH-201")
    metrics.set("certificate_end_timestamp_seconds", 1764000000.25)
    metrics.set_pending(["GH-201", "GH-202", "GH-201"])
    metrics.set_pending(["GH-201"])  # the other reason is gone
    for seconds in (0.0005, 0.0006, 3.0):
        metrics.answered("bind", seconds)
    said = scrape(metrics)
    assert said["refusals_total call=bind code=GH-201"] == 2
    assert said["certificate_end_timestamp_seconds"] == 1764000000.25
    assert {name: value for name, value in said.items() if "pending" in name} == {"pending_pods code=GH-201": 1}
    bins = {bound: said[f"answer_seconds_bucket call=bind le={bound}"] for bound in ("0.0005", "0.001", "2.5", "+Inf")}
    assert bins == {"0.0005": 1, "0.001": 2, "2.5": 2, "+Inf": 3}
    assert said["answer_seconds_count call=bind"] == 3 and said["answer_seconds_sum call=bind"] == 3.0011


def test_units_and_labels() -> None:
    """Bytes and ratios, and the labels of NVIDIA's DCGM exporter."""
    state = cluster(node("a", 100))
    one = pod("p", memory=40, compute=25)
    found = choose(state, Question(words(one)))
    assert isinstance(found, Chosen)
    state.apply_pod(one)
    state.reserve(words(one), "a", found.fit, 0.0)
    text = asyncio.run(Metrics().text(node_lines(state))).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    said = {s.name: (s.labels, s.value) for family in families.values() for s in family.samples}
    labels = {"Hostname": "a", "gpu": "0", "UUID": "GPU-a-0"}
    assert said["gpu_hook_controller_gpu_memory_bytes"] == (labels, 100 * MIB)
    assert said["gpu_hook_controller_gpu_free_bytes"] == (labels, 60 * MIB)
    assert said["gpu_hook_controller_gpu_free_compute_ratio"] == (labels, 0.75)
    assert not [name for name in families if name.endswith(("_mib", "_percent"))]
