"""Access from this computer's processes to the cluster's API server and its neighbours: sockets in the control machine's network, and
JSON over HTTPS."""

import ctypes
import http.client
import json
import os
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

from testbed.cluster.pki import API

CLONE_NEWNET = 0x40000000


class Refused(Exception):
    """status: HTTP's; 0 without an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status, self.message = status, message


def socket_in(pid: int, address: tuple[str, int], timeout: float = 10) -> socket.socket:
    """A connection made in that process's network. A short-lived thread of its own enters the network. Raises OSError."""
    result: list[Any] = []

    def connect() -> None:
        try:
            with open(f"/proc/{pid}/ns/net") as space:
                if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            made = socket.create_connection(address, timeout)
            # http.client sends head and body apart: without this the body waits some 40 ms for the head's acknowledgement
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            result.append(made)
        except OSError as e:
            result.append(e)

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    if isinstance(result[0], OSError):
        raise result[0]
    assert isinstance(result[0], socket.socket)
    return result[0]


class Connection(http.client.HTTPSConnection):
    def __init__(
        self, pid: int, host: str, port: int, context: ssl.SSLContext, name: str = "", timeout: float = 10
    ) -> None:
        super().__init__(host, port, context=context)
        self._pid, self._tls, self._name, self._seconds = pid, context, name or host, timeout

    def connect(self) -> None:
        plain = socket_in(self._pid, (self.host, self.port), self._seconds)
        try:
            self.sock = self._tls.wrap_socket(plain, server_hostname=self._name)
        except OSError:
            plain.close()
            raise


class Api:
    """A client as the administrator, or with a bearer token. One request at a time."""

    def __init__(self, pid: int, keys: Path, token: str = "") -> None:
        context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        if not token:
            context.load_cert_chain(keys / "admin.crt", keys / "admin.key")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connection = Connection(pid, API, 443, context)

    def __call__(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Raises Refused."""
        data = None if body is None else json.dumps(body)
        for attempt in (1, 2):  # the server may have closed a connection that was idle
            answer: Any = None
            try:
                self._connection.request(method, path, data, {"Content-Type": kind, **self._headers})
                answer = self._connection.getresponse()
                text = answer.read()
                break
            except (OSError, http.client.HTTPException) as e:
                if answer is not None:
                    answer.close()  # it may have the socket for itself
                self._connection.close()
                if attempt == 2:
                    raise Refused(0, f"{type(e).__name__} {e}") from None
        if answer.status >= 300:
            try:
                message = str(json.loads(text).get("message"))
            except ValueError:
                message = text.decode(errors="replace")
            raise Refused(answer.status, message)
        return json.loads(text) if text.startswith(b"{") else text.decode()

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str) -> Any:
        return self("GET", path)

    def merge(self, path: str, body: Any) -> Any:
        return self("PATCH", path, body, "application/merge-patch+json")
