"""The dashboard is one that Grafana can load, and it and the alerts speak of metrics and labels that there are.
test_prometheus.py asks the queries of a real Prometheus."""

import asyncio
import itertools
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from oci_hook.agent.counters import Counters
from oci_hook.agent.judge.audit_rules import KINDS, Finding
from oci_hook.agent.judge.gpu_sample import GpuSample
from oci_hook.agent.serve.metrics import exposition
from oci_hook.agent.serve.publish import usage
from oci_hook.agent.serve.view import view
from oci_hook.agent.watched import Watched
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.slot_page import Gate
from oci_hook.kube.controller.serve.metrics import COUNTERS, GAUGES, Metrics, node_lines
from testbed.cluster_page import Scene
from testbed.prometheus import GRAFANA, Dashboard

UNITS = {"none", "bytes", "percentunit", "s"}  # Grafana's ids: bytes are IEC's, percentunit is of 1
COLOURS = {"green", "red"}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Kind(NamedTuple):
    """A dashboard with its alerts and their tests. metrics: every metric with its labels. prefix: what the page leaves out."""

    dashboard: str
    alerts: str
    tests: str
    metrics: Callable[[], dict[str, set[str]]]
    prefix: str


def of_a_cluster() -> dict[str, set[str]]:
    """Of a controller that was asked everything."""
    made = Metrics()
    for name, (labels, _) in (COUNTERS | GAUGES).items():
        made.set(name, 1, *["x"] * len(labels))
    made.answered("x", 1.0)
    cluster = Scene(2)
    rows = node_lines(cluster.copy.state)
    return labels_of(asyncio.run(made.text(rows)))


def of_a_node() -> dict[str, set[str]]:
    """Of a node where everything is known."""
    inventory = Inventory("", "", "/", True, (Gpu("GPU-0", 0, 0, 8),), (), (), "", "")
    grant = Grant("k", Identity("/", "c", "/"), Life(""), (Share("GPU-0", 8, 30),), frozen=1)
    watched = Watched()
    watched.set_gate("GPU-0", Gate(1.0, 2.0, 1, 1, (1,) * 16, 1.0, "mix", 0.0, 0, 0.1))
    watched.peaks["GPU-0"] = 4
    meter = watched.meter("GPU-0")
    meter.used, meter.shortfall, meter.harvest = 3.0, 2.0, 1.0
    watched.note("GPU-0", 1, 1)
    status = {"state": "ok", "problems": {}, "started": 1.0, "ledger_read": 1.0, "nvml_read": 1.0}
    status["processes"] = usage({"agent": os.getpid()})
    finding = Finding(KINDS[0], "k", "GPU-0", 0, 0, "")
    node = view(inventory, {"k": grant}, {"GPU-0": GpuSample(1, 2, 3, ())}, {"k": watched}, (finding,), {}, status)
    for gpu in node["containers"][0]["gpus"]:
        gpu.update(used_mib=1, utilization=1)
    counters = Counters()
    counters.refused["GH-201"] = 1
    return labels_of(exposition(node, counters))


def labels_of(text: bytes) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


KINDS_OF = {
    "node": Kind("dashboard.json", "alerts.yaml", "alerts.test.yaml", of_a_node, "gpu_hook_"),
    "cluster": Kind(
        "cluster.json", "cluster-alerts.yaml", "cluster-alerts.test.yaml", of_a_cluster, "gpu_hook_controller_"
    ),
}


@pytest.fixture(params=KINDS_OF)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS_OF[request.param]


def board(kind: Kind) -> Dashboard:
    return Dashboard(GRAFANA / kind.dashboard)


def expressions(kind: Kind) -> list[str]:
    rules: Any = yaml.safe_load((GRAFANA / kind.alerts).read_text())
    found = [target["expr"] for panel in board(kind).panels for target in panel["targets"]]
    return found + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def test_the_panels_are_what_grafana_knows(kind: Kind) -> None:
    dashboard = board(kind)
    assert dashboard.json["schemaVersion"] == 38 and len(dashboard.json["uid"]) <= 40
    panels = dashboard.panels
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    cells: list[tuple[int, int]] = []
    for panel in panels:
        x, y, w, h = (panel["gridPos"][k] for k in "xywh")
        assert 0 <= x < x + w <= 24, panel["title"]
        cells += itertools.product(range(x, x + w), range(y, y + h))
        assert panel["type"] in ("stat", "bargauge", "timeseries") and panel["datasource"] == SOURCE
        config = panel["fieldConfig"]["defaults"]
        assert config["unit"] in UNITS and config.get("min", -1) < config.get("max", 1e99)
        if panel["type"] != "timeseries":  # without thresholds of its own, 80 and more would be red
            steps = config["thresholds"]["steps"]
            values = [step["value"] for step in steps]
            assert values[0] is None and values[1:] == sorted(values[1:]) and {s["color"] for s in steps} <= COLOURS
            assert panel["options"]["reduceOptions"]["calcs"] == ["lastNotNull"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
        assert all(target["datasource"] == SOURCE for target in panel["targets"])
    texts = [panel["description"] for panel in panels]
    assert len(set(texts)) == len(texts) and all(40 <= len(text) <= 200 and text.endswith(".") for text in texts)
    assert all((GRAFANA.parents[1] / file).exists() for file in re.findall(r"docs/[\w/]+\.md", " ".join(texts)))
    assert len(set(cells)) == len(cells) == 24 * (max(y for _, y in cells) + 1)  # no overlap and no hole


def test_the_variables(kind: Kind) -> None:
    source, *others = board(kind).json["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    for variable in others:
        query = variable["query"]["query"]
        assert re.fullmatch(rf"label_values\(gpu_hook_\w+, {variable['name']}\)", query) and variable["query"]["refId"]
        assert (variable["type"], variable["datasource"]) == ("query", SOURCE)
        assert variable["includeAll"] and variable["allValue"] == ".*" and variable["current"]["value"] == "$__all"
    known = {variable["name"] for variable in others} | {"__rate_interval"}
    used = set(re.findall(r"\$(\w+)", " ".join(t["expr"] for p in board(kind).panels for t in p["targets"])))
    assert used == known
    # A variable of several choices is put in as a pattern.
    assert not any(re.search(r"[^~]\"\$", e) for e in expressions(kind))


def test_every_metric_and_label_exists(kind: Kind) -> None:
    known = kind.metrics()
    used = 0
    for expression in expressions(kind):
        assert expression.count("(") == expression.count(")"), expression
        for name, labels in re.findall(r"\b(gpu_hook_\w+)(?:\{([^}]*)\})?", expression):
            used += 1
            assert name in known, name
            for label in re.findall(r"(\w+)\s*(?:=~|!=|=)", labels):
                assert label in known[name] | {"instance"}, (name, label)
    assert used > 20


def test_every_alert_has_a_test_for_promtool(kind: Kind) -> None:
    def names(file: str, key: str) -> set[str]:
        return set(re.findall(rf"{key}: (GpuHook\w+)", (GRAFANA / file).read_text()))

    assert names(kind.alerts, "alert") == names(kind.tests, "alertname") != set()


def test_every_metric_is_on_the_page(kind: Kind) -> None:
    page = (GRAFANA.parent / "reference/metrics.md").read_text()
    for name in kind.metrics():
        base = re.sub(r"_(bucket|sum|count)$", "", name.removeprefix(kind.prefix))
        assert f"`{base}`" in page, name
