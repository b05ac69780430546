"""Limits on connections to our server. A connection is proven after a request with one of our tokens. An unproven one is cut if it
is slow, or to make room."""

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
MOST_UNPROVEN_OF_ONE = 512  # from one address; an API server opens some hundred at once while it binds many pods
BUFFER = 32 << 10  # bytes of each TLS connection; asyncio's 256 KiB would add up to half a gigabyte
MOST_GREETINGS = 256  # concurrent TLS handshakes; each takes about 90 KiB
MOST_GREETINGS_OF_ONE = 64
UNPROVEN_SECONDS = 10.0  # life of a connection without a request with a token
IDLE_SECONDS = 300.0  # the API server itself closes after 90
EVERY = 1.0


class ClientConnection:
    __slots__ = ("begun", "address", "proven", "last", "busy", "transport")

    def __init__(self, transport: asyncio.Transport, address: str, now: float) -> None:
        self.transport, self.address, self.begun, self.last = transport, address, now, now
        self.proven = False
        self.busy = 0


class Handler(RequestHandler):
    """aiohttp's handler; also reports the connection's begin and end to Connections."""

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
        if not isinstance(more.get("exc_info"), HttpProcessingError):  # no traceback for each malformed request
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
            auto_decompress=False,  # a small compressed body must not expand in memory
        )


class Connections:
    """The open connections of one server."""

    def __init__(self) -> None:
        sslproto.SSLProtocol.max_size = BUFFER  # type: ignore[attr-defined]  # from Python 3.11 on
        self.open: dict[asyncio.BaseTransport, ClientConnection] = {}
        self.cut = 0

    def lost(self, transport: asyncio.BaseTransport) -> None:
        self.open.pop(transport, None)

    def made(self, transport: asyncio.Transport) -> None:
        peer = transport.get_extra_info("peername")
        new = ClientConnection(transport, str(peer[0]) if isinstance(peer, tuple) else "", time.monotonic())
        self.open[transport] = new
        unproven = [c for c in self.open.values() if not c.proven]
        same = [c for c in unproven if c.address == new.address]
        if len(same) > MOST_UNPROVEN_OF_ONE:
            self._cut(same[0])
        elif len(self.open) > MOST:
            self._cut(unproven[0])

    def knows(self, address: str) -> bool:
        """True if a connection of this address is proven."""
        return any(one.proven and one.address == address for one in self.open.values())

    def begins(self, request: web.BaseRequest, proven: bool) -> ClientConnection | None:
        """A request begins; `ended` must follow."""
        connection = self.open.get(request.transport) if request.transport else None
        if connection is not None:
            connection.proven |= proven
            connection.busy += 1
        return connection

    def ended(self, connection: ClientConnection | None) -> None:
        if connection is not None:
            connection.busy -= 1
            connection.last = time.monotonic()

    async def run(self) -> None:
        """Cuts overdue connections until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            now = time.monotonic()
            for connection in list(self.open.values()):
                if overdue(connection, now):
                    self._cut(connection)

    def _cut(self, connection: ClientConnection) -> None:
        self.cut += 1
        self.open.pop(connection.transport, None)
        connection.transport.abort()


class Greetings:
    """TLS handshakes under way. Above a limit, cuts the oldest one of the address with the most."""

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
        with contextlib.suppress(OSError):  # closed already
            on.shutdown(socket.SHUT_RDWR)  # fails the handshake, whose task then closes the socket


def overdue(connection: ClientConnection, now: float) -> bool:
    if connection.proven:
        return not connection.busy and now - connection.last > IDLE_SECONDS
    return now - connection.begun > UNPROVEN_SECONDS
