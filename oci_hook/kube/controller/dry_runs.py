"""Questions that change nothing: whether pods have room at once, for gang engines; whether a node has, for Volcano; every node that
has, for an autoscaler. Their caller knows the extender's token, or is on its loopback."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from oci_hook.errors import GhError
from oci_hook.kube import extender, gang, mutate, volcano
from oci_hook.kube.pods import words
from oci_hook.kube.state import ClusterState

# Path, as who asks has it -> what answers here. The middle ones are Volcano's own names.
DRY_RUNS = {
    "dry-run": "pods",
    "predicate": "predicate",
    "jobEnqueueable": "job_enqueueable",
    "filter-dry-run": "filter",
}
MOST = 0.25  # seconds of one answer, in which nobody else is answered


class DryRuns:
    """mutation: what the create webhook is told now."""

    def __init__(self, state: ClusterState, mutation: Callable[[], mutate.Options]) -> None:
        self._state, self._mutation = state, mutation

    def pods(self, asked: Mapping[str, Any]) -> Any:
        """gang.roles_of's object, with the member nodes where only some count."""
        nodes = asked.get("nodes")
        if nodes is not None and not (isinstance(nodes, list) and all(isinstance(name, str) for name in nodes)):
            raise ValueError("nodes is no list of names")
        enough = _until(MOST)
        roles = gang.roles_of(asked, self._mutation(), enough)
        among = None if nodes is None else frozenset(nodes)
        return gang.as_data(gang.dry_run(self._state, roles, among, enough))

    def predicate(self, asked: Mapping[str, Any]) -> Any:
        return volcano.predicate(asked, self._state)

    def job_enqueueable(self, asked: Mapping[str, Any]) -> Any:
        return volcano.job_enqueueable(asked, self._state, _until(MOST))

    def filter(self, asked: dict[str, Any]) -> Any:
        """A filter call, for a pod that need not exist: an autoscaler's simulated pods and nodes."""
        meta = {"uid": "dry run", "namespace": "default", "name": "dry-run", **(asked["Pod"].get("metadata") or {})}
        pod = {**asked["Pod"], "metadata": meta}
        try:
            pod = gang.mutated(pod, self._mutation())
        except GhError as e:
            if e.problems[0].code != "GH-605":  # a pod that has its decision already needs no translation
                return extender.nowhere(asked, e.problems[0])
        return extender.filter(asked, self._state, 0.0, dry_run=True, pod=words(pod))


def _until(seconds: float) -> Callable[[], bool]:
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() > end
