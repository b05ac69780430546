"""The node as Prometheus metrics. Base units: bytes, seconds, ratios of 1.

Labels are bounded: GPUs by index and UUID, containers by id, namespace, pod and name; codes and kinds are ours.
"""

from collections import Counter
from typing import Any

from oci_hook import __version__
from oci_hook.agent.counters import SECONDS, Counters
from oci_hook.agent.judge.audit_rules import KINDS
from oci_hook.core.prometheus import Exposition, labels
from oci_hook.core.slot_page import WAIT_BOUNDS
from oci_hook.core.units import MIB
from oci_hook.errors import CODES
from oci_hook.ledger.events import short

GPU = ("gpu", "UUID")  # as NVIDIA's DCGM exporter has them
CONTAINER = ("id", "namespace", "pod", "container")
GRANTED = ("policy", "class", "state")
# For each container on each GPU: metric, help, field of view.share_view, factor to the base unit.
SHARE = (
    ("memory_limit_bytes", "Memory limit.", "memory_mib", MIB),
    ("memory_used_bytes", "In use: the most that NVML, the driver's cgroup or the account page has.", "used_mib", MIB),
    ("memory_driver_limit_bytes", "Memory limit that the driver itself holds.", "driver_limit_mib", MIB),
    ("memory_charged_bytes", "In use by the driver's figure for the container's cgroup.", "charged_mib", MIB),
    ("memory_kept_bytes", "In use by exited processes, since forked children keep it.", "kept_mib", MIB),
    ("memory_peak_bytes", "The most that the agent has seen in use.", "peak_mib", MIB),
    (
        "memory_surcharge_bytes",
        "Charged beyond the account page: contexts, modules, memory taken past the shim.",
        "surcharge_mib",
        MIB,
    ),
    ("compute_guarantee_ratio", "Guaranteed compute.", "compute", 0.01),
    ("compute_limit_ratio", "Ceiling of compute.", "compute_limit", 0.01),
    ("compute_used_ratio", "Used of the GPU since the previous look, as the gate counts.", "compute_used", 0.01),
    (
        "compute_shortfall_ratio",
        "Guarantee less what it had while it wanted work, last minute.",
        "compute_shortfall",
        0.01,
    ),
    ("utilization_ratio", "NVML's utilization by the container's processes.", "utilization", 0.01),
)
WAITS = tuple(f"{bound:.7g}" for bound in WAIT_BOUNDS[::2])  # every second one: half as many series
PROBLEMS = (
    *("settings", "disk", "ledger", "inventory", "nvml", "gpus", "devices", "accounts", "locks", "textfile"),
    *("boundary", "cluster", "suspend", "driver", "page", "socket"),
)


def exposition(node: dict[str, Any], counters: Counters) -> bytes:
    """The text for a scrape. node: view.view()."""
    out = Exposition()
    out.gauge("build_info", "Version of gpu-hook.", labels(("version",), (__version__,)), 1)
    out.gauge("simulated", "1: the GPUs are simulated.", "", int(node["simulated"]))
    for gpu in node["gpus"]:
        _gpu(out, gpu)
    seen: set[str] = set()
    for container in node["containers"]:
        _container(out, container, seen)
    _agent(out, node, counters)
    return out.text()


