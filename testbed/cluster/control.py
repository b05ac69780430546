"""The machine `control`: etcd, the API server, the scheduler, the controller manager; the bridge, a registry, Services."""

import json
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from testbed.cluster import programs
from testbed.cluster.machine import PYTHON, Machine, wait
from testbed.cluster.pki import API, Keys

HERE = Path(__file__).resolve().parent
SERVICES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "registry", "services")
PLUGINS = "NodeRestriction,RuntimeClass"  # beside those that are on by default
BRIDGE = "kube0"


class Control:
    def __init__(self, machine: Machine, keys: Keys, flags: Mapping[str, list[str]]) -> None:
        self.machine, self.keys, self.flags = machine, keys, flags

    def up(self, images: Path) -> None:
        self.machine.start()
        if self.machine.run("test", "-e", f"/sys/class/net/{BRIDGE}", check=False).returncode:
            for line in (
                f"link add {BRIDGE} type bridge",
                f"address add {API}/16 dev {BRIDGE}",
                f"link set {BRIDGE} up",
            ):
                self.machine.run("ip", *line.split())
        self.machine.serve("registry", PYTHON, "-I", str(HERE / "registry.py"), str(images), API, "5000")
        for service in SERVICES[:4]:
            self.start(service)
        self.start("services")

    def start(self, service: str) -> None:
        """Start it unless it runs; return when it answers."""
        command = getattr(self, "_" + service.replace("-", "_"))()
        self.machine.serve(service, *command, *self.flags.get(service, []))
        if service == "kube-apiserver":
            log = self.machine.log(service)
            wait(120, f"kube-apiserver answers ({log})", lambda: self.kubectl("get", "--raw", "/readyz"))
        else:
            wait(30, f"{service} runs", lambda: self.machine.serving(service))

    def stop(self, service: str, number: signal.Signals = signal.SIGTERM) -> None:
        self.machine.stop(service, number)

    def use_scheduler_config(self, document: dict[str, Any]) -> None:
        """Restart the scheduler with this KubeSchedulerConfiguration: extenders, profiles, plugins."""
        self.scheduler_config.write_text(yaml.safe_dump(document))
        self.stop("kube-scheduler")
        self.start("kube-scheduler")

    @property
    def scheduler_config(self) -> Path:
        return self.machine.state / "scheduler.yaml"

    def network(self) -> list[str]:
        """What goes before a program of this computer so that it runs in the control machine's network."""
        return ["nsenter", "-t", str(self.machine.pid), "-n", "--"]

    def kubectl_line(self, *arguments: str) -> list[str]:
        """kubectl in the control machine's network, with this computer's files."""
        own = [f"--kubeconfig={self.keys.folder}/admin.conf", f"--cache-dir={self.machine.state}/kubectl"]
        return [
            *self.network(),
            programs.program("kubectl"),
            *own,
            *arguments,
        ]  # clusters of all versions have one address

    def kubectl(self, *arguments: str, input: str | None = None, timeout: float = 60) -> str:
        """kubectl's output. Raises RuntimeError with its message when it fails."""
        done = subprocess.run(
            self.kubectl_line(*arguments), capture_output=True, text=True, timeout=timeout, input=input or ""
        )
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    # ---- command lines ----------------------------------------------------------------------------------------------

    def _etcd(self) -> list[str]:
        return [
            "etcd",
            "--data-dir=/var/lib/etcd",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--log-level=warn",
        ]

    def _kube_apiserver(self) -> list[str]:
        pki = self.keys.folder
        return [
            "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--advertise-address={API}",
            f"--bind-address={API}",  # port 443 of other addresses is for Services
            "--secure-port=443",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=Node,RBAC",
            f"--enable-admission-plugins={PLUGINS}",
            f"--client-ca-file={pki}/ca.crt",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--kubelet-client-certificate={pki}/admin.crt",
            f"--kubelet-client-key={pki}/admin.key",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-key-file={pki}/sa.key",
            f"--service-account-signing-key-file={pki}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--allow-privileged",
            "--enable-aggregator-routing",  # webhooks are called at their pods' addresses
        ]

    def _kube_controller_manager(self) -> list[str]:
        pki = self.keys.folder
        return [
            "kube-controller-manager",
            f"--kubeconfig={pki}/controller-manager.conf",
            f"--service-account-private-key-file={pki}/sa.key",
            f"--root-ca-file={pki}/ca.crt",
            f"--cluster-signing-cert-file={pki}/ca.crt",
            f"--cluster-signing-key-file={pki}/ca.key",
            "--use-service-account-credentials",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
        ]

    def _kube_scheduler(self) -> list[str]:
        """With --config, the scheduler ignores most other options."""
        document = yaml.safe_load(self.scheduler_config.read_text()) if self.scheduler_config.exists() else {}
        document |= {
            # v1beta1 until Kubernetes 1.22, v1 from 1.25 on
            "apiVersion": f"kubescheduler.config.k8s.io/{'v1' if programs.minor() >= 25 else 'v1beta1'}",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {
                **document.get("clientConnection", {}),
                "kubeconfig": str(self.keys.folder / "scheduler.conf"),
            },
            "leaderElection": {"leaderElect": False},
        }
        used = self.machine.state / "scheduler.used.json"
        used.write_text(json.dumps(document, indent=1) + "\n")
        return ["kube-scheduler", f"--config={used}", "--bind-address=127.0.0.1"]

    def _services(self) -> list[str]:
        minor = str(programs.minor())
        return [PYTHON, "-I", str(HERE / "services.py"), str(self.keys.folder), API, BRIDGE, minor]
