"""Faults of a cluster (managed.py), one function for each kind. Each begins at a random moment of a change of pods, and returns
when the cause is over: killed programs have been started again, stopped ones continue."""

import base64
import http.client
import json
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from testbed.cluster.api import Api, Refused, socket_in
from testbed.cluster.control import Control
from testbed.cluster.controllers import Controller
from testbed.cluster.machine import wait
from testbed.cluster.managed import WORK, Managed
from testbed.cluster.node import Node

DOWN = 30.0  # seconds that the webhook is away
LEASE = 40.0  # at most, until another one leads
CAUGHT = 6.0  # until a trap closes
BETWEEN = 20_000  # microseconds after a filter's answer: the Binding is written by then


@dataclass
class Strike:
    """One fault. api: a connection of its own. said: its outcome, for the record."""

    site: Managed
    chance: random.Random
    api: Api
    said: dict[str, Any] = field(default_factory=dict)

    def node(self) -> Node:
        found = self.chance.choice(self.site.nodes)
        self.said["node"] = found.name
        return found

    def leader(self) -> Controller:
        """The leader; if none leads now, any controller that runs."""
        running = [c for c in self.site.controllers if c.process is not None]
        found = next((c for c in running if c.leads()), None)
        if found is None:
            wait(LEASE, "a controller runs", lambda: any(c.process for c in self.site.controllers))
            found = next(c for c in self.site.controllers if c.process is not None)
            self.said["nobody led"] = True
        return found


@dataclass(frozen=True)
class Fault:
    """does: the fault. prepare: before the pods change. bind: it needs a pod that is being placed. weight: how often. mixes: the
    leader may be killed meanwhile."""

    name: str
    weight: int
    what: str
    does: Callable[[Strike], None]
    prepare: Callable[[Strike], None] | None = None
    bind: bool = False
    mixes: bool = False


FAULTS: dict[str, Fault] = {}


def fault(
    name: str, weight: int, what: str, prepare: Callable[[Strike], None] | None = None, mixes: bool = False
) -> Callable[[Callable[[Strike], None]], Callable[[Strike], None]]:
    def add(does: Callable[[Strike], None]) -> Callable[[Strike], None]:
        FAULTS[name] = Fault(name, weight, what, does, prepare, bind=prepare is not None, mixes=mixes)
        return does

    return add


# ---- controllers ----------------------------------------------------------------------------------------------------


def kill(controller: Controller) -> None:
    process = controller.process
    if process is not None:
        process.kill()


@fault("leader-kill", 10, "kill -9 of the leading controller")
def leader_kill(s: Strike) -> None:
    kill(s.leader())


@fault("follower-kill", 3, "kill -9 of the controller that does not lead")
def follower_kill(s: Strike) -> None:
    leader = s.leader()
    for controller in s.site.controllers:
        if controller is not leader:
            kill(controller)


@fault("controllers-kill", 4, "kill -9 of both controllers at once")
def controllers_kill(s: Strike) -> None:
    for controller in s.site.controllers:
        kill(controller)


def arm_kill(s: Strike) -> None:
    leader = s.leader()
    assert leader.process is not None
    after = s.chance.choice((0, s.chance.randint(0, 3000), s.chance.randint(0, BETWEEN)))
    s.said |= {"after_us": after, "deaf": s.chance.random() < 0.2}
    s.site.arm(kill=leader.process.pid, after_us=after, deaf=s.said["deaf"])


def wait_for_trap(s: Strike) -> None:
    end = time.monotonic() + CAUGHT
    while not s.site.caught() and time.monotonic() < end:
        time.sleep(0.05)
    s.said["caught"] = s.site.caught()
    s.site.disarm()


@fault("reserve-bind-kill", 12, "kill -9 of the leader 0 to 20 ms after it reserved room for a pod", prepare=arm_kill)
def reserve_bind_kill(s: Strike) -> None:
    wait_for_trap(s)


@fault("two-leaders", 2, "the leader is stopped until another leads, and goes on then")
def two_leaders(s: Strike) -> None:
    leader = s.leader()
    others = [c for c in s.site.controllers if c is not leader]
    leader.pause()
    try:
        wait(LEASE, "another controller leads", lambda: any(c.process is not None and c.leads() for c in others))
        time.sleep(s.chance.uniform(0, 2))
    finally:
        leader.resume()


@fault("webhook-slow", 2, "the leader is stopped for 3 to 30 s")
def webhook_slow(s: Strike) -> None:
    leader = s.leader()
    s.said["seconds"] = seconds = round(s.chance.choice((s.chance.uniform(3, 8), s.chance.uniform(8, DOWN))), 1)
    leader.pause()
    try:
        time.sleep(seconds)
    finally:
        leader.resume()


@fault("webhook-down", 1, "no controller for 30 s")
def webhook_down(s: Strike) -> None:
    s.site.hold(*s.site.controllers)
    try:
        controllers_kill(s)
        time.sleep(DOWN)
    finally:
        s.site.release()


@fault(
    "controller-clock", 3, "the leader's clocks jump: real time by an hour or a day, or a minute of pause or suspension"
)
def controller_clock(s: Strike) -> None:
    clock = s.site.clocks[str(s.leader().port)]
    s.said["jump"] = jump = s.chance.choice(("hour", "back", "day", "pause", "suspend"))
    before = clock.now
    if jump in ("hour", "back", "day"):
        clock.set(before[0] + {"hour": 3600, "back": -3600, "day": 86_400}[jump], *before[1:])
        time.sleep(s.chance.uniform(1, 4))
        clock.set(*before)
    else:
        clock.set(before[0] + 60, before[1] + (60 if jump == "pause" else 0), before[2] + 60)


