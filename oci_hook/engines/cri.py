"""Asks an engine which RuntimeClass handlers it knows and which pods it has, by the kubelet's interface (CRI): one gRPC call over
its socket.

The call is simple enough for the standard library: gRPC's framing (grpc.io, PROTOCOL-HTTP2), HTTP/2's frames (RFC 9113), header
literals without a table (RFC 7541, 6.2.2), protobuf's wire format.
"""

import json
import socket
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

# runtime.v1 since containerd 1.6 and CRI-O 1.20; before, v1alpha2.
SERVICES = ("runtime.v1.RuntimeService", "runtime.v1alpha2.RuntimeService")
SECONDS = 5.0
MAX_ANSWER = 4 << 20
WINDOW = 1 << 24  # bytes that the engine may send before it waits for us

DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
VERBOSE = b"\x08\x01"  # StatusRequest: field 1, true


class Offered(NamedTuple):
    """The handlers of an engine that runs. runtimes: name -> program, "" where it does not say. default: "" where it does not say."""

    runtimes: dict[str, str]
    default: str = ""


def offered(path: str) -> Offered | None:
    """The handlers of the engine at this socket; None where it does not tell them. Raises OSError, ValueError where it does not
    answer."""
    return of_status(asked(path, "Status", VERBOSE))


def sandboxes(path: str) -> Iterator[tuple[str, str]]:
    """(handler, name) of each pod that the engine at this socket has, running or not. Raises as `offered`."""
    for _, sandbox in fields(asked(path, "ListPodSandbox", b"")):  # ListPodSandboxResponse.items
        told = dict(fields(sandbox))
        name = dict(fields(told.get(2, b"")))  # PodSandboxMetadata: name, uid, namespace
        yield (
            told.get(7, b"").decode(errors="replace") or crio_handler(path, told.get(1, b"")),
            b"/".join((name.get(3, b""), name.get(1, b""))).decode(errors="replace"),
        )


def crio_handler(path: str, id: bytes) -> str:
    """The handler of a pod of CRI-O, whose list of pods has none: it is in the spec of its sandbox, by which CRI-O itself knows it
    after a restart. "" if it is not told. id: shorter than 128."""
    answer = asked(path, "PodSandboxStatus", bytes([10, len(id)]) + id + b"\x10\x01")  # verbose
    for number, value in fields(answer):
        entry = dict(fields(value)) if number == 2 else {}
        try:
            annotations = json.loads(entry[2])["runtimeSpec"]["annotations"]
            return str(annotations["io.kubernetes.cri-o.RuntimeHandler"])
        except (ValueError, LookupError, TypeError):
            continue
    return ""


def asked(path: str, method: str, message: bytes) -> bytes:
    for service in SERVICES:
        answer = call(path, f"/{service}/{method}", message)
        if answer is not None:
            return answer
    raise ValueError(f"{path} does not serve the kubelet's interface")


def of_status(message: bytes) -> Offered | None:
    """From a StatusResponse: runtime_handlers (field 3) of new engines; the configuration in containerd's info (field 2)."""
    found: dict[str, str] = {}
    default, told = "", False
    for number, value in fields(message):
        if number == 3:
            told = True
            for name in [name.decode() for field, name in fields(value) if field == 1]:
                found.setdefault(name, "")
        elif number == 2:
            entry = dict(fields(value))
            config = in_config(entry.get(2, b"")) if entry.get(1) == b"config" else None
            if config is not None:
                told = True
                found.update(config.runtimes)
                default = config.default
    return Offered(found, default) if told else None


def in_config(text: bytes) -> Offered | None:
    try:
        table: Any = json.loads(text)["containerd"]
        programs = {name: each.get("options") or {} for name, each in table["runtimes"].items()}
        found = {}
        for name, options in programs.items():
            named = [str(value) for key, value in options.items() if key.lower() == "binaryname" and value]
            found[name] = (named or ["runc"])[0]  # containerd's own
        return Offered(found, str(table.get("defaultRuntimeName", "")))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def call(path: str, method: str, message: bytes) -> bytes | None:
    """The answer's message; None where the method is not served."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SECONDS)
        connection.connect(path)
        connection.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, WINDOW))
            + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW))
            + frame(HEADERS, END_HEADERS, 1, headers(method))
            + frame(DATA, END_STREAM, 1, b"\0" + struct.pack(">I", len(message)) + message)
        )
        data = received(connection)
    if len(data) < 5:
        return None
    if data[0]:
        raise ValueError("the answer is compressed")
    return data[5 : 5 + struct.unpack(">I", data[1:5])[0]]


def headers(method: str) -> bytes:
    named = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "localhost"}
    named |= {"content-type": "application/grpc", "te": "trailers"}
    return b"".join(b"\0" + literal(name) + literal(value) for name, value in named.items())


def literal(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()  # all are shorter than 127


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def received(connection: socket.socket) -> bytes:
    """The data of stream 1 until it ends."""
    data = b""
    while True:
        head = exactly(connection, 9)
        size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        stream = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
        payload = exactly(connection, size)
        if kind == SETTINGS and not flags & ACK:
            connection.sendall(frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            connection.sendall(frame(PING, ACK, 0, payload))
        elif kind == GO_AWAY or (kind == RESET and stream == 1):
            return data
        elif stream == 1 and kind in (DATA, HEADERS):
            data += payload if kind == DATA else b""  # engines do not pad
            if len(data) > MAX_ANSWER:
                raise ValueError("the answer is too long")
            if flags & END_STREAM:
                return data


def exactly(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(size)
        if not part:
            raise ValueError("the engine ended the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, value) of each field that is a string, bytes or a message; others are left out."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        kind = key & 7
        if kind == 0:
            _, at = varint(message, at)
        elif kind == 2:
            size, at = varint(message, at)
            yield key >> 3, message[at : at + size]
            at += size
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError("the answer is no protobuf message")


def varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("the answer is no protobuf message")
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
