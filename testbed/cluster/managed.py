"""A cluster with gpu-hook at work, for faults: the controllers are processes of the control machine that are started again when
they end, as by a Deployment, and each node has its agent. Readiness probes and restarts are
simulated, to save time: restarts come without the growing pauses of a Deployment or DaemonSet.
"""

import json
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from testbed import REPO
from testbed.cluster.api import Api, Refused
from testbed.cluster.clock import Clock
from testbed.cluster.cluster import Cluster
from testbed.cluster.control import SERVICES
from testbed.cluster.controllers import CONFIGURATIONS, OPTED_IN, OWN, Controller, wait_for_webhooks
from testbed.cluster.ledger import Grants
from testbed.cluster.machine import PYTHON, Machine, wait
from testbed.cluster.managed_objects import NODES, PACKAGING, daemon_set, probe_period, put_endpoints, scheduler
from testbed.cluster.node import SERVICES as NODE_SERVICES
from testbed.cluster.node import Gpus, Node
from testbed.cluster.pki import API
from testbed.cluster.programs import HERE

PORTS = (8443, 8453)
EXTENDER = 8460  # of the trap; each controller's own is at its port + 1
WORK = "work"  # the namespace of the pods
RESTART = 1.0  # seconds until a controller that ended is started again
TOKEN = "/etc/gpu-hook-token"
DAY = 86_400


