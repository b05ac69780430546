"""`gpu-hook controller` on the control machine, and its webhook configuration by URL."""

import json
import os
import signal
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from testbed import REPO
from testbed.cluster import plain_nodes
from testbed.cluster.api import Api, Connection, Refused
from testbed.cluster.control import Control
from testbed.cluster.machine import wait
from testbed.cluster.pki import API

OWN = "gpu-hook"  # its namespace
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
OPTED_IN = {"gpu-hook.io/namespace": "enabled"}


class Controller:
    """One process. port: of its HTTPS server; the optional loopback extender has the next port."""

    def __init__(
        self,
        control: Control,
        folder: Path,
        port: int = 8443,
        *options: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.control, self.port = control, port
        self.environment = dict(environment or {})  # beside this process's own
        self.log = folder / f"controller-{port}.log"
        self._options = options
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Controller":
        command = [
            *("nsenter", "-t", str(self.control.machine.pid), "-n", "--"),
            *(str(REPO / ".venv/bin/python"), "-m", "oci_hook", "controller"),
            *("--address", f"{API}:{self.port}", "--url", f"https://{API}:{self.port}", "--namespace", OWN),
            *("--kubeconfig", str(self.control.keys.folder / "admin.conf"), *self._options),
        ]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, cwd=REPO, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | self.environment
            )
        return self

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
            self.process.wait(30)
            self.process = None

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def use_options(self, *options: str) -> None:
        """Sets the options of the next start."""
        self._options = options

    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid  # nsenter without -p becomes the program

    def connection(self, context: ssl.SSLContext | None = None, timeout: float = 10) -> Connection:
        """context: None trusts any certificate."""
        if context is None:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return Connection(self.control.machine.pid, API, self.port, context, timeout=timeout)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 10
    ) -> tuple[int, str]:
        """(status, text); status 0 without an answer."""
        connection = self.connection(timeout=timeout)
        try:
            data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError as e:
            return 0, str(e)
        finally:
            connection.close()

    def ready(self, timeout: float = 10) -> bool:
        return self.ask("GET", "/readyz", timeout=timeout)[0] == 200

    def leads(self, timeout: float = 2) -> bool:
        """True for one of the Ready controllers."""
        try:
            return self.figures(timeout).get("gpu_hook_controller_leads") == 1
        except AssertionError:
            return False

    def figures(self, timeout: float = 10) -> dict[str, float]:
        """Its metrics: NAME{LABELS} -> value."""
        status, text = self.ask("GET", "/metrics", timeout=timeout)
        assert status == 200, text
        rows = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in rows}

    def memory_mb(self) -> float:
        """Resident memory of the process."""
        return float(psutil.Process(self.pid()).memory_info().rss / 1e6)


def wait_for_webhooks(api: Api, namespace: str) -> None:
    """Until the API server calls them with our authority and token for the pods of this namespace: it notices a new configuration
    within a second or so, later on a busy machine."""

    def works() -> bool:
        try:
            api("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", plain_nodes.pod("dry-run"))
        except Refused as e:
            if "webhook" in e.message:
                return False
            raise
        return True

    wait(60, "the webhooks answer", works)


def configure(api: Api, url: str) -> None:
    """Makes the webhook configuration of packaging/ with that URL; replaces an existing one."""
    try:
        api("DELETE", f"{CONFIGURATIONS}/gpu-hook")
    except Refused as e:
        if e.status != 404:
            raise
    made = yaml.safe_load((REPO / "packaging/kubernetes/webhooks.yaml").read_text())
    for hook in made["webhooks"]:
        hook["clientConfig"] = {"url": url}
    api("POST", CONFIGURATIONS, made)
