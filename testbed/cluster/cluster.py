"""A cluster as a whole: its state folder, up, down. Tests use the same class as scripts/cluster does."""

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from testbed import REPO
from testbed.cluster import images, programs
from testbed.cluster.control import Control
from testbed.cluster.machine import CGROUPS, Machine, hierarchies, remove_cgroup, wait
from testbed.cluster.node import Gpus, Node
from testbed.cluster.pki import Keys
from testbed.cluster.programs import CannotRun

NEEDED = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "openssl": "openssl", "mount": "mount"}
GPU_NODE = "gpu-hook.io/node=true"


def check() -> None:
    """Raises CannotRun when a cluster cannot run on this machine."""
    if os.geteuid():
        raise CannotRun("a cluster needs root: it makes namespaces, mounts and cgroups")
    for command, package in NEEDED.items():
        if not shutil.which(command):
            raise CannotRun(f"{command} is missing (package {package})")
    if not (CGROUPS / "memory").is_dir() or not (CGROUPS / "cpu").exists():
        raise CannotRun("these machines need cgroup v1 (hybrid); this machine has cgroup v2 only")
    if not os.access(CGROUPS / "memory", os.W_OK):
        raise CannotRun("/sys/fs/cgroup is read-only here")
    if not programs.ready():
        raise CannotRun("the programs are not built yet; run scripts/cluster build (5 to 20 minutes, once)")


class Cluster:
    def __init__(self, state: Path) -> None:
        self.state = state.resolve()
        file = self.state / "cluster.json"
        saved = json.loads(file.read_text()) if file.exists() else {}
        if "kubernetes" in saved:
            programs.use(saved["kubernetes"])
        self.id: str = saved.get("id") or secrets.token_hex(3)
        self.installed: bool = saved.get("installed", True)
        self.flags: dict[str, list[str]] = saved.get("flags", {})
        self.gpus = [Gpus(*g) for g in saved.get("gpus", [])]
        self.keys = Keys(self.state / "pki")
        self.control = Control(Machine(self.state, self.id, "control"), self.keys, self.flags)
        self.images = self.state / "images.tar"
        self._make_nodes()

    @property
    def exists(self) -> bool:
        return (self.state / "cluster.json").exists()

    def node(self, name: str | int) -> Node:
        """The node of that name or number: n2, 2."""
        found = [n for n in self.nodes if str(name) in (n.name, str(n.number))]
        if not found:
            raise CannotRun(f"no node {name}; there are {', '.join(n.name for n in self.nodes) or 'none'}")
        return found[0]

    def kubectl(self, *arguments: str, input: str | None = None, timeout: float = 60) -> str:
        return self.control.kubectl(*arguments, input=input, timeout=timeout)

    def up(
        self,
        gpus: Sequence[Gpus] = (),
        installed: bool = True,
        flags: Mapping[str, list[str]] | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start all that does not run. gpus: of each node, for a new or growing cluster; none: keeps them."""
        check()
        self.state.mkdir(parents=True, exist_ok=True)
        with self._locked():
            began = time.monotonic()
            if not self.gpus:
                self.installed, self.flags = installed, dict(flags or {})
                self.control.flags = self.flags
            self.gpus += list(gpus)[len(self.gpus) :]
            self._make_nodes()
            self._save()
            self.keys.make()
            for node in self.nodes:
                self.keys.kubeconfig(node.name, f"/O=system:nodes/CN=system:node:{node.name}")
            if not self.images.exists():
                images.make(self.images)
            self.control.up(self.images)
            say(f"{time.monotonic() - began:5.0f} s  kube-apiserver answers")
            self.kubectl("apply", "-f", str(REPO / "runtime-config/containerd/runtimeclass.yaml"))
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda node: node.on(self.images), self.nodes))
            for node in self.nodes:
                wait(120, f"node {node.name} is Ready ({node.machine.log('kubelet')})", node.ready)
                if node.gpus.count and self.installed:  # without gpu-hook, an administrator sets the label
                    self.kubectl("label", "--overwrite", "node", node.name, GPU_NODE)
            wait(60, "the default service account exists", lambda: self.kubectl("get", "serviceaccount", "default"))
            say(f"{time.monotonic() - began:5.0f} s  {len(self.nodes)} nodes are Ready")

    def down(self) -> None:
        """Ends everything and leaves nothing."""
        if not self.exists:
            return
        with self._locked():
            for machine in (*(node.machine for node in self.nodes), self.control.machine):
                machine.power_off()
            for hierarchy in hierarchies():  # of machines that an `up` that was killed had begun
                for left in hierarchy.glob(f"gpu-hook-cluster-{self.id}-*"):
                    remove_cgroup(left)
            shutil.rmtree(self.state)

    def status(self) -> list[tuple[str, str]]:
        rows = []
        for node in self.nodes:
            what = f"{node.gpus.count} GPUs of {node.gpus.memory}" if node.gpus.count else "no GPU"
            rows.append((node.name, f"{'on' if node.machine.pid else 'off'}, {what}"))
        return [("control", "on" if self.control.machine.pid else "off"), *rows]

    # ---- its own files ----------------------------------------------------------------------------------------------

    def _make_nodes(self) -> None:
        self.nodes = [
            Node(Machine(self.state, self.id, f"n{i}"), self.control, i, gpus, self.installed)
            for i, gpus in enumerate(self.gpus, 1)
        ]

    def _save(self) -> None:
        saved = {
            "id": self.id,
            "kubernetes": programs.version(),
            "installed": self.installed,
            "flags": self.flags,
            "gpus": [[g.count, g.memory] for g in self.gpus],
        }
        (self.state / "cluster.json").write_text(json.dumps(saved, indent=1) + "\n")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One `up` or `down` of this cluster at a time."""
        with open(self.state.with_name(f"{self.state.name}.lock"), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
            finally:
                Path(lock.name).unlink(missing_ok=True)
