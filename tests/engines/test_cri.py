"""Which handlers an engine says it knows, asked of a real gRPC server on a socket."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from oci_hook.engines import cri


def field(number: int, value: bytes) -> bytes:
    size, head = len(value), bytes([number << 3 | 2])
    while size > 127:
        head, size = head + bytes([size & 127 | 128]), size >> 7
    return head + bytes([size]) + value


def info(name: str, text: str) -> bytes:
    return field(2, field(1, name.encode()) + field(2, text.encode()))


CONDITIONS = field(1, field(1, field(1, b"RuntimeReady") + b"\x10\x01"))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Any]:
    """Called with a service and its answer, or more by method and request, it serves that; returns the socket's path."""
    servers = []

    def serve(service: str, answer: bytes, **more: dict[bytes, bytes]) -> str:
        methods = {"Status": {cri.VERBOSE: answer}, **more}
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(lambda request, context, answers=answers: answers[request])
            for name, answers in methods.items()
        }
        server = grpc.server(futures.ThreadPoolExecutor(1))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        path = str(tmp_path / "s")
        server.add_insecure_port(f"unix:{path}")
        server.start()
        servers.append(server)
        return path

    yield serve
    for server in servers:
        server.stop(None).wait()


def containerd(*names: str, padding: int = 0) -> bytes:
    runtimes = {name: {"options": {"BinaryName": f"/{name}"}} for name in names}
    config = {"containerd": {"runtimes": {**runtimes, "none": {}}, "defaultRuntimeName": "runc", "more": "x" * padding}}
    return CONDITIONS + info("golang", "go1.19") + info("config", json.dumps(config))


@pytest.mark.parametrize("service", ["runtime.v1.RuntimeService", "runtime.v1alpha2.RuntimeService"])
def test_containerd_tells_its_configuration(engine: Any, service: str) -> None:
    assert cri.offered(engine(service, containerd("runc", "gpu-hook"))) == cri.Offered(
        {"runc": "/runc", "gpu-hook": "/gpu-hook", "none": "runc"}, "runc"
    )


def test_an_answer_of_many_frames(engine: Any) -> None:
    answer = containerd("gpu-hook", padding=300_000)
    said = cri.offered(engine("runtime.v1.RuntimeService", answer))
    assert said is not None and said.runtimes["gpu-hook"] == "/gpu-hook"


def test_new_engines_list_their_handlers(engine: Any) -> None:
    answer = CONDITIONS + field(3, field(1, b"gpu-hook") + field(2, b"\x08\x01")) + field(3, b"")
    assert cri.offered(engine("runtime.v1.RuntimeService", answer)) == cri.Offered({"gpu-hook": ""}, "")


@pytest.mark.parametrize("more", [b"", info("config", "no JSON"), info("config", "[]")])
def test_an_engine_that_does_not_tell(engine: Any, more: bytes) -> None:
    assert cri.offered(engine("runtime.v1.RuntimeService", CONDITIONS + more)) is None


def test_a_server_of_something_else(engine: Any) -> None:
    with pytest.raises(ValueError, match="does not serve"):
        cri.offered(engine("other.Service", b""))


def test_no_engine(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        cri.offered(str(tmp_path / "none"))


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\x05\0\x01\0\0\0\x01\x01\0\0\0\0"])
def test_no_grpc(tmp_path: Path, said: bytes) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def once() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(said)

        thread = threading.Thread(target=once)
        thread.start()
        with pytest.raises((ValueError, OSError)):
            cri.call(path, f"/{cri.SERVICES[0]}/Status", cri.VERBOSE)
        thread.join()


@pytest.mark.parametrize("message", [b"\x0b", b"\xff" * 12, b"\x80"])
def test_no_protobuf(message: bytes) -> None:
    with pytest.raises(ValueError):
        list(cri.fields(message))


def test_pods_of_an_engine_that_lists_their_handlers_and_of_crio(engine: Any) -> None:
    """CRI-O's list has none; the status of a pod has its sandbox's spec."""

    def pod(id: bytes, name: bytes, handler: bytes = b"") -> bytes:
        named = field(1, name) + field(2, b"uid") + field(3, b"default")
        return field(1, field(1, id) + field(2, named) + (field(7, handler) if handler else b""))

    spec = {"runtimeSpec": {"annotations": {"io.kubernetes.cri-o.RuntimeHandler": "gpu-hook"}}}
    status = {
        field(1, b"b") + b"\x10\x01": field(1, b"") + info("other", "[]") + info("info", json.dumps(spec)),
        field(1, b"c") + b"\x10\x01": info("info", '{"runtimeSpec": null}'),
    }
    pods = {b"": pod(b"a", b"one", b"listed") + pod(b"b", b"two") + pod(b"c", b"three")}
    path = engine("runtime.v1.RuntimeService", b"", ListPodSandbox=pods, PodSandboxStatus=status)
    assert [*cri.sandboxes(path)] == [("listed", "default/one"), ("gpu-hook", "default/two"), ("", "default/three")]
