"""The verbs of Volcano's scheduler plugin `extender` that ask us without a change: whether a node has room for a pod, and whether
the pods of a job have room at once.

By Volcano's own source of 1.10 (plugins/extender: argument.go, extender.go): {"task": TaskInfo, "node": NodeInfo} ->
{"status": words, "" for yes, "code": number}, and {"job": JobInfo} -> {"status": 1 yes, 0 no opinion, -1 no}. TaskInfo, NodeInfo
and JobInfo have the names of their Go fields. Volcano itself has not been run with it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from oci_hook.kube.choose import Question, Refused, judge
from oci_hook.kube.gang import MOST_PODS, TOO_LONG, Role, dry_run
from oci_hook.kube.pods import PodWords, words
from oci_hook.kube.state import ClusterState

YES, NO_OPINION, NO = 1, 0, -1
UNSCHEDULABLE, UNRESOLVABLE = 2, 3  # of Volcano's status codes


def predicate(asked: Mapping[str, Any], state: ClusterState) -> dict[str, Any]:
    pod = words(asked["task"]["Pod"])
    question = Question(pod)
    if not question.asks:
        return {"status": "", "code": 0}
    held = state.reservations.get(pod.uid)
    state.release(pod.uid)
    try:
        found = judge(state, question, str(asked["node"]["Name"]))
    finally:
        if held is not None:
            state.restore(held)
    if isinstance(found, Refused):
        return {"status": str(found.problem), "code": UNRESOLVABLE if found.final else UNSCHEDULABLE}
    return {"status": "", "code": 0}


def job_enqueueable(asked: Mapping[str, Any], state: ClusterState, enough: Callable[[], bool]) -> dict[str, Any]:
    """A job whose pods are made only after it is let in (Volcano's own jobs) has none yet: no opinion; nor on one that is too
    large to look at."""
    job = asked["job"]
    pods = [task["Pod"] for task in (job.get("Tasks") or {}).values()]
    waiting = [pod for pod in pods if not (pod.get("spec") or {}).get("nodeName")]
    if len(waiting) > MOST_PODS:
        return {"status": NO_OPINION}
    alike: dict[tuple[object, ...], tuple[PodWords, int]] = {}
    for pod in map(words, waiting):
        key = pod.containers, tuple(sorted(pod.annotations.items())), pod.priority
        alike[key] = pod, alike.get(key, (pod, 0))[1] + 1
    roles = []
    for pod, count in alike.values():
        if enough():
            return {"status": NO_OPINION}
        if Question(pod).asks:
            roles.append(Role(pod.name, count, pod))
    if not roles:
        return {"status": NO_OPINION}
    answer = dry_run(state, roles, enough=enough)
    if any(one.why is TOO_LONG for one in answer.roles):
        return {"status": NO_OPINION}
    missing = sum(one.count - one.fits for one in answer.roles)
    spare = max(0, len(waiting) - int(job.get("MinAvailable") or len(waiting)))
    return {"status": YES if missing <= spare else NO}
