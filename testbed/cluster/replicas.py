"""Two controllers behind a Service on a control plane without nodes. What a kubelet and the endpoints controller do is played:
an address is in the Endpoints while its controller answers /readyz, looked at once a second as in packaging's probe."""

import threading
import time
from typing import Any

from testbed.cluster import plain_nodes
from testbed.cluster.api import Api, Refused
from testbed.cluster.controllers import OWN, Controller, configure
from testbed.cluster.machine import wait
from testbed.cluster.managed_objects import put_endpoints
from testbed.cluster.pki import API
from testbed.cluster.plane import PORTS, Plane

NAME = "gpu-hook-controller"
CORE = f"/api/v1/namespaces/{OWN}"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpu-hook"
LEADS = "gpu_hook_controller_leads"


class Replicas:
    def __init__(self, plane: Plane) -> None:
        self.plane, self.api = plane, plane.api
        self.all: list[Controller] = []
        self._cut: set[int] = set()
        self._over = threading.Event()
        self._own = Api(plane.control.machine.pid, plane.control.keys.folder)
        self._thread = threading.Thread(target=self._endpoints)

    def start(self) -> "Replicas":
        port = {"name": "https", "port": 443}
        self.api("POST", f"{CORE}/services", {"metadata": {"name": NAME}, "spec": {"ports": [port]}})
        put_endpoints(self.api, [])
        by_service(self.api)
        self._thread.start()
        for number in range(len(PORTS)):
            name = pod_name(number)
            self.api("POST", f"{CORE}/pods", plain_nodes.pod(name, schedulerName="nobody"))
            self.all.append(self.plane.controller("--pod", name, second=bool(number)))
        wait(60, "both are ready", lambda: all(one.ready() for one in self.all))
        self.plane.wait_for_webhooks()
        return self

    def end(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        put_endpoints(self.api, [])
        self._own.close()
        gone(self.api, f"{CORE}/services/{NAME}")
        self.api("DELETE", f"{CORE}/pods?gracePeriodSeconds=0")
        configure(self.api, f"https://{API}:{PORTS[0]}")

    def leader(self) -> Controller:
        found: list[Controller] = []

        def one_leads() -> bool:
            found[:] = [c for c in self.all if c.process is not None and c.figures()[LEADS]]
            return len(found) == 1

        wait(60, "one leads", one_leads)
        return found[0]

    def other(self, than: Controller) -> Controller:
        return next(c for c in self.all if c is not than)

    def _endpoints(self) -> None:
        before: Any = None
        while not self._over.wait(1.0):
            ports = [c.port for c in self.all if c.process is not None and c.ready()]
            if ports != before:
                try:
                    put_endpoints(self._own, ports)
                    before = ports
                except Refused:
                    continue


def gone(api: Api, path: str) -> None:
    try:
        api("DELETE", path)
    except Refused as e:
        assert e.status == 404, e


def pod_name(number: int) -> str:
    return f"controller-{number}"


def by_service(api: Api) -> None:
    """The webhooks are called at the Service, as packaging/kubernetes has it."""
    have = api.get(CONFIGURATION)
    for hook in have["webhooks"]:
        path = "/" + hook["name"].split(".")[0]
        hook["clientConfig"] = {"service": {"namespace": OWN, "name": NAME, "port": 443, "path": path}}
    api("PUT", CONFIGURATION, have)


def bound_within(plane: Plane, name: str, begun: float, memory: str = "1Gi", most: float = 60) -> float:
    """Seconds from `begun` until a pod that is made now has its node. Who makes it tries again at once, as a ReplicaSet does."""
    while True:
        try:
            plane.create(name, memory)
            break
        except Refused as e:
            assert "webhook" in e.message or e.status == 0, e
            assert time.monotonic() - begun < most, e
            time.sleep(0.05)
    while not plane.pod(name)["spec"].get("nodeName"):
        assert time.monotonic() - begun < most, plane.events(name)
        time.sleep(0.02)
    return time.monotonic() - begun
