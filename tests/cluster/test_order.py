"""Who waits for whom, on the real scheduler with plain nodes: times with and without a burst beside, in one run."""

import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from testbed.cluster import lab, plain_nodes
from testbed.cluster.api import Api, Refused
from testbed.cluster.machine import wait
from testbed.cluster.plane import EXTENDER, PODS, WORK, Plane
from tests.cluster.test_preemption import extender

GIB = 1024
BURST = 500
ONLINE, OFFLINE = {"gpu-hook.io/class": "online"}, {"gpu-hook.io/class": "offline"}
SPREAD = {"gpu-hook.io/placement": "spread", "gpu-hook.io/node-placement": "spread"}


@pytest.fixture
def plane(empty_plane: Plane) -> Iterator[Plane]:
    empty_plane.clean()
    empty_plane.ready(empty_plane.controller("--extender-address", f"127.0.0.1:{EXTENDER}"))
    for n in range(20):
        empty_plane.node(f"n{n}", *[16 * GIB] * 4)
    extender(empty_plane, preempt=True)
    yield empty_plane
    empty_plane.control.use_scheduler_config({})
    empty_plane.clean()


def seconds_to_bind(plane: Plane, name: str, memory: str, **more: Any) -> float:
    began = time.monotonic()
    plane.create(name, memory, **more)
    plane.bound(name, 120)
    return time.monotonic() - began


def stream(plane: Plane, name: str, count: int, **more: Any) -> list[float]:
    """Of pods that fit, one after another: each as soon as the one before has its node; it goes then."""
    times = []
    for n in range(count):
        times.append(seconds_to_bind(plane, f"{name}{n}", "1Gi", **more))
        plane.api("DELETE", f"{PODS}/{name}{n}")
    return times


def burst(plane: Plane, name: str, count: int, memory: str, **more: Any) -> None:
    """From four clients at once."""

    def create(part: int) -> None:
        api = Api(plane.control.machine.pid, plane.control.keys.folder)
        for n in range(part, count, 4):
            made = plain_nodes.pod(f"{name}{n}", memory, **more)
            wait(60, f"{name}{n} is created", lambda made=made: created(api, made))  # type: ignore[misc]
        api.close()

    threads = [threading.Thread(target=create, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    api = Api(plane.control.machine.pid, plane.control.keys.folder)  # plane.api is another thread's meanwhile
    made = api.get(PODS)["items"]
    api.close()
    assert sum(pod["metadata"]["name"].startswith(name) for pod in made) == count


def created(api: Api, made: Any) -> bool:
    try:
        api("POST", PODS, made)
    except Refused as e:
        assert e.status == 409 or "webhook" in e.message, e  # under load the API server gives a webhook up
        return e.status == 409
    return True


def left(plane: Plane, name: str) -> int:
    """How many of these the scheduler has not looked at yet."""

    def seen(pod: Any) -> bool:
        return any(
            one["type"] == "PodScheduled" and one["status"] == "False" for one in pod["status"].get("conditions") or ()
        )

    return sum(pod["metadata"]["name"].startswith(name) and not seen(pod) for pod in plane.pods())


def report(what: str, alone: list[float], beside: list[float]) -> float:
    ratio = statistics.median(beside) / statistics.median(alone)
    print(
        f"{what}: alone {statistics.median(alone):.2f} s (most {max(alone):.2f}), "
        f"beside {statistics.median(beside):.2f} s (most {max(beside):.2f}), ratio {ratio:.2f}"
    )
    return ratio


@pytest.mark.parametrize(
    "what", ["too large for any GPU", "no GPU has it free", "no sum has it free", "protected by a budget"]
)
def test_pods_that_fit_nowhere_do_not_hold_up_those_that_fit(plane: Plane, what: str) -> None:
    """500 of them wait; a stream of others beside."""
    more: dict[str, Any] = {}
    memory = "15Gi"
    if what == "too large for any GPU":
        memory = "17Gi"
    elif what == "no sum has it free":
        memory = ""
        more = {"annotations": {"gpu-hook.io/gpus": "5"}}
    else:
        burst(plane, "holds", 80, "2Gi", annotations=SPREAD, labels={"app": "h"})
        wait(120, "each GPU is in use", lambda: len(plane.granted()) == 80)
    if what == "protected by a budget":
        folder = f"/apis/{lab.POLICY}/namespaces/{WORK}/poddisruptionbudgets"
        spec = {"minAvailable": "100%", "selector": {"matchLabels": {"app": "h"}}}
        plane.api("POST", folder, {"metadata": {"name": "all"}, "spec": spec})
        more = {"priorityClassName": "high"}
    stream(plane, "warm", 3)
    alone = stream(plane, "alone", 15)
    burst(plane, "never", BURST, memory, **more)
    wait(240, "the scheduler has looked at all", lambda: left(plane, "never") == 0)
    beside = stream(plane, "beside", 15)
    ratio = report(what, alone, beside)
    names = {pod["metadata"]["name"] for pod in plane.pods()}
    assert len(names) >= BURST and not any(
        "nodeName" in pod["spec"] for pod in plane.pods() if pod["metadata"]["name"].startswith("never")
    )
    assert sum(name.startswith("holds") for name in names) in (0, 80), "nobody was ended"
    if what == "protected by a budget":
        plane.api("DELETE", f"{folder}/all")
    assert ratio < 60  # a live-lock, or a queue that is served first in, first out for ever, would be far beyond


@pytest.mark.parametrize("priority", ["high", ""])
def test_offline_pods_that_wait_do_not_hold_up_an_online_one(plane: Plane, priority: str) -> None:
    """500 offline pods arrive at the same time as online ones; a third of them fits."""
    more: dict[str, Any] = {"annotations": ONLINE, **({"priorityClassName": priority} if priority else {})}
    stream(plane, "warm", 3, **more)
    alone = stream(plane, "alone", 15, **more)
    others = threading.Thread(target=burst, args=(plane, "off", BURST, "6Gi"), kwargs={"annotations": OFFLINE})
    others.start()
    beside = stream(plane, "beside", 15, **more)
    others.join()
    assert report(f"online, priority {priority or 'the same'}", alone, beside) < 60