def _agent(out: Exposition, node: dict[str, Any], counters: Counters) -> None:
    agent = node["agent"]
    out.gauge("agent_healthy", "1: the agent has no problem.", "", int(agent["state"] == "ok"))
    for name in PROBLEMS:
        at = labels(("problem",), (name,))
        out.gauge("agent_problem", "1: the agent has this problem.", at, int(name in agent["problems"]))
    out.gauge("agent_start_time_seconds", "When the agent started, in seconds since 1970.", "", agent["started"])
    help = "When the ledger was last read, in seconds since 1970."
    out.gauge("ledger_read_timestamp_seconds", help, "", agent.get("ledger_read"))
    help = "When NVML last answered, in seconds since 1970."
    out.gauge("nvml_read_timestamp_seconds", help, "", agent.get("nvml_read"))
    if agent.get("cluster"):
        _reporter(out, agent["cluster"])
    for process, used in agent.get("processes", {}).items():
        at = labels(("process",), (process,))
        out.counter(
            "agent_cpu_seconds", "Processor time of the agent and of its NVML process.", at, used["cpu_seconds"]
        )
        out.gauge(
            "agent_resident_memory_bytes", "Resident memory of the agent and of its NVML process.", at, used["memory"]
        )
    out.gauge("ledger_grants", "Containers that hold a share.", "", len(node["containers"]))
    out.counter("grants", "Shares granted since the agent started.", "", counters.granted)
    out.counter("grants_ended", "Shares released since the agent started.", "", counters.ended)
    boundary = agent.get("boundary") or {}
    out.gauge(
        "boundary_server_up",
        "1: the server that sets the driver's memory limits answers.",
        "",
        int(boundary.get("server") == "ok"),
    )
    help = "Driver's memory limits that were missing or different, and are set again."
    out.counter("boundary_repaired", help, "", boundary.get("repaired", 0))
    help = "Looks at the driver's memory limits, and clearings of them, that failed."
    out.counter("boundary_failures", help, "", boundary.get("failed", 0))
    help = "Containers that were started with the shim alone, since the driver's limit could not be set."
    out.counter("boundary_fallbacks", help, "", counters.fallbacks)
    for code in CODES:  # each from 0: increase() misses the first refusal of a series that begins with it
        at = labels(("code",), (code,))
        out.counter("refusals", "Containers refused since the agent started, by code.", at, counters.refused[code])
    for kind in KINDS:
        out.counter("findings", "Findings of the audit by kind.", labels(("kind",), (kind,)), counters.findings[kind])
    help = "How long gpu-hook took for a container's creation."
    out.histogram("create_duration_seconds", help, "", list(map(str, SECONDS)), counters.seconds, counters.seconds_sum)


def _reporter(out: Exposition, said: dict[str, Any]) -> None:
    out.gauge("reporter_up", "1: the reporter runs.", "", int(said["up"]))
    out.counter("reporter_starts", "Starts of the reporter by the agent.", "", said["starts"])
    out.counter("reporter_writes", "Writes to the node's object since the reporter started.", "", said.get("writes", 0))
    out.counter("reporter_failures", "Writes that failed since the reporter started.", "", said.get("failures", 0))
    help = "When the reporter last wrote to the API server, in seconds since 1970."
    out.gauge("reporter_write_timestamp_seconds", help, "", said.get("last"))


def _gpu(out: Exposition, gpu: dict[str, Any]) -> None:
    at = labels(GPU, (gpu["index"], gpu["uuid"]))
    out.gauge("gpu_memory_bytes", "Memory of the GPU.", at, gpu["memory_mib"] * MIB)
    out.gauge("gpu_memory_granted_bytes", "Memory granted to containers.", at, gpu["granted_mib"] * MIB)
    out.gauge("gpu_memory_used_bytes", "In use, as NVML sees it.", at, scaled(gpu["used_mib"], MIB))
    help = "Guaranteed compute, of the classes online and default."
    out.gauge("gpu_compute_granted_ratio", help, at, gpu["granted_compute"] / 100)
    help = "The same of class offline: of what the others leave idle."
    out.gauge("gpu_offline_compute_granted_ratio", help, at, gpu["granted_offline_compute"] / 100)
    out.gauge("gpu_utilization_ratio", "NVML's utilization of the GPU.", at, scaled(gpu["utilization"], 0.01))
    help = "Used by offline containers in the last minute: what the others left idle."
    out.gauge("gpu_harvested_ratio", help, at, scaled(gpu["harvested"], 0.01))
    out.gauge("gpu_containers", "Containers that hold a share of it.", at, gpu["containers"])
    help = "1: the driver can hold memory limits of containers on it."
    out.gauge("gpu_driver_limits", help, at, int(gpu["boundary"] == "driver"))
    out.gauge("gpu_error", "1: NVML cannot look at the GPU.", at, int(bool(gpu["error"])))
    out.gauge(
        "gpu_unknown_processes",
        "Processes on it that belong to no container with a grant.",
        at,
        gpu["unknown_processes"],
    )
    out.gauge(
        "gpu_unknown_processes_memory_bytes", "Memory that those processes use.", at, gpu["unknown_processes_mib"] * MIB
    )
    help = "In use beyond all processes that NVML lists and the driver's own."
    out.gauge("gpu_unlisted_memory_bytes", help, at, gpu["unlisted_mib"] * MIB)


