"""The controller's metrics: base units, counters that only grow, and labels as those of NVIDIA's DCGM exporter."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from oci_hook.kube.controller.serve.metrics import Metrics, node_lines
from oci_hook.kube.placing.choose import Chosen, Question, choose
from oci_hook.kube.pod.asked import words
from tests.kube.cluster_objects import cluster, node, pod

MIB = 1 << 20


def test_names_units_and_labels() -> None:
    state = cluster(node("a", 100))
    one = pod("p", memory=40, compute=25)
    found = choose(state, Question(words(one)))
    assert isinstance(found, Chosen)
    state.apply_pod(one)
    state.reserve(words(one), "a", found.fit, 0.0)
    metrics = Metrics()
    metrics.raise_to(metrics.cut, 3)
    metrics.raise_to(metrics.cut, 5)
    metrics.raise_to(metrics.cut, 1)  # counted anew
    text = asyncio.run(metrics.text(node_lines(state))).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    said = {s.name: (s.labels, s.value) for family in families.values() for s in family.samples}
    labels = {"Hostname": "a", "gpu": "0", "UUID": "GPU-a-0"}
    assert said["gpu_hook_controller_gpu_memory_bytes"] == (labels, 100 * MIB)
    assert said["gpu_hook_controller_gpu_free_bytes"] == (labels, 60 * MIB)
    assert said["gpu_hook_controller_gpu_free_compute_ratio"] == (labels, 0.75)
    assert said["gpu_hook_controller_connections_cut_total"] == ({}, 6)
    assert not [name for name in families if name.endswith(("_mib", "_percent"))]
    assert families["gpu_hook_controller_lists"].type == families["gpu_hook_controller_events"].type == "counter"
