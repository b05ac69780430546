"""The HTTPS server: webhooks, the scheduler's extender, nodes' keys, health, metrics, the page. Requests are bounded in size, time and
number. Calls for decisions need a token in the path (own_secret.py). service.py makes the answers."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import msgspec
from aiohttp import web

from oci_hook.errors import GhError
from oci_hook.kube.controller.lead.peer import FORWARDED
from oci_hook.kube.controller.serve.connections import Connections, Greetings, GuardedServer
from oci_hook.kube.controller.serve.page import PATHS, Page
from oci_hook.kube.controller.serve.router import EXTENDER, Route, Router, routes, without_token
from oci_hook.kube.controller.serve.service import NotNow, Service
from oci_hook.kube.controller.trust import own_secret
from oci_hook.kube.controller.trust.token_reviews import Reviews
from oci_hook.kube.formats.names import NODE_KEY

BODY_SECONDS = HANDSHAKE_SECONDS = 5.0
SEND_SECONDS = 20.0  # timeout for a large answer
SLOW = 1.0  # seconds after which a slow reader is cut if others wait
PIECE = 64 << 10
ENOUGH, PACE = 32, 0.004  # connections accepted without delay; seconds between further ones
PATIENCE = 0.05  # seconds for which a further one of a known caller waits for the handshake before it
MAX_BODIES = 160 << 20  # all bodies in memory: two of the largest filters, and some others
NO_NODE = "this token does not belong to a gpu-hook pod on a node\n"
COUNTED = "X-Gpu-Hook-Counted"  # header with our token: another controller has counted the request's address
MAX_AT_A_TIME = {"review": 64, "filter": 2, "dry-run": 1, "key": 8, "metrics": 4, "page": 8}

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
R = TypeVar("R", bound=web.StreamResponse)


class Busy(Exception):
    """Too many concurrent requests."""


class HttpsServer:
    def __init__(self, service: Service, router: Router, page: Page | None = None) -> None:
        self._service, self._router, self._page = service, router, page
        self._bounds = {name: _Bound(most) for name, most in MAX_AT_A_TIME.items()}
        self._bodies = _Bound(MAX_BODIES)
        self._sockets: list[asyncio.Server] = []
        self._accepting: asyncio.Task[None] | None = None
        self._greetings = Greetings()
        self.connections = Connections()
        self._raw = GuardedServer(self._guarded, self.connections)
        self._pages = GuardedServer(self._guarded_page, self.connections)
        self._routes = {route.url: self._json(route) for route in routes(service)}
        self._open = {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics}
        self._loopback = web.Server(self._guarded_loopback, access_log=None, keepalive_timeout=600)
        self._reviews = Reviews()
        self.asked = 0  # requests under way
        self._ending = False
        self._sending: dict[
            int, tuple[web.BaseRequest, str, float]
        ] = {}  # large answers being written: request, bound, start

    async def listen(self, host: str, port: int, tls: ssl.SSLContext) -> None:
        """host: "::" for all addresses of both families, or of IPv4 where the kernel has IPv6 off. Raises OSError."""
        both = host == "::" and socket.has_dualstack_ipv6()
        if host == "::" and not both:
            host = "0.0.0.0"
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        own = socket.create_server((host, port), family=family, backlog=512, dualstack_ipv6=both)
        own.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(own, tls))

    async def _accept(self, own: socket.socket, tls: ssl.SSLContext) -> None:
        """Accepts connections, slowly above ENOUGH. In a burst the API server opens a connection for each call, but uses an idle one
        if that comes sooner; a new one costs more than its call. On a busy machine it ends a handshake late, and several at once
        would take the time in which both sides could answer calls."""
        loop = asyncio.get_running_loop()
        with own:
            while True:
                try:
                    new, peer = await loop.sock_accept(own)
                except OSError:  # for example too many open files
                    await asyncio.sleep(0.1)
                    continue
                greeting = asyncio.create_task(self._greet(new, tls))
                address = str(peer[0])
                self._greetings.add(greeting, address, new)
                if len(self.connections.open) + len(self._greetings) >= ENOUGH:
                    known = self.connections.knows(address)  # nobody else may keep others waiting
                    await (asyncio.wait({greeting}, timeout=PATIENCE) if known else asyncio.sleep(PACE))

    async def _greet(self, new: socket.socket, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(self._raw, new, ssl=tls, ssl_handshake_timeout=HANDSHAKE_SECONDS)
        except OSError:  # also ssl.SSLError, and a timeout: ConnectionAbortedError
            new.close()

    async def listen_loopback(self, host: str, port: int) -> None:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        self._sockets.append(await loop.create_server(self._loopback, host, port))

    async def listen_page(self, host: str, port: int) -> None:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        self._sockets.append(await loop.create_server(self._pages, host, port))

    def end_connections(self) -> None:
        """Announces the end of each connection with its next answer. Otherwise a connection may close while the peer sends a request:
        the API server does not repeat a POST, and the user's pod would not be created."""
        self._ending = True

    async def close(self) -> None:
        """Closes after the last request is answered, or after some seconds."""
        if self._accepting:
            self._accepting.cancel()
        for listening in self._sockets:
            listening.close()
        until = time.monotonic() + 3
        while self.asked and time.monotonic() < until:
            await asyncio.sleep(0.02)
        await self._raw.shutdown(1)
        await self._loopback.shutdown(1)
        await self._pages.shutdown(1)

    async def _guarded(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            answer, proven = self._route(request)
        except Exception:  # strange bytes must not fill the log
            return _closing(web.Response(status=400, text="not understood\n"))
        connection = self.connections.begins(request, proven)
        try:
            response = await self._answered(request, answer)
            return _closing(response) if self._ending and not response.prepared else response
        finally:
            self.connections.ended(connection)

    async def _guarded_loopback(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serves only the extender's verbs: the webhooks' answers are signed decisions."""
        answer = self._routes.get(f"/extender/{EXTENDER}{request.path}") if request.method == "POST" else None
        return await self._answered(request, answer)

    async def _answered(self, request: web.BaseRequest, answer: Answer | None) -> web.StreamResponse:
        self.asked += 1
        try:
            if answer is None:
                return _closing(web.Response(status=404, text="not found\n"))
            return await answer(request)
        except NotNow as e:
            return _closing(web.Response(status=503, text=f"{e}\n"))  # a new connection may reach the leader
        except Busy:
            return web.Response(status=429, text="too many concurrent requests\n", headers={"Retry-After": "1"})
        except (asyncio.TimeoutError, ConnectionError, web.HTTPException) as e:
            status = e.status if isinstance(e, web.HTTPException) else 408
            return _closing(web.Response(status=status, text="the body is too large or too slow\n"))
        except (msgspec.DecodeError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            self._service.failed(f"{request.path.split('/')[1]}: {type(e).__name__} {e}")
            return web.Response(status=400, text=f"not understood: {type(e).__name__}\n")
        except GhError as e:
            return web.Response(status=503, text=f"{e}\n")
        finally:
            self.asked -= 1

    async def _guarded_page(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._page is not None
        connection = self.connections.begins(request, True)
        try:
            return await self._answered(request, self._bounded_page(self._page.answer_on_loopback))
        finally:
            self.connections.ended(connection)

    def _bounded_page(self, answer: Answer) -> Answer:
        async def bounded(request: web.BaseRequest) -> web.StreamResponse:
            async with self._place("page"):
                return await self._sent(request, await answer(request))

        return bounded

    @contextlib.asynccontextmanager
    async def _place(self, bound: str) -> AsyncIterator[None]:
        """Takes one of the bound's places until the answer is written. If all are taken, cuts the slowest reader above SLOW seconds, so
        that a client that does not read keeps no other out."""
        places = self._bounds[bound]
        now = time.monotonic()
        slow = [one for one, of, since in self._sending.values() if of == bound and now - since > SLOW]
        if places.used >= places.most and slow:
            _cut(slow[0])
            until = time.monotonic() + SLOW
            while places.used >= places.most and time.monotonic() < until:
                await asyncio.sleep(0.01)
        with places:
            yield

    async def _sent(
        self, request: web.BaseRequest, made: web.StreamResponse, bound: str = "page"
    ) -> web.StreamResponse:
        """Writes a large answer in pieces, within its place, so that unread data is in memory only once."""
        body = getattr(made, "body", None)
        if not isinstance(body, bytes) or len(body) <= PIECE:
            return made
        answer = web.StreamResponse(status=made.status, headers=made.headers)
        answer.content_length = len(body)
        if self._ending:
            answer.force_close()
        self._sending[id(request)] = request, bound, time.monotonic()
        try:
            await asyncio.wait_for(_written(request, answer, body), SEND_SECONDS)
        except (asyncio.TimeoutError, ConnectionError):
            _cut(request)
        finally:
            del self._sending[id(request)]
        return answer

    def _route(self, request: web.BaseRequest) -> tuple[Answer | None, bool]:
        """Returns (the function that answers, True if the request has a token)."""
        if self._page is not None and request.path in PATHS and request.method == "GET":
            return self._bounded_page(self._page.answer), self._page.may(request)
        if request.method == "GET":
            return self._open.get(request.path), False
        if request.path == NODE_KEY and request.method == "POST":
            return self._node_key, False
        url = without_token(request.path, self._service.own())
        return self._routes.get(url) if request.method == "POST" else None, bool(url)

    def _json(self, route: Route) -> Answer:
        async def answer(request: web.BaseRequest) -> web.Response:
            began = time.monotonic()
            with self._bounds[route.bound], _Share(self._bodies) as held:
                body = _whole(request, route.most)
                if body is None:
                    body = await asyncio.wait_for(_body(request, route.most, held.more), BODY_SECONDS)
                return await self._router.ask(route, body, request.headers, began)

        return answer

    async def _node_key(self, request: web.BaseRequest) -> web.Response:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not 0 < len(token) <= 8192 or not token.isascii():
            return _closing(web.Response(status=401, text="a token is needed\n"))
        own = self._service.own().webhook_token
        address = "" if own_secret.same(own, request.headers.get(COUNTED, "")) else str(request.remote or "-")
        if self._reviews.refused(token, time.monotonic()):
            return _closing(web.Response(status=403, text=NO_NODE))
        if not self._reviews.begin(address, time.monotonic()):
            return _closing(web.Response(status=429, text="too many refused tokens\n", headers={"Retry-After": "1"}))
        answer = None
        try:
            answer = await self._reviewed(request, token, {COUNTED: own})
        finally:
            if answer is not None and answer.status == 403:
                self._reviews.failed(token, time.monotonic())
            else:
                self._reviews.passed(address)
        return answer

    async def _reviewed(self, request: web.BaseRequest, token: str, counted: dict[str, str]) -> web.Response:
        with self._bounds["key"]:
            try:
                self._service.check()
            except NotNow:
                if FORWARDED in request.headers:
                    raise
                passed = await self._router.passed_on(NODE_KEY, b"", {**counted, "Authorization": f"Bearer {token}"})
                if passed is None:
                    raise
                return passed
            keys = await self._service.node_key(token)
        if keys is None:
            return _closing(web.Response(status=403, text=NO_NODE))
        return web.Response(body=msgspec.json.encode(keys), content_type="application/json")

    async def _healthz(self, request: web.BaseRequest) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.BaseRequest) -> web.Response:
        self._router.ready()
        return web.Response(text="ok\n")

    async def _metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        if not self._service.may_read_metrics(request.headers.get("Authorization", "")):
            return _closing(web.Response(status=401, text="a token is needed\n"))
        async with self._place("metrics"):  # each answer has megabytes of text on a large cluster
            text = await self._service.metrics_text()
            made = web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
            return await self._sent(request, made, "metrics")


class _Bound:
    """A context manager that admits at most `most` users at a time. Raises Busy."""

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0

    def __enter__(self) -> None:
        if self.used >= self.most:
            raise Busy
        self.used += 1

    def __exit__(self, *_: object) -> None:
        self.used -= 1


class _Share:
    """A growing part of a bound, released at the end of `with`."""

    def __init__(self, bound: _Bound) -> None:
        self._bound, self._mine = bound, 0

    def more(self, count: int) -> None:
        if self._bound.used + count > self._bound.most:
            raise Busy
        self._bound.used += count
        self._mine += count

    def __enter__(self) -> "_Share":
        return self

    def __exit__(self, *_: object) -> None:
        self._bound.used -= self._mine


def _cut(request: web.BaseRequest) -> None:
    if isinstance(request.transport, asyncio.Transport):
        request.transport.abort()


async def _written(request: web.BaseRequest, answer: web.StreamResponse, body: bytes) -> None:
    await answer.prepare(request)
    for begin in range(0, len(body), PIECE):
        await answer.write(body[begin : begin + PIECE])
        await asyncio.sleep(0)  # lets other requests be answered, and notices a closed connection
    await answer.write_eof()


def _whole(request: web.BaseRequest, most: int) -> bytes | None:
    """Returns the body if all of it came with the head, as it nearly always does: a timeout would cost a task. None otherwise."""
    if not request.content.is_eof():
        return None
    body = request.content.read_nowait()
    if len(body) > most:
        raise web.HTTPRequestEntityTooLarge(most, len(body))
    return body


async def _body(request: web.BaseRequest, most: int, count: Callable[[int], None]) -> bytes:
    """Reads the body. count: called with the size of each part before it is kept."""
    if (request.content_length or 0) > most:
        raise web.HTTPRequestEntityTooLarge(most, request.content_length or 0)
    parts, size = [], 0
    async for chunk in request.content.iter_any():
        size += len(chunk)
        if size > most:
            raise web.HTTPRequestEntityTooLarge(most, size)
        count(len(chunk))
        parts.append(chunk)
    return b"".join(parts)


def _closing(response: R) -> R:
    response.force_close()
    return response
