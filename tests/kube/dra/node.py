"""A node for the driver of ResourceClaims: the real process, a kubelet's folder, and an API server of the test's own."""

import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import grpc

from oci_hook.kube.formats import slices
from testbed import REPO
from testbed.containers import Bundle
from testbed.engines.cri import decode
from testbed.engines.dra_calls import SERVICE, answers, asked
from testbed.installs import UUIDS, Install
from testbed.until import until
from tests.kube.link.test_api import Server

NODE = "n1"
DEEP = "a value of 3000 levels"
DEVICES = tuple(slices.device_name(uuid) for uuid in UUIDS)


class ApiServer:
    """Claims and slices as objects, with versions and a watch that ends at once."""

    def __init__(self, http: Server) -> None:
        self.http = http
        self.claims: dict[str, dict[str, Any]] = {}
        self.slices: dict[str, dict[str, Any]] = {}
        self.writes: list[str] = []
        self.down = False
        self._version = 0
        self._lock = threading.Lock()
        http.answer = self.answer

    def claim(self, uid: str, *results: dict[str, Any], config: Any = None, name: str = "c1", **more: Any) -> None:
        allocation = {"devices": {"results": list(results), "config": config or []}}
        self.claims[f"default/{name}"] = {
            "metadata": {"uid": uid, "name": name, "namespace": "default"},
            "status": {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": "p1", "uid": "9-9"}]},
            **more,
        }

    def answer(self, method: str, path: str, _: str) -> tuple[int, bytes]:
        with self._lock:
            status, body = (
                self._answer(method, path) if not self.down else (503, {"message": "the test's server is down"})
            )
        text = json.dumps(body).replace(json.dumps(DEEP), '{"a":' * 3000 + "{}" + "}" * 3000)
        return status, text.encode() if body is not None else b""

    def _answer(self, method: str, path: str) -> tuple[int, Any]:
        head, _, query = path.partition("?")
        if found := re.fullmatch(r"/apis/resource.k8s.io/v1/namespaces/([^/]+)/resourceclaims/([^/]+)", head):
            claim = self.claims.get("/".join(found.groups()))
            return (200, claim) if claim else (404, {"message": "not found"})
        if head == "/api/v1/nodes/n1":
            return 200, {"metadata": {"uid": "node-uid"}}
        if "watch=1" in query:
            time.sleep(0.05)
            return 410, {"message": "list again"}
        if not head.startswith("/apis/resource.k8s.io/v1/resourceslices"):
            return 404, {"message": "no such path"}
        name = head.rpartition("/")[2]
        if method == "GET":
            return 200, {"metadata": {"resourceVersion": str(self._version)}, "items": list(self.slices.values())}
        self.writes.append(method)
        self._version += 1
        if method == "DELETE":
            return (200, self.slices.pop(name)) if name in self.slices else (404, {"message": "not found"})
        body = json.loads(self.http.bodies[-1])
        if method == "POST":
            name = body["metadata"]["name"] = f"{body['metadata'].pop('generateName')}x{self._version}"
        elif name not in self.slices:
            return 404, {"message": "not found"}
        body["metadata"]["resourceVersion"] = str(self._version)
        self.slices[name] = body
        return 200, body


class DraNode:
    def __init__(self, install: Install, api: ApiServer, pki: tuple[Path, Path], folder: Path) -> None:
        self.install, self.api = install, api
        self.kubelet = Path(
            tempfile.mkdtemp(prefix="gh")
        )  # pytest's folders are too long for a socket (unix(7): 107 bytes)
        self.cdi = folder / "cdi"
        conf = folder / "kubeconfig"
        conf.write_text(
            json.dumps(
                {
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                    "clusters": [
                        {
                            "name": "k",
                            "cluster": {
                                "server": f"https://127.0.0.1:{api.http.port}",
                                "certificate-authority": str(pki[0]),
                            },
                        }
                    ],
                    "users": [{"name": "u", "user": {"token": "x"}}],
                }
            )
        )
        install.set(
            cluster="dra",
            **{
                "agent.kubeconfig": conf,
                "agent.node": NODE,
                "agent.device_plugins": self.kubelet / "device-plugins",
            },
        )
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return self.kubelet / "plugins/gpu-hook.io/dra.sock"

    @property
    def registration(self) -> Path:
        return self.kubelet / "plugins_registry/gpu-hook.io-reg.sock"

    def start(self) -> None:
        line = [sys.executable, "-m", "oci_hook.kube.dra", str(self.install.prefix), "--cdi", str(self.cdi)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(line, cwd=REPO, **pipes)  # type: ignore[call-overload]
        until(self.answers, "it answers")

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.process.stdout and self.process.stdout.read()
        try:
            return bool(self.call("/pluginregistration.Registration/GetInfo", b"", self.registration))
        except grpc.RpcError:
            return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()

    def withdraw(self) -> None:
        line = [
            sys.executable,
            "-m",
            "oci_hook.kube.dra",
            str(self.install.prefix),
            "--cdi",
            str(self.cdi),
            "--withdraw",
        ]
        subprocess.run(line, cwd=REPO, check=True)

    def call(self, path: str, message: bytes, socket: Path | None = None) -> bytes:
        with grpc.insecure_channel(f"unix://{socket or self.socket}") as channel:
            return channel.unary_unary(path)(message, timeout=30)  # type: ignore[no-any-return]

    def prepare(
        self, uid: str, name: str = "c1", version: str = "v1", namespace: str = "default"
    ) -> tuple[list[str], str]:
        """(the CDI ids, the error) for one claim."""
        answer = self.call(SERVICE.format(version, "NodePrepareResources"), asked((namespace, uid, name)))
        [(of, result)] = answers(answer)
        assert of == uid
        devices = [dict(decode(device)) for device in result.get(1, [])]
        return [id.decode() for device in devices for id in device[4]], result.get(2, [b""])[0].decode()

    def unprepare(self, uid: str, name: str = "c1", version: str = "v1") -> str:
        answer = self.call(SERVICE.format(version, "NodeUnprepareResources"), asked(("default", uid, name)))
        [(of, result)] = answers(answer)
        assert of == uid
        return str(result.get(1, [b""])[0].decode())

    def file(self, uid: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.cdi / f"gpu-hook.io-claim-{uid}.json").read_text())
        return found

    def nothing_left(self) -> bool:
        assert not list(self.cdi.glob("*")) if self.cdi.exists() else True
        assert not list((self.install.state / "claims").glob("*")) if (self.install.state / "claims").exists() else True
        assert self.install.grants() == ()
        return True

    def container(self, bundle: Bundle, uid: str, annotations: dict[str, str] | None = None, **more: Any) -> Path:
        """A bundle as an engine makes it with the claim's CDI device."""
        edits = self.file(uid)["containerEdits"]

        def edit(spec: dict[str, Any]) -> None:
            spec["process"]["env"] += edits["env"]
            spec["hooks"] = {h["hookName"]: [{k: v for k, v in h.items() if k != "hookName"}] for h in edits["hooks"]}

        return bundle(annotations, edit=edit, **more)


def result(memory: str = "8Gi", compute: str = "0", gpu: int = 0, **more: Any) -> dict[str, Any]:
    """Of an allocation."""
    consumed = {"consumedCapacity": {"memory": memory, "compute": compute}}
    return {"request": "gpu", "driver": "gpu-hook.io", "pool": NODE, "device": DEVICES[gpu], **consumed, **more}
