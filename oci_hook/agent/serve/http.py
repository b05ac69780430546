"""A small HTTP/1.1 server inside the agent's one loop: GET of a few pages, nothing else.

The standard library's servers have a thread per client and no bound. Here the number of clients, the time of each and
the size of its request are limited, whatever a client sends or does not read. One request per connection.
"""

import os
import selectors
import socket
from collections.abc import Callable
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM

from oci_hook.core.hmac_sha256 import same
from oci_hook.core.value import Value
from oci_hook.linux import unix_socket
from oci_hook.observe.browser import LOG_IN, SAFE, credential, names_this_machine

CLIENTS = 32
ACCEPTS = 64  # in one turn of the loop; what waits wakes it again
NONE_LEFT = EMFILE, ENFILE, ENOBUFS, ENOMEM
PAUSE = 1.0  # seconds without new clients after the kernel had no descriptor or memory for one
SECONDS = 10.0  # from the connection to the last byte
REQUEST_MAX = 8 << 10
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found"}
REASONS |= {405: "Method Not Allowed", 431: "Request Header Fields Too Large", 500: "Internal WebServer Error"}
REASONS |= {503: "Service Unavailable"}
HEALTH = "/healthz"
SAFE_LINES = "".join(f"{name}: {value}\r\n" for name, value in SAFE.items())
TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")  # RFC 9110, 5.6.2
ONCE = frozenset(("host", "authorization", "content-length", "transfer-encoding"))

Page = Callable[[], tuple[str, bytes]]  # content type, body


class WebClient:
    """ours: of root's or the agent's own user, by a unix socket."""

    def __init__(self, connection: socket.socket, deadline: float, ours: bool) -> None:
        self.connection = connection
        self.ours = ours
        self.deadline = deadline
        self.received = b""
        self.to_send = memoryview(b"")
        self.answered = False


class HttpRequest(Value):
    method: str
    path: str
    headers: dict[str, str]


def parse(data: bytes) -> HttpRequest | None:
    """The head of a request, without its query; None if it is not HTTP/1 (RFC 9112), or if two parsers could understand
    it differently: a header that is folded, has blanks in its name or occurs twice, a bare CR or LF, a body."""
    try:
        lines = data.split(b"\r\n\r\n", 1)[0].decode("ascii").split("\r\n")
        method, target, version = lines[0].split(" ")
    except (UnicodeDecodeError, ValueError):
        return None
    if version not in ("HTTP/1.0", "HTTP/1.1") or not target.startswith("/"):
        return None
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        value = value.strip(" \t")
        known = name.lower()
        if not colon or not name or set(name) - TOKEN or not value.replace("\t", " ").isprintable():
            return None
        if known in headers and known in ONCE:
            return None
        headers[known] = value
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        return None
    return HttpRequest(method, target.split("?", 1)[0], headers)