def _container(out: Exposition, c: dict[str, Any], seen: set[str]) -> None:
    names = (c["namespace"], c["pod"], c["name"])
    at = labels(CONTAINER, (short(c["id"]), *names))
    if at in seen:  # two runtimes may each have a container of this id: the key tells them apart
        at = labels(CONTAINER, (c["key"], *names))
    seen.add(at)
    granted = labels(GRANTED, [c[name] for name in GRANTED])
    out.gauge("container_info", "What was granted.", f"{at},{granted}", 1)
    out.gauge("container_grant_timestamp_seconds", "When it got its share, in seconds since 1970.", at, c["created"])
    since = c["frozen_since"]
    out.gauge("container_freeze_timestamp_seconds", "Since when it is frozen, in seconds since 1970.", at, since)
    since = c["suspended_since"]
    out.gauge("container_suspend_timestamp_seconds", "Since when it is suspended, in seconds since 1970.", at, since)
    held = c["host_mib"] * MIB if c["host_mib"] else None
    out.gauge("container_suspended_memory_bytes", "Memory of the host that it holds while it is suspended.", at, held)
    at_boundary = f"{at},{labels(('boundary',), (c['boundary'],))}"
    out.gauge("container_boundary", "1: who holds its memory limit; driver: the shim and the driver.", at_boundary, 1)
    help = "Frozen by a person or by the agent, since the agent knows it."
    out.counter("container_frozen_seconds", help, at, c["frozen_seconds"])
    help = "Off its GPUs, or on its way, since the agent knows it."
    out.counter("container_suspended_seconds", help, at, c["suspended_seconds"])
    for kind, n in Counter(finding["kind"] for finding in c["findings"]).items():
        out.gauge("container_findings", "Findings that are not over.", f"{at},{labels(('kind',), (kind,))}", n)
    for s in c["gpus"]:
        on = f"{at},{labels(GPU, ('' if s['index'] is None else s['index'], s['uuid']))}"
        for name, help, field, factor in SHARE:
            out.gauge(f"container_{name}", help, on, scaled(s[field], factor))
        if s["harvested"] is not None:
            help = "GPU time that an offline container had: what the others left idle."
            out.counter("container_harvested_seconds", help, on, s["harvested_seconds"])
        if s["gate"]:
            help = "Time in which it wanted work and its guarantee was not in force: a higher class worked."
            out.counter("container_compute_outranked_seconds", help, on, s["outranked_seconds"])
            _gate(out, on, s["gate"])


def _gate(out: Exposition, at: str, gate: dict[str, Any]) -> None:
    out.counter("container_compute_charged_seconds", "GPU time had, as the gate counts.", at, gate["charged"])
    help = "Time with work in flight or at the gate, as the gate counts."
    out.counter("container_compute_wanted_seconds", help, at, gate["wanted"])
    out.counter("container_gate_launches", "Commands that passed the gate.", at, gate["launches"])
    out.gauge("container_gate_waiting_threads", "Threads that the gate holds now.", at, gate["waiting"])
    mode = f'{at},mode="{gate["mode"]}"'
    out.gauge("container_gate_mode", "1: the gate's last decision.", mode, 1)
    bound = gate["preempt_bound"] or None
    out.gauge("container_preempt_bound_seconds", "Its work is off the GPU this soon after a freeze.", at, bound)
    if gate["waits"] is not None:
        first, *bins = gate["waits"]
        merged = [first, *(sum(bins[i : i + 2]) for i in range(0, len(bins), 2))]
        help = "How long launches waited at the gate, if they waited."
        out.histogram("container_gate_wait_seconds", help, at, WAITS, merged, gate["waited"])


def scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
