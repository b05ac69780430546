"""What a scrape of the controller says, read by Prometheus' own parser."""

import asyncio
from collections.abc import AsyncIterator

from prometheus_client.parser import text_string_to_metric_families

from oci_hook.kube.controller.serve.metrics import Metrics


def scrape(metrics: Metrics) -> dict[str, float]:
    async def no_nodes() -> AsyncIterator[str]:
        yield ""

    text = asyncio.run(metrics.text(no_nodes())).decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    said = {"".join([s.name, *(f" {key}={value}" for key, value in s.labels.items())]): s.value for s in samples}
    assert len(said) == len(samples)
    return {name.removeprefix("gpu_hook_controller_"): value for name, value in said.items()}


def test_figures_without_labels_begin_with_0() -> None:
    first = ("failures_total", "holds", "leads", "certificate_end_timestamp_seconds", "connections_cut")
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
