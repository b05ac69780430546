"""Two controllers behind a Service: the leader is killed, paused, told to end, or its API server is slow. Each time the next
decides within seconds, and no GPU is given twice."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testbed.cluster.controllers import OWN
from testbed.cluster.machine import wait
from testbed.cluster.pki import API
from testbed.cluster.plane import Plane, always
from testbed.cluster.replicas import LEADS, Replicas, bound_within, gone, pod_name

GIB = 1024
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{OWN}/leases/gpu-hook-controller"
SOON = 15.0  # seconds; 5 on a machine that does nothing else (scripts/bench handover)


@pytest.fixture
def replicas(empty_plane: Plane) -> Iterator[Replicas]:
    empty_plane.clean()
    for name in "ab":
        empty_plane.node(name, 16 * GIB, 16 * GIB)
    made = Replicas(empty_plane)
    try:
        yield made.start()
    finally:
        made.end()
        empty_plane.clean()


def full(plane: Plane, number: int) -> None:
    """`number` pods of 4 GiB, four at a time."""

    def some(worker: int) -> None:
        own = Plane(plane.cluster, plane.folder)  # a thread has its own connection
        try:
            for n in range(worker, number, 4):
                bound_within(own, f"p{n}", time.monotonic(), "4Gi")
        finally:
            own.api.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(some, range(4)))


def sums_hold(plane: Plane, pods: int) -> None:
    taken = plane.granted()
    assert sum(taken.values()) == pods * 4 * GIB and max(taken.values()) <= 16 * GIB, taken


@pytest.mark.promise
def test_the_leader_is_killed_while_pods_come(replicas: Replicas) -> None:
    """16 pods for 16 places; the leader dies between two of them, three times."""
    plane = replicas.plane
    for n in range(16):
        if n in (4, 8, 12):
            leader = replicas.leader()
            begun = time.monotonic()
            leader.stop(signal.SIGKILL)
            assert bound_within(plane, f"p{n}", begun, "4Gi") < SOON
            leader.start()
            wait(60, "both are ready", lambda: all(one.ready() for one in replicas.all))
        else:
            bound_within(plane, f"p{n}", time.monotonic(), "4Gi")
    sums_hold(plane, 16)


def test_a_leader_that_is_paused_in_the_middle_of_answers_decides_nothing_afterwards(replicas: Replicas) -> None:
    plane = replicas.plane
    leader = replicas.leader()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(full, plane, 16)
        time.sleep(0.3)
        leader.pause()
        try:
            wait(60, "the other leads", lambda: replicas.other(leader).figures()[LEADS] == 1)
        finally:
            leader.resume()
        coming.result(120)
    assert replicas.leader() is not leader
    sums_hold(plane, 16)


def test_each_is_told_to_end_in_turn_and_no_call_fails(replicas: Replicas) -> None:
    """A rolling restart: what is asked meanwhile waits or is passed on."""
    plane = replicas.plane
    for n in range(2):
        leader = replicas.leader()
        with ThreadPoolExecutor(1) as pool:
            ends = pool.submit(leader.stop)
            begun = time.monotonic()
            time.sleep(0.1)
            assert bound_within(plane, f"p{n}", begun, "4Gi") < SOON
            ends.result(60)
        leader.start()
        wait(60, "both are ready", lambda: all(one.ready() for one in replicas.all))
    sums_hold(plane, 2)


def test_calls_of_a_second_each_neither_stop_the_leader_nor_make_it_change(replicas: Replicas) -> None:
    """Both controllers reach the API server by a way that takes a second for each call."""
    plane = replicas.plane
    proxy = subprocess.Popen(
        [
            *("nsenter", "-t", str(plane.control.machine.pid), "-n", "--"),
            *(sys.executable, str(Path(__file__).with_name("slow_proxy.py")), API, "9443", API, "443", "1.0"),
        ]
    )
    try:
        slow = plane.folder / "slow.conf"
        admin = (plane.control.keys.folder / "admin.conf").read_text()
        slow.write_text(admin.replace(f"https://{API}:443", f"https://{API}:9443"))
        for n, one in enumerate(replicas.all):
            one.stop()
            one.use_options("--pod", pod_name(n), "--kubeconfig", str(slow))
            one.start()
        wait(120, "both are ready", lambda: all(one.ready() for one in replicas.all))
        leader, terms = replicas.leader(), plane.api.get(LEASE)["spec"]["leaseTransitions"]
        for n in range(8):
            bound_within(plane, f"p{n}", time.monotonic(), "4Gi")
        always(20, lambda: plane.api.get(LEASE)["spec"]["leaseTransitions"] == terms)
        assert plane.api.get(LEASE)["spec"]["holderIdentity"].split("-")[-2] == str(leader.pid())
        sums_hold(plane, 8)
    finally:
        proxy.kill()
        proxy.wait()


def test_the_api_server_goes_away_for_longer_than_a_leader_may_decide(replicas: Replicas) -> None:
    plane = replicas.plane
    bound_within(plane, "p0", time.monotonic(), "4Gi")
    plane.control.stop("kube-apiserver", signal.SIGKILL)
    wait(30, "nobody leads", lambda: not any(one.figures()[LEADS] for one in replicas.all))
    plane.control.start("kube-apiserver")
    replicas.leader()
    for n in range(1, 16):
        bound_within(plane, f"p{n}", time.monotonic(), "4Gi", most=120)
    sums_hold(plane, 16)


def test_somebody_deletes_the_lease(replicas: Replicas) -> None:
    """Its holder may not know yet: nobody else decides before it does."""
    plane = replicas.plane
    for n in range(3):
        gone(plane.api, LEASE)
        bound_within(plane, f"p{n}", time.monotonic(), "4Gi")
    replicas.leader()
    sums_hold(plane, 3)