# ---- the control plane ----------------------------------------------------------------------------------------------


def restart(s: Strike, machine: "Control | Node", service: str) -> None:
    machine.stop(service, signal.SIGKILL)
    time.sleep(s.chance.choice((0, 0, s.chance.uniform(0, 3))))
    machine.start(service)


fault("apiserver-kill", 7, "kill -9 of the API server", mixes=True)(
    lambda s: restart(s, s.site.control, "kube-apiserver")
)
fault("etcd-kill", 7, "kill -9 of etcd", mixes=True)(lambda s: restart(s, s.site.control, "etcd"))
fault("scheduler-kill", 10, "kill -9 of the scheduler", mixes=True)(
    lambda s: restart(s, s.site.control, "kube-scheduler")
)


@fault("watch-gone", 3, "etcd is compacted and the API server starts anew while the controllers are stopped: 410 Gone")
def watch_gone(s: Strike) -> None:
    paused = [c for c in s.site.controllers if c.process is not None]
    logs = {c.log: len(c.log.read_bytes()) for c in paused}
    for controller in paused:
        controller.pause()
    try:
        time.sleep(s.chance.uniform(0.5, 2))
        s.site.control.stop("kube-apiserver", signal.SIGKILL)
        compact(s.site)
        s.site.control.start("kube-apiserver")
    finally:
        for controller in paused:
            if controller.process is not None:
                controller.resume()
    time.sleep(1)
    s.said["gone"] = sum(log.read_bytes()[size:].count(b"forgot our version") for log, size in logs.items())


def compact(site: Managed) -> None:
    """All versions before the newest."""
    zero = base64.b64encode(b"\0").decode()
    revision = etcd(site, "/v3/kv/range", {"key": zero, "range_end": zero, "count_only": True})["header"]["revision"]
    etcd(site, "/v3/kv/compaction", {"revision": revision, "physical": True})


def etcd(site: Managed, path: str, body: Any) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", 2379)
    connection.sock = socket_in(site.control.machine.pid, ("127.0.0.1", 2379))
    connection.request("POST", path, json.dumps(body))
    answer = json.loads(connection.getresponse().read())
    connection.close()
    if "error" in answer:
        raise RuntimeError(f"etcd {path}: {answer['error']}")
    return answer


# ---- nodes ----------------------------------------------------------------------------------------------------------


fault("kubelet-kill", 10, "kill -9 of a kubelet", mixes=True)(lambda s: restart(s, s.node(), "kubelet"))
fault("containerd-kill", 8, "kill -9 of a node's containerd; its containers go on", mixes=True)(
    lambda s: restart(s, s.node(), "containerd")
)


@fault("agent-kill", 8, "kill -9 of a node's agent, and so of its reporter", mixes=True)
def agent_kill(s: Strike) -> None:
    node = s.node()
    node.stop("agent", signal.SIGKILL)
    time.sleep(s.chance.choice((0, s.chance.uniform(0, 3))))
    s.site.start_agent(node)


@fault("node-power", 3, "a node loses its power, and starts 0 to 5 s later; its disk stays", mixes=True)
def node_power(s: Strike) -> None:
    node = s.node()
    s.site.grants[node.name].close()
    node.off()
    time.sleep(s.chance.choice((0, s.chance.uniform(0, 5))))
    node.on(s.site.cluster.images)
    s.site.start_agent(node)


@fault("node-clock", 2, "the real time of a node's agent and reporter jumps by an hour or a day, and back", mixes=True)
def node_clock(s: Strike) -> None:
    clock = s.site.clocks[s.node().name]
    s.said["seconds"] = seconds = s.chance.choice((3600, -3600, 86_400))
    clock.set(seconds)
    time.sleep(s.chance.uniform(1, 4))
    clock.set()


# ---- pods -----------------------------------------------------------------------------------------------------------


def delete_pod(s: Strike, name: str, grace: int) -> None:
    try:
        s.api("DELETE", f"/api/v1/namespaces/{WORK}/pods/{name}?gracePeriodSeconds={grace}")
    except Refused as e:
        s.said["refused"] = str(e)[:200]


@fault(
    "statefulset-recreate", 6, "a StatefulSet's pods are deleted by force and come again with their names", mixes=True
)
def statefulset_recreate(s: Strike) -> None:
    for _ in range(s.chance.randint(1, 3)):
        listed = s.api.get(f"/api/v1/namespaces/{WORK}/pods?labelSelector=app%3Ds0")["items"]
        if listed:
            delete_pod(s, s.chance.choice(sorted(p["metadata"]["name"] for p in listed)), 0)
        time.sleep(s.chance.uniform(0, 1.5))


def arm_delete(s: Strike) -> None:
    after = s.chance.choice((0, s.chance.randint(0, 3000), s.chance.randint(0, BETWEEN)))
    s.said |= {"after_us": after, "grace": s.chance.choice((0, 1))}
    s.site.arm(after_us=after, grace=s.said["grace"])


@fault("delete-binding", 10, "a pod is deleted 0 to 20 ms after room was reserved for it", prepare=arm_delete)
def delete_binding(s: Strike) -> None:
    wait_for_trap(s)