class Managed:
    """`up`, then `controllers`, `leader`, `api` and the nodes; `down` leaves nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = Cluster(folder / "state")
        self.control = self.cluster.control
        self.shared = folder / "state" / "chaos"  # seen by the machines
        self.controllers: list[Controller] = []
        self.clocks: dict[str, Clock] = {}
        self.grants: dict[str, Grants] = {}
        self.held: set[int] = set()  # ports of controllers that stay down
        self._trap: subprocess.Popen[bytes] | None = None
        self._apis: list[Api] = []
        self._end = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def nodes(self) -> list[Node]:
        return self.cluster.nodes

    def connect(self) -> Api:
        return Api(self.control.machine.pid, self.control.keys.folder)

    def up(self, gpus: list[Gpus]) -> "Managed":
        self.cluster.up(gpus)
        self.shared.mkdir()
        library = self.shared / "clock.so"
        source = str(HERE / "clock_shift.c")
        compiler = [str(REPO / ".venv/bin/python3"), "-m", "ziglang", "cc", "-shared", "-fPIC", "-O2"]
        subprocess.run([*compiler, "-o", str(library), source], check=True, stdout=subprocess.DEVNULL)
        names = [*(node.name for node in self.nodes), *map(str, PORTS)]
        self.clocks = {name: Clock(library, self.shared / f"clock-{name}") for name in names}
        self.grants = {node.name: Grants(node) for node in self.nodes}
        self.api = self.connect()
        self._apis.append(self.api)
        self._objects()
        for port in PORTS:
            options = ("--extender-address", f"127.0.0.1:{port + 1}")
            environment = self.clocks[str(port)].environment
            self.controllers.append(Controller(self.control, self.folder, port, *options, environment=environment))
        for job in (self._supervise, self._probe):
            thread = threading.Thread(target=job, daemon=True)
            thread.start()
            self._threads.append(thread)
        self._trap = self._start_trap()
        wait(90, "a controller leads", self.leader)
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(self._join, self.nodes))
        wait_for_webhooks(self.api, WORK)
        self.control.use_scheduler_config(scheduler(EXTENDER))
        return self

    def down(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        for controller in self.controllers:
            controller.stop(signal.SIGKILL)
        for grants in self.grants.values():
            grants.close()
        if self._trap is not None:
            self._trap.kill()
            self._trap.wait()
        for api in self._apis:
            api.close()
        self.cluster.down()

    # ---- controllers ------------------------------------------------------------------------------------------------

    def leader(self) -> Controller | None:
        """The controller that leads now."""
        return next((c for c in self.controllers if c.process is not None and c.leads()), None)

    def hold(self, *controllers: Controller) -> None:
        """They stay down until `release`."""
        self.held |= {controller.port for controller in controllers}

    def release(self) -> None:
        self.held.clear()

    def _supervise(self) -> None:
        ended: dict[int, float] = {}
        while not self._end.wait(0.1):
            for controller in self.controllers:
                process, port = controller.process, controller.port
                if process is not None and process.poll() is not None:
                    controller.process = None
                    ended[port] = time.monotonic()
                due = time.monotonic() - ended.get(port, 0) >= RESTART
                if controller.process is None and port not in self.held and due:
                    controller.start()

    def _probe(self) -> None:
        """Does the kubelets' and the Service's part: puts the Ready ones behind the Service and the scheduler's extender."""
        period = probe_period()
        api, told = self.connect(), None
        while not self._end.wait(period):
            ready = [c.port for c in self.controllers if c.process is not None and c.ready(1.0)]
            write(self.shared / "extender", json.dumps([port + 1 for port in ready]))
            if ready != told:
                try:
                    put_endpoints(api, ready)
                    told = ready
                except Refused:
                    told = None
        api.close()

    def _start_trap(self) -> "subprocess.Popen[bytes]":
        """Starts it in the control machine's network, with this computer's process numbers."""
        enter = ["nsenter", "-t", str(self.control.machine.pid), "-n", "--", PYTHON, "-I", str(HERE / "trap.py")]
        with open(self.folder / "trap.log", "ab") as log:
            arguments = [str(self.shared), str(EXTENDER), API, str(self.control.keys.folder)]
            return subprocess.Popen([*enter, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def arm(self, **what: Any) -> None:
        """trap.py's answers."""
        self.disarm()
        write(self.shared / "trap", json.dumps(what))

    def caught(self) -> bool:
        return (self.shared / "caught").exists()

    def disarm(self) -> None:
        for name in ("trap", "caught"):
            (self.shared / name).unlink(missing_ok=True)

    # ---- what an init system would start again ----------------------------------------------------------------------

    def revive(self) -> list[str]:
        """Starts services that exited, as a kubelet does without its containerd. Returns their names."""
        ended: list[tuple[Any, Machine, str]] = [
            (self.control, self.control.machine, service) for service in SERVICES if service != "registry"
        ]
        ended += [(node, node.machine, service) for node in self.nodes for service in (*NODE_SERVICES, "agent")]
        found = []
        for it, machine, service in ended:
            if machine.pid and not alive(machine, service):
                found.append(f"{machine.name}/{service}")
                if service == "agent":
                    self.start_agent(it)
                else:
                    it.start(service)
        return found

    # ---- objects ----------------------------------------------------------------------------------------------------

    def _objects(self) -> None:
        for name, labels in ((OWN, {}), (WORK, OPTED_IN)):
            self.api("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
            account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
            wait(60, f"{name} has its service account", lambda account=account: self._has(account))  # type: ignore[misc]
        self.api("POST", f"/api/v1/namespaces/{OWN}/serviceaccounts", {"metadata": {"name": NODES}})
        port = {"name": "https", "port": 443, "targetPort": 8443}
        made = {"metadata": {"name": "gpu-hook-controller"}}
        self.api("POST", f"/api/v1/namespaces/{OWN}/services", {**made, "spec": {"ports": [port]}})
        put_endpoints(self.api, [])
        self.api("POST", CONFIGURATIONS, yaml.safe_load((PACKAGING / "webhooks.yaml").read_text()))
        self.api("POST", f"/apis/apps/v1/namespaces/{OWN}/daemonsets", daemon_set())

    def _has(self, path: str) -> bool:
        try:
            self.api.get(path)
        except Refused:
            return False
        return True

    # ---- nodes ------------------------------------------------------------------------------------------------------

    def _join(self, node: Node) -> None:
        """The node's agent, with the kubelet's credential and a token of the DaemonSet's pod."""
        api = self.connect()
        path = f"/api/v1/namespaces/{OWN}/pods?fieldSelector=spec.nodeName%3D{node.name}"

        def ours() -> list[Any]:
            return [p for p in api.get(path)["items"] if p["metadata"].get("generateName", "").startswith(NODES)]

        wait(120, f"{node.name} has its pod of the DaemonSet", ours)
        meta = ours()[0]["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        asked = {"audiences": ["gpu-hook-controller"], "expirationSeconds": DAY, "boundObjectRef": bound}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": asked}
        token = api("POST", f"/api/v1/namespaces/{OWN}/serviceaccounts/{NODES}/token", request)["status"]["token"]
        api.close()
        node.machine.write(TOKEN, token)
        kubeconfig = "agent.kubeconfig=/etc/kubernetes/kubelet.conf"
        node.gpu_hook("settings", "set", "cluster=required", kubeconfig, f"agent.controller_token={TOKEN}")
        self.start_agent(node)
        keys = ("test", "-e", "/opt/gpu-hook/etc/cluster.json")
        wait(90, f"{node.name} has its keys", lambda: node.machine.run(*keys).returncode == 0)
        wait(60, f"{node.name} told what it has", lambda: "gpu-hook.io/ledger" in self._notes(node))

    def start_agent(self, node: Node) -> None:
        clock = [f"{key}={value}" for key, value in self.clocks[node.name].environment.items()]
        env, *command = node.gpu_hook_line("agent")
        node.machine.serve("agent", env, *clock, *command)

    def _notes(self, node: Node) -> dict[str, str]:
        api = self.connect()
        found: dict[str, str] = api.get(f"/api/v1/nodes/{node.name}")["metadata"].get("annotations") or {}
        api.close()
        return found


def alive(machine: Machine, service: str) -> bool:
    """Answers like Machine.serving, without starting a process."""
    top = Path(f"/proc/{machine.pid}/root")
    try:
        return (top / "proc" / (top / f"run/{service}.pid").read_text().strip() / "exe").is_symlink()
    except OSError:
        return False


def write(file: Path, text: str) -> None:
    """At once or not at all."""
    new = file.with_name(f".{file.name}.new")
    new.write_text(text)
    new.rename(file)