def listen(host: str, port: int) -> socket.socket:
    """Raises OSError if the address cannot be bound."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(64)
    except BaseException:
        listener.close()
        raise
    return listener


class WebServer:
    """`pages`: by path. token: every request must have it; "": none is needed. healthy: what HEALTH answers by, to everybody,
    since probes have neither tokens nor this machine's names; it says this one bit only.

    If no token is needed, the Host header must name this machine itself (observe/browser.py). may_ask: in place of both, for a
    unix socket, which no browser reaches.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        listener: socket.socket,
        pages: dict[str, Page],
        healthy: Callable[[], bool],
        *,
        token: str = "",
        may_ask: Callable[[socket.socket], bool] | None = None,
    ) -> None:
        self._selector = selector
        self._token = token
        self._pages = pages
        self._healthy = healthy
        self._clients: dict[int, WebClient] = {}
        self._pause = 0.0  # until then the listener is not in the selector
        self.refused = 0
        self._listener = listener
        self._may_ask = may_ask
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self.accept)

    def close(self) -> None:
        for client in list(self._clients.values()):
            self._end(client)
        if not self._pause:
            self._selector.unregister(self._listener)
        self._listener.close()

    def accept(self, now: float) -> None:
        for _ in range(ACCEPTS):
            try:
                connection, _ = self._listener.accept()
            except OSError as e:
                if e.errno in NONE_LEFT:  # the client waits on, and would wake the loop again at once
                    self._selector.unregister(self._listener)
                    self._pause = now + PAUSE
                return
            if len(self._clients) >= CLIENTS:
                self.refused += 1
                oldest = min(self._clients.values(), key=lambda c: (c.ours, c.deadline))
                self._end(oldest)  # a new client is served in place of the oldest one, which is root's last
            connection.setblocking(False)
            ours = self._may_ask is not None and unix_socket.peer_uid(connection) in (0, os.geteuid())
            client = WebClient(connection, now + SECONDS, ours)
            self._clients[connection.fileno()] = client
            self._selector.register(connection, selectors.EVENT_READ, lambda now, c=client: self._ready(c))

    def check(self, now: float) -> None:
        """Close the connections whose time is over; take new clients again after a pause."""
        if self._pause and now >= self._pause:
            self._pause = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ, self.accept)
        for client in [c for c in self._clients.values() if now >= c.deadline]:
            self._end(client)

    def next_deadline(self) -> float | None:
        times = [c.deadline for c in self._clients.values()]
        return min([*times, self._pause] if self._pause else times, default=None)

    def _ready(self, client: WebClient) -> None:
        try:
            if client.answered:
                self._send(client)
            else:
                self._receive(client)
        except BlockingIOError:
            pass
        except OSError:
            self._end(client)

    def _receive(self, client: WebClient) -> None:
        data = client.connection.recv(REQUEST_MAX)
        if not data:
            return self._end(client)
        client.received += data
        if b"\r\n\r\n" in client.received:
            status, kind, body, more = self._answer(parse(client.received), client.connection)
        elif len(client.received) >= REQUEST_MAX:
            status, kind, body, more = 431, "text/plain", b"the request is too long\n", ""
        elif not client.received[:1].isalpha():
            status, kind, body, more = 400, "text/plain", b"not HTTP\n", ""
        else:
            return None
        head_only = client.received.startswith(b"HEAD ")
        head = (
            f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            f"Connection: close\r\n{more}{SAFE_LINES}\r\n"
        )
        client.to_send = memoryview(head.encode() + (b"" if head_only else body))
        client.answered = True
        self._selector.modify(client.connection, selectors.EVENT_WRITE, lambda now, c=client: self._ready(c))
        return self._send(client)

    def _send(self, client: WebClient) -> None:
        client.to_send = client.to_send[client.connection.send(client.to_send) :]
        if not client.to_send:
            self._end(client)

    def _answer(self, request: HttpRequest | None, connection: socket.socket) -> tuple[int, str, bytes, str]:
        """(status, content type, body, further headers)"""
        plain = "text/plain; charset=utf-8"
        if request is None:
            return 400, plain, b"not HTTP/1.1\n", ""
        if request.method not in ("GET", "HEAD"):
            return 405, plain, b"only GET\n", "Allow: GET, HEAD\r\n"
        if request.path == HEALTH:
            return (200, plain, b"ok\n", "") if self._healthy() else (503, plain, b"degraded\n", "")
        if self._may_ask:
            if not self._may_ask(connection):
                return 403, plain, b"only root and the members of agent.group may ask here\n", ""
        elif self._token:
            if not same(credential(request.headers.get("authorization", "")), self._token.encode()):
                return (
                    401,
                    plain,
                    b"a token is needed\n",
                    "".join(f"{name}: {value}\r\n" for name, value in LOG_IN.items()),
                )
        else:
            if not names_this_machine(request.headers.get("host", "")):
                return 403, plain, b"the Host header must name this machine's loopback address\n", ""
        page = self._pages.get(request.path)
        if page is None:
            return 404, plain, ("there is " + " ".join((*self._pages, HEALTH)) + "\n").encode(), ""
        try:
            kind, body = page()
        except Exception as e:  # an error in one page must not end the agent
            return 500, plain, f"unexpected {type(e).__name__}\n".encode(), ""
        return 200, kind, body, ""

    def _end(self, client: WebClient) -> None:
        if self._clients.pop(client.connection.fileno(), None) is not None:
            self._selector.unregister(client.connection)
        client.connection.close()
