"""Pods that never heard of gpu-hook: each call of the API that concerns them answers the same with and without the controller, field
by field, in namespaces that opted in and in others. With -s the test prints the table."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from testbed.cluster import programs
from testbed.cluster.api import Api, Refused
from testbed.cluster.controllers import CONFIGURATIONS
from testbed.cluster.machine import wait
from testbed.cluster.plane import WORK, Plane, answers

OTHER = "outside"
APPLY = "application/apply-patch+yaml"
STRATEGIC, JSON = "application/strategic-merge-patch+json", "application/json-patch+json"
MERGE = "application/merge-patch+json"
CONTAINER = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}
SPEC = {
    "containers": [CONTAINER],
    "schedulerName": "nobody",
    "automountServiceAccountToken": False,  # else it has a volume with a random name
    "terminationGracePeriodSeconds": 0,
}
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": {"note": "mine"}}, "spec": SPEC}
OURS_ELSEWHERE = {"gpu-hook.io/memory": "4Gi", "gpu-hook.io/alloc": "{}"}  # in a namespace that has not opted in
Call = tuple[str, str, str, Any, str]  # what, method, path below the namespace, body, content type


def calls(namespace: str) -> Iterator[Call]:
    pod = copy.deepcopy(POD)
    if namespace == OTHER:
        pod["metadata"]["annotations"].update(OURS_ELSEWHERE)  # type: ignore[index]
    target = {"metadata": {"name": "p", "annotations": {"by": "another"}}, "target": {"kind": "Node", "name": "a"}}
    debug = {"name": "debug", "image": "none", "targetContainerName": "main"}
    larger = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}}
    eviction = {"apiVersion": f"policy/v1{'' if programs.minor() >= 22 else 'beta1'}", "kind": "Eviction"}
    eviction |= {"metadata": {"name": "p"}}  # type: ignore[dict-item]
    note = {"metadata": {"annotations": {"note": "other"}}}
    label = {"metadata": {"labels": {"a": "b"}}}
    yield "create, dry run", "POST", "/pods?dryRun=All", pod, ""
    yield "create", "POST", "/pods", pod, ""
    yield "create again", "POST", "/pods", pod, ""
    yield "patch labels, dry run", "PATCH", "/pods/p?dryRun=All", label, MERGE
    yield "patch labels", "PATCH", "/pods/p", label, MERGE
    yield "patch annotations", "PATCH", "/pods/p", note, STRATEGIC
    yield "patch image", "PATCH", "/pods/p", [{"op": "add", "path": "/spec/containers/0/image", "value": "x"}], JSON
    yield "patch what cannot change", "PATCH", "/pods/p", {"spec": {"nodeName": "a"}}, MERGE
    yield "apply over it", "PATCH", "/pods/p?fieldManager=me&force=true", pod, APPLY
    yield "read", "GET", "/pods/p", None, ""
    if programs.minor() >= 25:
        yield "add an ephemeral container", "PATCH", "/pods/p/ephemeralcontainers", ephemeral(debug), STRATEGIC
    yield "bind, dry run", "POST", "/pods/p/binding?dryRun=All", target, ""
    yield "bind by another scheduler", "POST", "/pods/p/binding", target, ""
    yield "bind again", "POST", "/pods/p/binding", target, ""
    if programs.minor() >= 33:
        yield "resize, dry run", "PATCH", "/pods/p/resize?dryRun=All", larger, STRATEGIC
        yield "resize", "PATCH", "/pods/p/resize", larger, STRATEGIC
    yield "patch status", "PATCH", "/pods/p/status", {"status": {"phase": "Running"}}, MERGE
    yield "patch status and annotations", "PATCH", "/pods/p/status", {"status": {"message": "x"}, **note}, MERGE
    yield "read what is bound", "GET", "/pods/p", None, ""
    yield (
        "evict, dry run",
        "POST",
        "/pods/p/eviction?dryRun=All",
        {**eviction, "deleteOptions": {"dryRun": ["All"]}},
        "",
    )
    yield "evict", "POST", "/pods/p/eviction", eviction, ""
    yield "read what is evicted", "GET", "/pods/p", None, ""
    yield "delete", "DELETE", "/pods/p?gracePeriodSeconds=0", None, ""
    yield "apply a new one, dry run", "PATCH", "/pods/p?fieldManager=me&dryRun=All", pod, APPLY
    yield "apply a new one", "PATCH", "/pods/p?fieldManager=me", pod, APPLY
    yield "apply it again", "PATCH", "/pods/p?fieldManager=me", pod, APPLY
    yield "apply as another manager", "PATCH", "/pods/p?fieldManager=you", {**pod, **label_of(pod)}, APPLY
    yield "bind by the old path", "POST", "/bindings", target, ""
    yield "read what is bound so", "GET", "/pods/p", None, ""
    yield "delete it", "DELETE", "/pods/p?gracePeriodSeconds=0", None, ""


def ephemeral(container: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"ephemeralContainers": [container]}}


def label_of(pod: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "p", "annotations": {**pod["metadata"]["annotations"], "note": "third"}}}


def played(api: Api, namespace: str) -> dict[str, Any]:
    """What each call answers, without what differs each time."""
    found = {}
    for what, method, path, body, kind in calls(namespace):
        try:
            answer = api(method, f"/api/v1/namespaces/{namespace}{path}", body, kind or "application/json")
        except Refused as e:
            answer = {"refused": e.status, "message": e.message}
        found[what] = without_chance(answer)
    return found


def without_chance(thing: Any) -> Any:
    if isinstance(thing, list):
        return [without_chance(one) for one in thing]
    if not isinstance(thing, dict):
        return thing
    chance = (
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "time",
        "lastTransitionTime",
        "startTime",
        "deletionTimestamp",
    )
    return {key: without_chance(value) for key, value in thing.items() if key not in chance}


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted(one.keys() | other.keys())
        return [line for key in keys for line in differences(one.get(key), other.get(key), f"{path}.{key}")]
    return [] if one == other else [f"{path}: {one!r:.200} became {other!r:.200}"]


def test_each_call_answers_the_same_with_and_without_the_controller(plane: Plane) -> None:
    plane.node("a", 16 << 10)
    plane.api("POST", "/api/v1/namespaces", {"metadata": {"name": OTHER}})
    account = f"/api/v1/namespaces/{OTHER}/serviceaccounts/default"
    wait(60, f"{OTHER} has its service account", lambda: answers(plane.api, account))
    has: Callable[[], bool] = lambda: answers(plane.api, f"{CONFIGURATIONS}/gpu-hook")  # noqa: E731
    try:
        with_it = plane.ready(plane.controller())
        before = with_it.figures().get('gpu_hook_controller_answers_total{call="bind",result="ok"}', 0)
        ours = {namespace: played(plane.api, namespace) for namespace in (WORK, OTHER)}
        after = with_it.figures()['gpu_hook_controller_answers_total{call="bind",result="ok"}']
        assert after - before == 3, "a dry run of a Binding, one, and one by the old path"
        plane.api("DELETE", f"{CONFIGURATIONS}/gpu-hook")
        wait(30, "no configuration", lambda: not has())
        with_it.stop()
        wait(60, "the API server asks nobody", lambda: asks_nobody(plane))
        plain = {namespace: played(plane.api, namespace) for namespace in (WORK, OTHER)}
    finally:
        plane.api("DELETE", f"/api/v1/namespaces/{OTHER}/pods?gracePeriodSeconds=0")
        plane.api("DELETE", f"/api/v1/namespaces/{OTHER}")
    changed = []
    print(f"\n{'call':32} {'status':8} {'opted in':10} other")
    for what in plain[WORK]:
        cells = []
        for namespace in (WORK, OTHER):
            lines = differences(plain[namespace][what], ours[namespace][what])
            if what == "bind again" and namespace == WORK:  # refused either way; we answer first, in our words
                lines = [line for line in lines if not line.startswith(".message:")]
            changed += [f"{what}, {namespace}: {line}" for line in lines]
            cells.append("differs" if lines else "same")
        print(f"{what:32} {plain[WORK][what].get('refused', 'ok')!s:8} {cells[0]:10} {cells[1]}")
    assert not changed, "\n".join(changed)


def asks_nobody(plane: Plane) -> bool:
    try:
        plane.api("POST", f"/api/v1/namespaces/{WORK}/pods?dryRun=All", POD)
    except Refused:
        return False
    return True
