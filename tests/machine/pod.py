"""Runs in the machine: a pod with one container, by containerd's CRI as a kubelet asks for it; h2 speaks, since
grpcio is compiled for one Python.

pod.py up IMAGE PARENT KEY=VALUE...   prints the sandbox's and the container's id; PARENT: the cgroup of the pod
pod.py exec ID COMMAND                a shell command in the container, with its status
pod.py down SANDBOX
"""

import socket
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path[:0] = ["/share/with/python", str(HERE.parents[2])]

from h2.connection import H2Connection  # noqa: E402
from h2.events import DataReceived, ResponseReceived, StreamEnded, TrailersReceived  # noqa: E402

from testbed.engines.cri import NODE, Cri, decode, encode  # noqa: E402

SOCKET = "/run/containerd/containerd.sock"


class Pods(Cri):
    def __init__(self) -> None: ...

    def call(self, method: str, **fields: Any) -> dict[int, list[Any]]:
        return dict(decode(unary(f"/runtime.v1.RuntimeService/{method}", encode(method, fields))))

    def up(self, image: str, parent: str, *annotations: str) -> None:
        pod = {
            "metadata": {"name": "pod", "uid": "uid-1", "namespace": "default", "attempt": 0},
            "annotations": dict(one.split("=", 1) for one in annotations),
            "linux": {"cgroup_parent": parent, "security_context": {"namespace_options": {"network": NODE}}},
        }
        sandbox = self.call("RunPodSandbox", config=pod, runtime_handler="gpu-hook")[1][0].decode()
        print(sandbox, flush=True)
        config = {
            "metadata": {"name": "main"},
            "image": {"image": image},
            "command": ["sleep", "100000"],
            "linux": {"security_context": {"capabilities": {"add": ["MKNOD"]}}},
        }
        id = self.call("CreateContainer", sandbox=sandbox, config=config, sandbox_config=pod)[1][0].decode()
        self.call("StartContainer", id=id)
        print(id)

    def down(self, sandbox: str) -> None:
        self.call("StopPodSandbox", id=sandbox)
        self.call("RemovePodSandbox", id=sandbox)


def unary(path: str, message: bytes) -> bytes:
    """The answer to one gRPC call (PROTOCOL-HTTP2.md of grpc). Ends the program with the server's message for an error."""
    connection = H2Connection()
    connection.initiate_connection()
    headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
    connection.send_headers(1, [*headers.items(), ("content-type", "application/grpc"), ("te", "trailers")])
    connection.send_data(1, b"\0" + len(message).to_bytes(4, "big") + message, end_stream=True)
    answer, status = b"", {}
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(300)
        s.connect(SOCKET)
        while True:
            s.sendall(connection.data_to_send())
            for event in connection.receive_data(s.recv(1 << 16)):
                if isinstance(event, DataReceived):
                    answer += event.data
                    connection.acknowledge_received_data(event.flow_controlled_length, 1)
                elif isinstance(event, (ResponseReceived, TrailersReceived)):
                    status |= {bytes(key).decode(): bytes(value).decode() for key, value in event.headers}
                elif isinstance(event, StreamEnded):
                    if status.get("grpc-status") != "0":
                        sys.exit(f"{path}: {status}")
                    return answer[5:]


def main() -> int:
    what, *words = sys.argv[1:]
    if what == "exec":
        status, said = Pods().exec(words[0], "sh", "-c", f"exec 2>&1; {words[1]}")
        print(said, end="")
        return status
    getattr(Pods(), what)(*words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
