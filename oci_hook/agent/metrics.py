"""The node as Prometheus metrics (prometheus-client writes the text). Base units: bytes, seconds, ratios of 1.

Labels are bounded: cards by index and UUID, containers by id, namespace, pod and name, each at most LABEL_MAX printable
characters, whatever an image or a tenant calls itself; codes and kinds are ours.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from oci_hook import __version__
from oci_hook.agent.audit import KINDS
from oci_hook.agent.event_log import Follower
from oci_hook.errors import CODES
from oci_hook.node.events import short

LABEL_MAX = 64
MIB = 1 << 20
CARD = ("card", "uuid")
CONTAINER = ("id", "namespace", "pod", "container")
GRANTED = ("policy", "class", "state")
# Of each container on each card: metric, help, field of view.share_view, factor to the base unit.
SHARE = (
    ("memory_limit_bytes", "Memory limit.", "memory_mib", MIB),
    ("memory_used_bytes", "In use, by NVML or the container's books, whichever is more.", "used_mib", MIB),
    ("memory_peak_bytes", "The most that the agent has seen in use.", "peak_mib", MIB),
    ("memory_surcharge_bytes", "Counted beyond the books: contexts, modules, bypass.", "surcharge_mib", MIB),
    ("compute_entitlement_ratio", "Guaranteed compute.", "compute", 0.01),
    ("compute_limit_ratio", "Ceiling of compute.", "compute_limit", 0.01),
    ("compute_used_ratio", "Had of the card since the look before, by the gate's books.", "share", 0.01),
    ("busy_ratio", "NVML's utilisation by the container's processes.", "busy", 0.01),
)
SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Counters:
    """What happened since the agent started; refusals and grants are read from the node's event log."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self.findings: Counter[str] = Counter()
        self.granted = 0
        self.ended = 0
        self.seconds = [0] * (len(SECONDS) + 1)
        self.seconds_sum = 0.0
        self._log: Follower | None = None
        self._state_dir = ""

    def finding(self, kind: str) -> None:
        self.findings[kind] += 1

    def findings_total(self) -> int:
        return sum(self.findings.values())

    def follow(self, state_dir: str) -> None:
        if self._log is None or state_dir != self._state_dir:
            self._log, self._state_dir = Follower(state_dir, old=False), state_dir
        for event in self._log.read():
            if event["event"] == "refused":
                codes = event.get("codes")
                self.refused.update(c for c in (codes if isinstance(codes, list) else ()) if c in CODES)
            elif event["event"] == "granted":
                self.granted += 1
                took = event.get("seconds")
                if isinstance(took, float | int):
                    self.seconds_sum += took
                    self.seconds[next((i for i, le in enumerate(SECONDS) if took <= le), len(SECONDS))] += 1


def label(value: object) -> str:
    text = str(value)[:LABEL_MAX]
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


class Families:
    """Families by name, in the order in which they were first used."""

    def __init__(self) -> None:
        self.found: dict[str, Metric] = {}

    def gauge(self, name: str, help: str, labels: Iterable[str], values: Iterable[object], value: float | None) -> None:
        if value is None:
            return
        family = self.found.get(name)
        if family is None:
            family = self.found[name] = GaugeMetricFamily(f"gpu_hook_{name}", help, labels=list(labels))
        assert isinstance(family, GaugeMetricFamily)
        family.add_metric([label(v) for v in values], value)

    def counter(self, name: str, help: str, labels: Iterable[str], values: Iterable[object], value: float) -> None:
        family = self.found.get(name)
        if family is None:
            family = self.found[name] = CounterMetricFamily(f"gpu_hook_{name}", help, labels=list(labels))
        assert isinstance(family, CounterMetricFamily)
        family.add_metric([label(v) for v in values], value)


def scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def families(node: dict[str, Any], counters: Counters) -> Iterator[Metric]:
    f = Families()
    f.gauge("build_info", "Version of gpu-hook.", ("version",), (__version__,), 1)
    f.gauge("simulated", "1: the cards are simulated.", (), (), int(node["simulated"]))
    for card in node["cards"]:
        _card(f, card)
    strange: set[str] = set()
    for c in node["containers"]:
        _container(f, c, strange)
    agent = node["agent"]
    f.gauge("agent_up", "1: all that the agent looks at can be looked at.", (), (), int(agent["state"] == "ok"))
    for name in ("settings", "ledger", "inventory", "nvml", "devices", "textfile"):
        f.gauge("agent_problem", "1: the agent has this problem.", ("what",), (name,), int(name in agent["problems"]))
    f.gauge("agent_start_time_seconds", "When the agent started, in seconds since 1970.", (), (), agent["started"])
    f.gauge("ledger_grants", "Containers that hold a share.", (), (), len(node["containers"]))
    f.counter("grants", "Shares given since the agent started.", (), (), counters.granted)
    f.counter("ended", "Shares given back since the agent started.", (), (), counters.ended)
    for code, n in sorted(counters.refused.items()):
        f.counter("refusals", "Containers refused since the agent started, by code.", ("code",), (code,), n)
    for kind in KINDS:
        f.counter("findings", "Findings of the audit by kind.", ("kind",), (kind,), counters.findings[kind])
    yield from f.found.values()
    create = HistogramMetricFamily("gpu_hook_create_seconds", "Time that gpu-hook added to the making of a container.")
    total, buckets = 0, []
    for bound, n in zip((*map(str, SECONDS), "+Inf"), counters.seconds, strict=True):
        total += n
        buckets.append((bound, total))
    create.add_metric([], buckets, counters.seconds_sum)
    yield create


def _card(f: Families, card: dict[str, Any]) -> None:
    at = (card["index"], card["uuid"])
    f.gauge("card_memory_bytes", "Memory of the card.", CARD, at, card["memory_mib"] * MIB)
    f.gauge("card_memory_granted_bytes", "Granted of it.", CARD, at, card["granted_mib"] * MIB)
    f.gauge("card_memory_used_bytes", "In use, as NVML sees it.", CARD, at, scaled(card["used_mib"], MIB))
    f.gauge("card_compute_granted_ratio", "Guaranteed compute.", CARD, at, card["granted_compute"] / 100)
    f.gauge("card_busy_ratio", "NVML's utilisation of the card.", CARD, at, scaled(card["busy"], 0.01))
    f.gauge("card_containers", "Containers that hold a share of it.", CARD, at, card["containers"])
    f.gauge("card_error", "1: NVML cannot look at the card.", CARD, at, int(bool(card["error"])))
    f.gauge("card_strangers", "Processes on it that are of no container known here.", CARD, at, card["strangers"])
    f.gauge("card_strangers_memory_bytes", "Memory that they hold.", CARD, at, card["strangers_mib"] * MIB)


def _container(f: Families, c: dict[str, Any], seen: set[str]) -> None:
    who = (short(c["id"]), c["namespace"], c["pod"], c["name"])
    same = "\0".join(label(v) for v in who)
    if same in seen:  # two runtimes may each have a container of this id: by key, then
        who = (c["key"], c["namespace"], c["pod"], c["name"])
    seen.add(same)
    f.gauge("container_info", "What was granted.", (*CONTAINER, *GRANTED), (*who, *(c[name] for name in GRANTED)), 1)
    f.gauge("container_start_time_seconds", "When it got its share.", CONTAINER, who, c["created"])
    since = c["frozen_since"]
    f.gauge("container_frozen_since_seconds", "Since when it is frozen, in seconds since 1970.", CONTAINER, who, since)
    for kind in KINDS:
        n = sum(1 for finding in c["findings"] if finding["kind"] == kind)
        if n:
            f.gauge("container_findings", "Findings that stand.", (*CONTAINER, "kind"), (*who, kind), n)
    for s in c["cards"]:
        at = (*who, "" if s["index"] is None else s["index"], s["uuid"])
        for name, help, field, factor in SHARE:
            f.gauge(f"container_{name}", help, (*CONTAINER, *CARD), at, scaled(s[field], factor))
        if s["gate"]:
            _gate(f, at, s["gate"])


def _gate(f: Families, at: tuple[Any, ...], gate: dict[str, Any]) -> None:
    labels = (*CONTAINER, *CARD)
    f.counter("container_compute_charged_seconds", "GPU time had, by the gate's books.", labels, at, gate["charged"])
    f.counter("container_launches", "Commands that passed the gate.", labels, at, gate["launches"])
    f.gauge("container_gate_waiting", "Threads that the gate holds now.", labels, at, gate["waiting"])
    f.gauge("container_gate_mode", "1: the gate's last decision.", (*labels, "mode"), (*at, gate["mode"]), 1)
    bound = gate["preempt_bound"] or None
    f.gauge("container_preempt_bound_seconds", "Its work is off the card this soon after a freeze.", labels, at, bound)


class _Once:
    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


def exposition(node: dict[str, Any], counters: Counters) -> bytes:
    """The text format 0.0.4. node: view.view()."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(list(families(node, counters))))
    return bytes(generate_latest(registry))
