"""The part of the Kubernetes CRI (runtime.v1) that the tests speak: messages as nested dicts, encoded by hand.

Numbers are those of kubernetes/cri-api, pkg/apis/runtime/v1/api.proto.
"""

import json
from collections.abc import Iterator
from typing import Any

POD, CONTAINER, NODE = range(3)  # NamespaceMode: whose namespace it is

# message -> field -> (number, kind): "string", "int", a message of this table, "[...]" repeated, "map" of strings.
MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Metadata": {"name": (1, "string"), "uid": (2, "string"), "namespace": (3, "string"), "attempt": (4, "int")},
    "Namespaces": {"network": (1, "int"), "pid": (2, "int"), "ipc": (3, "int")},
    "SandboxSecurity": {"namespace_options": (1, "Namespaces")},
    "LinuxSandbox": {"cgroup_parent": (1, "string"), "security_context": (2, "SandboxSecurity")},
    "Sandbox": {
        "metadata": (1, "Metadata"),
        "labels": (6, "map"),
        "annotations": (7, "map"),
        "linux": (8, "LinuxSandbox"),
    },
    "RunPodSandbox": {"config": (1, "Sandbox"), "runtime_handler": (2, "string")},
    "Name": {"name": (1, "string"), "attempt": (2, "int")},
    "Image": {"image": (1, "string"), "user_specified_image": (18, "string")},
    "Variable": {"key": (1, "string"), "value": (2, "string")},
    "Capabilities": {"add": (1, "[string]"), "drop": (2, "[string]")},
    "Number": {"value": (1, "int")},
    "Security": {
        "capabilities": (1, "Capabilities"),
        "namespace_options": (3, "Namespaces"),
        "run_as_user": (5, "Number"),
        "readonly_rootfs": (7, "int"),
        "no_new_privs": (11, "int"),
        "supplemental_groups": (8, "[int]"),
        "run_as_group": (12, "Number"),
    },
    "Linux": {"security_context": (2, "Security")},
    "Container": {
        "metadata": (1, "Name"),
        "image": (2, "Image"),
        "command": (3, "[string]"),
        "envs": (6, "[Variable]"),
        "annotations": (10, "map"),
        "linux": (15, "Linux"),
    },
    "CreateContainer": {"sandbox": (1, "string"), "config": (2, "Container"), "sandbox_config": (3, "Sandbox")},
    "StartContainer": {"id": (1, "string")},
    "StopContainer": {"id": (1, "string"), "timeout": (2, "int")},
    "RemoveContainer": {"id": (1, "string")},
    "StopPodSandbox": {"id": (1, "string")},
    "RemovePodSandbox": {"id": (1, "string")},
    "ExecSync": {"id": (1, "string"), "cmd": (2, "[string]"), "timeout": (3, "int")},
    "Version": {"version": (1, "string")},
    "Status": {"verbose": (1, "int")},
}


class Cri:
    """A CRI server's socket. Each call takes its message's fields and gives field number -> values of the answer."""

    def __init__(self, socket: str) -> None:
        import grpc  # not in a machine of tests/machine

        self.channel = grpc.insecure_channel(f"unix://{socket}")

    def call(self, method: str, **fields: Any) -> dict[int, list[Any]]:
        function = self.channel.unary_unary(f"/runtime.v1.RuntimeService/{method}")
        answer = function(encode(method, fields), timeout=60, wait_for_ready=False)
        return dict(decode(answer))

    def answers(self) -> bool:
        import grpc

        try:
            return bool(self.call("Version", version="v1"))
        except grpc.RpcError:
            return False

    def config(self) -> Any:
        """The configuration that the server has come to, all files and defaults merged."""
        info = self.call("Status", verbose=1)[2]
        entries = [dict(decode(entry)) for entry in info]
        return json.loads(next(entry[2][0] for entry in entries if entry[1][0] == b"config"))

    def exec(self, id: str, *cmd: str) -> tuple[int, str]:
        """(exit status, output and errors) of a command in a running container."""
        answer = self.call("ExecSync", id=id, cmd=list(cmd), timeout=60)
        output = b"".join(answer.get(1, []) + answer.get(2, [])).decode()
        return int(answer.get(3, [0])[0]), output


def encode(message: str, fields: dict[str, Any]) -> bytes:
    out = b""
    for name, value in fields.items():
        number, kind = MESSAGES[message][name]
        if kind == "map":
            for key, text in value.items():
                out += chunk(number, chunk(1, key.encode()) + chunk(2, text.encode()))
        elif kind.strip("[]") == "int":
            for one in value if kind.startswith("[") else [value]:
                out += varint(number << 3) + varint(one)
        else:
            inner = kind.strip("[]")
            for one in value if kind.startswith("[") else [value]:
                out += chunk(number, one.encode() if inner == "string" else encode(inner, one))
    return out


def chunk(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def decode(data: bytes) -> Iterator[tuple[int, list[Any]]]:
    found: dict[int, list[Any]] = {}
    i = 0
    while i < len(data):
        tag, i = read_varint(data, i)
        value: Any
        value, i = read_varint(data, i)
        if tag & 7 == 2:
            value, i = data[i : i + value], i + value
        found.setdefault(tag >> 3, []).append(value)
    yield from found.items()


def read_varint(data: bytes, i: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[i] & 127) << shift
        shift += 7
        i += 1
        if data[i - 1] < 128:
            return value, i
