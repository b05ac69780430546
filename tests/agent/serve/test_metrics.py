"""Every metric by its value: a node where each figure is another one, and the whole page that comes of it."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from oci_hook import __version__
from oci_hook.agent.counters import Counters
from oci_hook.agent.judge.audit_rules import KINDS, Finding, Use
from oci_hook.agent.judge.gpu_sample import GpuSample
from oci_hook.agent.serve.metrics import PROBLEMS, SECONDS, exposition
from oci_hook.agent.serve.view import view
from oci_hook.agent.watched import Watched
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.slot_page import WAITS, Gate
from oci_hook.core.terms import Terms
from oci_hook.errors import CODES
from oci_hook.observe.account import PageFigures
from tests.agent.serve.test_grafana import of_a_node as all_names

MIB = 1 << 20
ID = "c" * 64
HELD = {"id": "c" * 12, "namespace": "ns", "pod": "pod", "container": "web"}
ON = {**HELD, "gpu": "3", "UUID": "GPU-0"}
GPU = {"gpu": "3", "UUID": "GPU-0"}
LOST = {"gpu": "4", "UUID": "GPU-1"}


def node() -> dict[str, Any]:
    gpus = (Gpu("GPU-0", 3, 0, 8192, no_limits=""), Gpu("GPU-1", 4, 1, 4096))
    inventory = Inventory("", "550", "/", False, gpus, (), (), "", "")
    who = Identity("/run", ID, "/b", namespace="ns", pod="pod", container="web")
    shares = (Share("GPU-0", 2048, 30, 80, slot=1),)
    life = Life("b", init=(1, 1))
    grant = Grant(
        "k1", who, life, shares, terms=Terms(policy="fixed-share", priority_class="offline"), created=1001, frozen=1002
    )
    watched = Watched()
    watched.account = PageFigures((100 * MIB,), (7 * MIB,), frozenset(), {}, (30 * MIB,))
    watched.uses["GPU-0"] = Use(120 * MIB, 41, (1,))
    watched.peaks["GPU-0"] = 500
    watched.frozen_seconds, watched.suspended_seconds = 12.5, 3.5
    waits = tuple(range(1, WAITS + 1))
    watched.set_gate("GPU-0", Gate(21.5, 31.25, 1234, 5, waits, 2.75, "rotate", 0.0, 0, 0.0035))
    meter = watched.meter("GPU-0")
    meter.used, meter.shortfall, meter.harvest, meter.harvested = 23.0, -4.0, 17.0, 61.5
    meter.outranked = 8.25
    samples = {"GPU-0": GpuSample(3000 * MIB, 8192 * MIB, 66, ()), "GPU-1": GpuSample(0, 0, -1, (), "GPU is lost")}
    findings = (Finding("over-memory", "k1", "GPU-0", 0, 0, "e"), Finding("over-memory", "k1", "GPU-0", 9, 1, "f"))
    agent = {"state": "degraded", "problems": {"gpus": "lost"}, "started": 900.5, "ledger_read": 1003.5}
    agent |= {"nvml_read": 1004.5, "processes": {"agent": {"cpu_seconds": 1.5, "memory": 4096}}}
    return view(
        inventory,
        {"k1": grant},
        samples,
        {"k1": watched},
        findings,
        {"GPU-0": (2, 64 * MIB)},
        agent,
        {"GPU-0": 5 * MIB},
    )


def expected() -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}

    def is_(name: str, value: float, labels: dict[str, str] | None = None, **more: str) -> None:
        found["gpu_hook_" + name, frozenset({**(labels or {}), **more}.items())] = value

    is_("build_info", 1, version=__version__)
    is_("simulated", 0)
    for labels, memory, granted, compute, containers, error, strangers, theirs in (
        (GPU, 8192, 2048, 0.3, 1, 0, 2, 64),
        (LOST, 4096, 0, 0, 0, 1, 0, 0),
    ):
        is_("gpu_memory_bytes", memory * MIB, labels)
        is_("gpu_memory_granted_bytes", granted * MIB, labels)
        is_("gpu_compute_granted_ratio", 0, labels)  # all of it is offline
        is_("gpu_offline_compute_granted_ratio", compute, labels)
        is_("gpu_containers", containers, labels)
        is_("gpu_error", error, labels)
        is_("gpu_driver_limits", labels == GPU, labels)
        is_("gpu_unknown_processes", strangers, labels)
        is_("gpu_unknown_processes_memory_bytes", theirs * MIB, labels)
        is_("gpu_unlisted_memory_bytes", 5 * MIB if labels == GPU else 0, labels)
    is_("gpu_memory_used_bytes", 3000 * MIB, GPU)  # of the lost one nothing is known, which is not 0
    is_("gpu_utilization_ratio", 0.66, GPU)
    is_("gpu_harvested_ratio", 0.17, GPU)
    is_("container_boundary", 1, HELD, boundary="shim")
    is_("container_info", 1, HELD, policy="fixed-share", state="frozen", **{"class": "offline"})
    is_("container_grant_timestamp_seconds", 1001, HELD)
    is_("container_freeze_timestamp_seconds", 1002, HELD)
    is_("container_frozen_seconds_total", 12.5, HELD)
    is_("container_suspended_seconds_total", 3.5, HELD)
    is_("container_findings", 2, HELD, kind="over-memory")
    is_("container_memory_limit_bytes", 2048 * MIB, ON)
    is_("container_memory_used_bytes", 120 * MIB, ON)  # the driver's figure is above the account page's
    is_("container_memory_kept_bytes", 30 * MIB, ON)
    is_("container_memory_peak_bytes", 500 * MIB, ON)
    is_("container_memory_surcharge_bytes", 7 * MIB, ON)
    is_("container_compute_guarantee_ratio", 0.3, ON)
    is_("container_compute_limit_ratio", 0.8, ON)
    is_("container_compute_used_ratio", 0.23, ON)
    is_("container_compute_shortfall_ratio", -0.04, ON)
    is_("container_utilization_ratio", 0.41, ON)
    is_("container_harvested_seconds_total", 61.5, ON)
    is_("container_compute_charged_seconds_total", 21.5, ON)
    is_("container_compute_wanted_seconds_total", 31.25, ON)
    is_("container_compute_outranked_seconds_total", 8.25, ON)
    is_("container_gate_launches_total", 1234, ON)
    is_("container_gate_waiting_threads", 5, ON)
    is_("container_gate_mode", 1, ON, mode="rotate")
    is_("container_preempt_bound_seconds", 0.0035, ON)
    # 1 launch waited less than 64 us, 1 + 2 + 3 less than 256 us, ...
    for i in range(8):
        is_("container_gate_wait_seconds_bucket", sum(range(2 * i + 2)), ON, le=str(float(f"{64e-6 * 4**i:.7g}")))
    is_("container_gate_wait_seconds_bucket", 136, ON, le="+Inf")
    is_("container_gate_wait_seconds_count", 136, ON)
    is_("container_gate_wait_seconds_sum", 2.75, ON)
    is_("agent_healthy", 0)
    for what in PROBLEMS:
        is_("agent_problem", what == "gpus", problem=what)
    is_("agent_start_time_seconds", 900.5)
    is_("ledger_read_timestamp_seconds", 1003.5)
    is_("nvml_read_timestamp_seconds", 1004.5)
    is_("agent_cpu_seconds_total", 1.5, process="agent")
    is_("agent_resident_memory_bytes", 4096, process="agent")
    is_("ledger_grants", 1)
    is_("boundary_server_up", 0)
    for name in ("boundary_repaired_total", "boundary_failures_total", "boundary_fallbacks_total"):
        is_(name, 0)
    is_("grants_total", 11)
    is_("grants_ended_total", 4)
    for code in CODES:
        is_("refusals_total", 6 if code == "GH-201" else 0, code=code)
    for kind in KINDS:
        is_("findings_total", 3 if kind == "no-shim" else 0, kind=kind)
    for i, bound in enumerate(SECONDS):
        is_("create_duration_seconds_bucket", min(i + 1, 10), le=str(bound))
    is_("create_duration_seconds_bucket", 11, le="+Inf")
    is_("create_duration_seconds_count", 11)
    is_("create_duration_seconds_sum", 8.25)
    return found


def test_every_figure() -> None:
    counters = Counters()
    counters.granted, counters.ended, counters.seconds_sum = 11, 4, 8.25
    counters.seconds = [1] * 10 + [0, 1]
    counters.refused["GH-201"] = 6
    for _ in range(3):
        counters.finding("no-shim")
    families = list(text_string_to_metric_families(exposition(node(), counters).decode()))
    found = {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}
    wanted = expected()
    assert {k: v for k, v in found.items() if abs(wanted.get(k, -1e9) - v) > 1e-9} == {}
    assert found.keys() == wanted.keys()
    assert {name for name, _ in found} == set(all_names())  # nothing is left out here
