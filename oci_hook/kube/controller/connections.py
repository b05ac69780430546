"""Bounds on who may keep a connection to our server. A connection has proven itself when a request on it came with one of our
tokens; until then it may be cut to make room, and it is cut when it dawdles."""

import asyncio
import contextlib
import socket
import time
from asyncio import sslproto
from collections import Counter
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

MOST = 2048
MOST_UNPROVEN_OF_ONE = 512  # of one address; an API server opens some hundred at once when many pods are bound
BUFFER = 32 << 10  # bytes of each TLS connection; asyncio's own 256 KiB would be half a gigabyte for all
MOST_GREETINGS = 256  # TLS handshakes under way; each takes some 90 KiB
MOST_GREETINGS_OF_ONE = 64
UNPROVEN_SECONDS = 10.0  # from its begin to its end, or to a request with a token
IDLE_SECONDS = 300.0  # the API server itself closes after 90
EVERY = 1.0


class Connection:
    __slots__ = ("begun", "address", "proven", "last", "busy", "transport")

    def __init__(self, transport: asyncio.Transport, address: str, now: float) -> None:
        self.transport, self.address, self.begun, self.last = transport, address, now, now
        self.proven = False
        self.busy = 0


class Handler(RequestHandler):
    """aiohttp's, which tells its server's Connections of its begin and end."""

    __slots__ = ("_book",)

    def __init__(self, book: "Connections", server: "GuardedServer", **rest: Any) -> None:
        super().__init__(server, **rest)
        self._book = book

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        self._book.made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self.transport is not None:
            self._book.lost(self.transport)
        super().connection_lost(exc)

    def log_exception(self, *args: Any, **more: Any) -> None:
        if not isinstance(more.get("exc_info"), HttpProcessingError):  # a stranger's, and no traceback for each
            super().log_exception(*args, **more)


class GuardedServer(web.Server):
    def __init__(self, handler: Any, book: "Connections") -> None:
        super().__init__(handler)
        self._book = book

    def __call__(self) -> RequestHandler:
        return Handler(
            self._book,
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,
            lingering_time=1.0,
            keepalive_timeout=IDLE_SECONDS,
            auto_decompress=False,  # a small body must not become a large one
        )


class Connections:
    """Those of one server."""

    def __init__(self) -> None:
        sslproto.SSLProtocol.max_size = BUFFER  # type: ignore[attr-defined]  # from Python 3.11 on
        self.open: dict[asyncio.BaseTransport, Connection] = {}
        self.cut = 0

    def lost(self, transport: asyncio.BaseTransport) -> None:
        self.open.pop(transport, None)

    def made(self, transport: asyncio.Transport) -> None:
        peer = transport.get_extra_info("peername")
        new = Connection(transport, str(peer[0]) if isinstance(peer, tuple) else "", time.monotonic())
        self.open[transport] = new
        unproven = [c for c in self.open.values() if not c.proven]
        same = [c for c in unproven if c.address == new.address]
        if len(same) > MOST_UNPROVEN_OF_ONE:
            self._cut(same[0])
        elif len(self.open) > MOST:
            self._cut(unproven[0])

    def begins(self, request: web.BaseRequest, proven: bool) -> Connection | None:
        """A request; `ended` must follow."""
        connection = self.open.get(request.transport) if request.transport else None
        if connection is not None:
            connection.proven |= proven
            connection.busy += 1
        return connection

    def ended(self, connection: Connection | None) -> None:
        if connection is not None:
            connection.busy -= 1
            connection.last = time.monotonic()

    async def run(self) -> None:
        """Cuts what dawdles, until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            now = time.monotonic()
            for connection in list(self.open.values()):
                if overdue(connection, now):
                    self._cut(connection)

    def _cut(self, connection: Connection) -> None:
        self.cut += 1
        self.open.pop(connection.transport, None)
        connection.transport.abort()


class Greetings:
    """TLS handshakes under way. Whoever opens connections and says nothing has its own oldest ones cut."""

    def __init__(self) -> None:
        self.cut = 0
        self._under_way: dict[asyncio.Task[None], tuple[str, socket.socket]] = {}  # oldest first
        self._ending: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._under_way)

    def add(self, greeting: asyncio.Task[None], address: str, on: socket.socket) -> None:
        self._under_way[greeting] = address, on
        greeting.add_done_callback(self._done)
        count = Counter(of for of, _ in self._under_way.values())
        if count[address] > MOST_GREETINGS_OF_ONE:
            self._cut(address)
        elif len(self._under_way) > MOST_GREETINGS:
            self._cut(max(count, key=lambda one: count[one]))

    def _done(self, greeting: asyncio.Task[None]) -> None:
        self._under_way.pop(greeting, None)
        self._ending.discard(greeting)

    def _cut(self, address: str) -> None:
        greeting, on = next((task, on) for task, (of, on) in self._under_way.items() if of == address)
        del self._under_way[greeting]
        self._ending.add(greeting)
        self.cut += 1
        with contextlib.suppress(OSError):  # it is over already
            on.shutdown(socket.SHUT_RDWR)  # the handshake fails, and its own end closes the socket


def overdue(connection: Connection, now: float) -> bool:
    if connection.proven:
        return not connection.busy and now - connection.last > IDLE_SECONDS
    return now - connection.begun > UNPROVEN_SECONDS
