"""A server of unary gRPC calls on a Unix socket (PROTOCOL-HTTP2.md of grpc), with a thread for each connection and call. h2 does
HTTP/2: grpcio is compiled for each version of Python and takes 21 MB, and the node's image runs with whatever Python the node has."""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError

Method = Callable[[bytes], bytes]  # raises ValueError for a message that it does not understand

OK, INVALID_ARGUMENT, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 0, 3, 12, 13, 14
PREFIX = struct.Struct(">BI")  # compressed or not, length
MAX_MESSAGE = 1 << 20
MAX_CONNECTIONS = 16  # the kubelet has two
MAX_CALLS = 32  # of a connection at once
SEND_SECONDS = 30.0
ACCEPT_SECONDS = 0.1  # after a failed accept


class GrpcServer:
    """methods: by their path, /SERVICE/METHOD. The socket belongs to root alone. Raises OSError."""

    def __init__(self, path: str, methods: Mapping[str, Method]) -> None:
        self.path = path
        self._methods = methods
        self._connections = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._socket = listening(path)
        threading.Thread(target=self._accept, daemon=True, name=f"listen {path}").start()

    def close(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                if self._socket.fileno() < 0:
                    return  # closed
                time.sleep(ACCEPT_SECONDS)  # too many open files, or the client has gone
                continue
            if not self._connections.acquire(blocking=False):
                client.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()
            except RuntimeError:  # too many threads
                client.close()
                self._connections.release()

    def _serve(self, client: socket.socket) -> None:
        try:
            GrpcConnection(client, self._methods).run()
        except (OSError, ProtocolError, ValueError):
            pass  # a broken connection is the client's affair
        finally:
            client.close()
            self._connections.release()


def listening(path: str) -> socket.socket:
    """A new socket in the place of one that an earlier process left."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        before = os.umask(0o177)
        try:
            made.bind(path)
        finally:
            os.umask(before)
        made.listen(MAX_CONNECTIONS)
    except BaseException:
        made.close()
        raise
    return made


class GrpcConnection:
    """One client. h2 is not for several threads: `_lock` is held for each use of it and of the socket's sending side."""

    def __init__(self, client: socket.socket, methods: Mapping[str, Method]) -> None:
        self._client, self._methods = client, methods
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._lock = threading.Condition()
        self._asked: dict[int, tuple[str, bytearray]] = {}  # by stream: path, what has come of the message
        self._calls = 0

    def run(self) -> None:
        """Until the client hangs up."""
        client = self._client
        client.settimeout(None)
        with self._lock:
            self._h2.initiate_connection()
            self._flush()
        while data := client.recv(1 << 16):
            with self._lock:
                events = self._h2.receive_data(data)
                for event in events:
                    if isinstance(event, ConnectionTerminated):
                        return
                    self._take(event)
                self._flush()

    def _take(self, event: Event) -> None:
        """With the lock."""
        if isinstance(event, RequestReceived):
            headers = {str(name): str(value) for name, value in event.headers or ()}
            assert event.stream_id is not None
            self._asked[event.stream_id] = headers.get(":path", ""), bytearray()
        elif isinstance(event, DataReceived):
            assert event.stream_id is not None
            if event.flow_controlled_length:
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            _, message = self._asked.get(event.stream_id, ("", bytearray()))
            message += event.data or b""
            if len(message) > MAX_MESSAGE + PREFIX.size:
                raise ValueError("a message is too long")
        elif isinstance(event, StreamEnded):
            assert event.stream_id is not None
            self._call(event.stream_id, *self._asked.pop(event.stream_id, ("", bytearray())))
        elif isinstance(event, StreamReset):
            self._asked.pop(event.stream_id or 0, None)
            self._lock.notify_all()
        elif isinstance(event, WindowUpdated):
            self._lock.notify_all()

    def _call(self, stream: int, path: str, message: bytearray) -> None:
        method = self._methods.get(path)
        if method is None:
            return self._fail(stream, UNIMPLEMENTED, "no such method")
        if len(message) < PREFIX.size or PREFIX.unpack(message[: PREFIX.size]) != (0, len(message) - PREFIX.size):
            return self._fail(stream, INVALID_ARGUMENT, "not one uncompressed message")
        if self._calls >= MAX_CALLS:
            return self._fail(stream, UNAVAILABLE, "too many calls at once")
        self._calls += 1
        given = (stream, method, bytes(message[PREFIX.size :]))
        threading.Thread(target=self._answer, args=given, daemon=True).start()

    def _answer(self, stream: int, method: Method, message: bytes) -> None:
        try:
            answer, status, why = method(message), OK, ""
        except ValueError as e:
            answer, status, why = b"", INVALID_ARGUMENT, str(e)
        except Exception as e:  # the kubelet shows it at the pod, and asks again
            answer, status, why = b"", INTERNAL, f"unexpected {type(e).__name__}: {e}; please report it"
        with self._lock:
            self._calls -= 1
            try:
                if status == OK:
                    self._send(stream, answer)
                else:
                    self._fail(stream, status, why)
                self._flush()
            except (OSError, ProtocolError, ValueError):
                pass  # the client has gone, or has reset the call

    def _fail(self, stream: int, status: int, why: str) -> None:
        """An answer of headers alone. In a message, bytes that are no plain text are written as %XX."""
        text = "".join(
            c if " " <= c <= "~" and c != "%" else "".join(f"%{b:02X}" for b in c.encode()) for c in why[:300]
        )
        said = [("grpc-status", str(status)), ("grpc-message", text)]
        self._h2.send_headers(stream, [*HEADERS, *said], end_stream=True)

    def _send(self, stream: int, message: bytes) -> None:
        """As the client's windows admit."""
        self._h2.send_headers(stream, HEADERS)
        left = memoryview(PREFIX.pack(0, len(message)) + message)
        while left:
            room = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size, len(left))
            if room > 0:
                self._h2.send_data(stream, bytes(left[:room]))
                left = left[room:]
            else:
                self._flush()
                if not self._lock.wait(SEND_SECONDS):
                    raise ValueError("the client takes no more")
        self._h2.send_headers(stream, [("grpc-status", str(OK))], end_stream=True)

    def _flush(self) -> None:
        if data := self._h2.data_to_send():
            self._client.sendall(data)


HEADERS = [(":status", "200"), ("content-type", "application/grpc")]
