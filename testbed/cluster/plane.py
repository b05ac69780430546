"""A control plane without nodes, for tests of the controller: nodes are plain objects (testbed/cluster/plain_nodes.py)."""

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testbed.cluster import plain_nodes
from testbed.cluster.api import Api, Refused
from testbed.cluster.cluster import Cluster
from testbed.cluster.controllers import OPTED_IN, OWN, Controller, configure, wait_for_webhooks
from testbed.cluster.machine import wait

PORTS = (8443, 8453)
EXTENDER = 8460
WORK = "work"


class Plane:
    """The API server as `api`, and the controllers that a test starts."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.control, self.folder = cluster, cluster.control, folder
        self.api = Api(self.control.machine.pid, self.control.keys.folder)
        self.controllers: list[Controller] = []

    def controller(self, *options: str, second: bool = False) -> Controller:
        made = Controller(self.control, self.folder, PORTS[second], *options).start()
        self.controllers.append(made)
        return made

    def ready(self, controller: Controller, seconds: float = 60) -> Controller:
        wait(seconds, f"the controller is ready ({controller.log})", controller.ready)
        self.wait_for_webhooks()
        return controller

    def wait_for_webhooks(self) -> None:
        wait_for_webhooks(self.api, WORK)

    def clean(self) -> None:
        """No controller, no pod, no node, no Lease, no Secret."""
        self._stop_controllers()
        configure(self.api, f"https://10.99.0.1:{PORTS[0]}")
        for folder in (f"/apis/apps/v1/namespaces/{WORK}/replicasets", PODS, "/api/v1/nodes"):
            self.api("DELETE", f"{folder}?gracePeriodSeconds=0")
        wait(60, "no pods", lambda: not self.api.get(PODS)["items"])
        for path in (
            f"/api/v1/namespaces/{OWN}/secrets/gpu-hook-controller",
            f"/apis/coordination.k8s.io/v1/namespaces/{OWN}/leases/gpu-hook-controller",
        ):
            try:
                self.api("DELETE", path)
            except Refused as e:
                assert e.status == 404, e

    def close(self) -> None:
        self._stop_controllers()
        self.api.close()

    def _stop_controllers(self) -> None:
        for controller in self.controllers:
            controller.stop()
        self.controllers.clear()

    def node(self, name: str, *sizes: int, labels: dict[str, str] | None = None) -> None:
        plain_nodes.create_node(self.api, plain_nodes.node(name, list(sizes), labels))

    def create(self, name: str, memory: str = "", **more: Any) -> Any:
        return self.api("POST", PODS, plain_nodes.pod(name, memory, **more))

    def pod(self, name: str) -> Any:
        return self.api.get(f"{PODS}/{name}")

    def pods(self) -> list[Any]:
        return list(self.api.get(PODS)["items"])

    def bound(self, name: str, seconds: float = 60) -> Any:
        """The pod, as soon as it has a node."""
        found: list[Any] = []

        def has_node() -> bool:
            found[:] = [self.pod(name)]
            return bool(found[0]["spec"].get("nodeName"))

        wait(seconds, f"{name} has a node: {self.events(name)}", has_node)
        return found[0]

    def events(self, name: str) -> list[str]:
        listed = self.api.get(f"/api/v1/namespaces/{WORK}/events?fieldSelector=involvedObject.name={name}")["items"]
        return [f"{one['reason']}: {one['message']}" for one in listed]

    def secret(self) -> dict[str, str]:
        data = self.api.get(f"/api/v1/namespaces/{OWN}/secrets/gpu-hook-controller")["data"]
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def granted(self) -> dict[str, int]:
        """GPU -> MiB, by the decisions on pods."""
        taken: dict[str, int] = {}
        for pod in self.pods():
            if pod["spec"].get("nodeName"):
                for shares in plain_nodes.decision(pod)["c"].values():
                    for uuid, mib, *_ in shares:
                        taken[uuid] = taken.get(uuid, 0) + mib
        return taken

    def use_extender(self, port: int = EXTENDER) -> None:
        self.control.use_scheduler_config(
            {
                "extenders": [
                    {
                        "urlPrefix": f"http://127.0.0.1:{port}",
                        "filterVerb": "filter",
                        "nodeCacheCapable": True,
                        "managedResources": [{"name": "gpu-hook.io/gpus", "ignoredByScheduler": False}],
                    }
                ]
            }
        )


PODS = f"/api/v1/namespaces/{WORK}/pods"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@contextmanager
def running(folder: Path) -> Iterator[Plane]:
    """A plane with the priority classes `high` and `never`; its controllers end with it, also those that a failed test left."""
    cluster = Cluster(folder / "state")
    try:
        cluster.up([], flags={"kube-controller-manager": [plain_nodes.NO_CONTROLLER_MANAGER_OF_NODES]})
        plane = make(cluster, folder)
        try:
            plane.api("POST", CLASSES, {"metadata": {"name": "high"}, "value": 1000})
            plane.api("POST", CLASSES, {"metadata": {"name": "never"}, "value": 1000, "preemptionPolicy": "Never"})
            yield plane
        finally:
            plane.close()
    finally:
        cluster.down()


def make(cluster: Cluster, folder: Path) -> Plane:
    plane = Plane(cluster, folder)
    for name, labels in ((OWN, {}), (WORK, OPTED_IN)):
        plane.api("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    for name in (OWN, WORK):
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        wait(60, f"{name} has its service account", lambda account=account: answers(plane.api, account))
    return plane


def answers(api: Api, path: str) -> bool:
    try:
        api.get(path)
    except Refused:
        return False
    return True


def always(seconds: float, holds: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert holds()
        time.sleep(0.2)


def text_of(answer: tuple[int, str]) -> Any:
    assert answer[0] == 200, answer
    return json.loads(answer[1])
