"""Parts of a controller for tests of other parts."""

from collections.abc import Callable, Iterable
from typing import Any

from oci_hook.kube.controller.act.preemptor import Preemptor
from oci_hook.kube.controller.api.pod_events import Events
from oci_hook.kube.controller.context import Context
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.preemption.disruption import Budgets
from oci_hook.kube.preemption.preempt import PreemptionTerms


def context(
    client: Any,
    state: ClusterState,
    enabled: Iterable[str] = ("default",),
    leads: Callable[[], bool] = lambda: True,
    synced: Callable[[], bool] = lambda: True,
    now: Callable[[], float] = lambda: 0.0,
) -> Context:
    names = enabled if isinstance(enabled, set) else set(enabled)
    return Context(client, state, names, leads, synced, now)


def preemptor(within: Context) -> Preemptor:
    """A preemptor that only takes notes: it does not run."""
    events = Events(within.client, lambda: 0.0)
    return Preemptor(within, Budgets(), events, "on", PreemptionTerms(), lambda outcome: None)
