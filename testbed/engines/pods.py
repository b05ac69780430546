"""Pods and their containers over CRI, as the kubelet makes them."""

from typing import Any

from testbed.engines.box import IMAGE, LOOK, Place
from testbed.engines.cri import NODE, POD, Cri


class Pods:
    namespaces = {"network": NODE}  # of a pod

    def __init__(self, place: Place, cri: Cri) -> None:
        self.place = place
        self.cri = cri
        self.pods: list[str] = []
        self.started: list[str] = []

    def pod(self, annotations: dict[str, str], handler: str = "gpu-hook", name: str = "pod") -> dict[str, Any]:
        """A running sandbox: its configuration, with its id."""
        n = len(self.pods)
        config = {
            "metadata": {"name": name, "uid": f"uid-{n}", "namespace": "default", "attempt": n},
            "annotations": annotations,
            "linux": {
                "cgroup_parent": f"/{self.place.cgroup}",
                "security_context": {"namespace_options": self.namespaces},
            },
        }
        answer = self.cri.call("RunPodSandbox", config=config, runtime_handler=handler)
        self.pods.append(answer[1][0].decode())
        return config

    def container(
        self,
        pod: dict[str, Any],
        name: str,
        env: dict[str, str] | None = None,
        security: dict[str, Any] | None = None,
    ) -> str:
        """A started container of the pod that ran last; its id. Raises grpc.RpcError."""
        config = {
            "metadata": {"name": name},
            "image": {"image": IMAGE, "user_specified_image": IMAGE},
            "command": ["sleep", "1000"],
            "envs": [{"key": k, "value": v} for k, v in (env or {}).items()],
            "linux": {
                "security_context": {
                    "capabilities": {"add": ["MKNOD"]},
                    "namespace_options": {"pid": self.namespaces.get("pid", POD)},
                    **(security or {}),
                }
            },
        }
        answer = self.cri.call("CreateContainer", sandbox=self.pods[-1], config=config, sandbox_config=pod)
        id = str(answer[1][0].decode())
        self.started.append(id)
        self.cri.call("StartContainer", id=id)
        return id

    def look(self, id: str) -> str:
        return self.cri.exec(id, "sh", "-c", f"exec 2>&1; {LOOK}")[1]

    def remove_pods(self) -> None:
        for id in self.pods:
            self.cri.call("StopPodSandbox", id=id)
            self.cri.call("RemovePodSandbox", id=id)
        self.pods.clear()
