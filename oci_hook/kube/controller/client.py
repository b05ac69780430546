"""Calls to the API server: requests, lists in pages, watches. One place that knows tokens, errors and bounds."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import msgspec

from oci_hook.kube.controller.access import Access
from oci_hook.kube.controller.objects import STATUSES, Kind
from oci_hook.kube.controller.shallow import decode

PAGE = 500  # objects
MAX_ANSWER = 64 << 20  # bytes of one object or one watch event
MAX_PAGE = 16 << 20  # bytes; an object has some 3 MiB at most
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"


class ApiError(Exception):
    """status: HTTP's; 0 where no answer came. retry_after: seconds that the server asks to wait."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else message)
        self.status, self.reason, self.message, self.retry_after = status, reason, message, retry_after


class TooLarge(ApiError):
    """The answer has more bytes than we take."""


def keep_alive_socket(address: Any) -> socket.socket:
    """A watch waits for minutes: the kernel finds out within half a minute that the other side is gone without a word."""
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 10),
        (socket.TCP_KEEPINTVL, 5),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, 30_000),
    ):
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


class Client:
    """To be used within `async with`."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Client":
        connector = aiohttp.TCPConnector(
            limit=64, ssl=self.access.tls or True, socket_factory=keep_alive_socket, keepalive_timeout=60
        )
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        return decode(await self.request("GET", path, query=query))

    async def post(self, path: str, body: Any) -> Any:
        return decode(await self.request("POST", path, body))

    async def put(self, path: str, body: Any) -> Any:
        return decode(await self.request("PUT", path, body))

    async def patch(self, path: str, body: Any, kind: str = MERGE) -> Any:
        return decode(await self.request("PATCH", path, body, kind=kind))

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        kind: str = "application/json",
        timeout: float = 10.0,
        most: int = MAX_ANSWER,
    ) -> bytes:
        """The answer's body. Raises ApiError, for what the server says and for what happens on the way."""
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._open(method, path, data, query, kind, aiohttp.ClientTimeout(total=timeout)) as answer:
                text = await bounded(answer.content, most)
                if answer.status >= 300:
                    raise _error(answer, text)
                return text
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as e:
            raise ApiError(0, "", f"{method} {path}: {type(e).__name__} {e}".rstrip()) from None

    async def pages(self, kind: Kind, query: Mapping[str, str]) -> AsyncIterator[tuple[list[Any], str]]:
        """(objects, the list's version) page after page: never the whole list in memory. A page that is too large (a tenant may
        write 256 KiB of annotations into each object) is asked for again with half as many objects."""
        more, limit = "", PAGE
        while True:
            page = {**query, "limit": str(limit), **({"continue": more} if more else {})}
            try:
                text = await self.request(
                    "GET", kind.path, query=page, timeout=60, most=MAX_PAGE if limit > 1 else MAX_ANSWER
                )
            except TooLarge:
                if limit == 1:  # then also a server that knows no limit has been asked
                    raise
                limit //= 2
                continue
            limit = min(PAGE, limit + limit // 8 + 1)
            try:
                listed = decode(text, kind.lists)
            except msgspec.DecodeError as e:
                raise ApiError(0, "", f"GET {kind.path}: {e}") from None
            meta = listed.get("metadata") or {}
            more = meta.get("continue") or ""
            yield listed.get("items") or [], meta.get("resourceVersion") or ""
            if not more:
                return

    async def watch(self, path: str, query: Mapping[str, str], seconds: int) -> AsyncIterator[bytes]:
        """The events' text, until the server ends the watch. Raises ApiError."""
        asked = {**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        limits = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=seconds + 30)
        try:
            async with self._open("GET", path, None, asked, "application/json", limits) as answer:
                if answer.status >= 300:
                    raise _error(answer, await bounded(answer.content))
                rest: list[bytes] = []
                size = 0
                async for chunk in answer.content.iter_any():
                    *lines, last = chunk.split(b"\n")
                    for line in lines:
                        yield b"".join([*rest, line])
                        rest, size = [], 0
                    rest.append(last)
                    size += len(last)
                    if size > MAX_ANSWER:
                        raise ApiError(0, "", f"watch of {path}: an event is larger than {MAX_ANSWER} bytes")
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as e:
            raise ApiError(0, "", f"watch of {path}: {type(e).__name__} {e}".rstrip()) from None

    def _open(
        self,
        method: str,
        path: str,
        data: bytes | None,
        query: Mapping[str, str] | None,
        kind: str,
        timeout: aiohttp.ClientTimeout,
    ) -> "_Opened":
        assert self._session is not None
        return _Opened(self._session, self.access, method, path, data, query, kind, timeout)


class _Opened:
    """A request with our token; sent again once where the server does not know the token, which may have been replaced."""

    def __init__(self, session: aiohttp.ClientSession, access: Access, method: str, path: str, *rest: Any) -> None:
        self._session, self._access, self._method, self._path = session, access, method, path
        self._data, self._query, self._kind, self._timeout = rest
        self._answer: aiohttp.ClientResponse | None = None

    async def __aenter__(self) -> aiohttp.ClientResponse:
        self._answer = await self._send()
        if self._answer.status == 401 and self._access.token.forget():
            self._answer.close()
            self._answer = await self._send()
        return self._answer

    async def __aexit__(self, *_: object) -> None:
        if self._answer is not None:
            self._answer.release()

    async def _send(self) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "User-Agent": "gpu-hook"}
        if token := self._access.token.get():
            headers["Authorization"] = f"Bearer {token}"
        if self._data is not None:
            headers["Content-Type"] = self._kind
        return await self._session.request(
            self._method,
            self._access.server + self._path,
            data=self._data,
            params=self._query,
            headers=headers,
            timeout=self._timeout,
            allow_redirects=False,
        )


async def bounded(content: aiohttp.StreamReader, most: int = MAX_ANSWER) -> bytes:
    """All of it. Raises ApiError for more than `most` bytes."""
    parts, size = [], 0
    async for chunk in content.iter_any():
        size += len(chunk)
        if size > most:
            raise TooLarge(0, "", f"the answer is larger than {most} bytes")
        parts.append(chunk)
    return b"".join(parts)


def _error(answer: aiohttp.ClientResponse, text: bytes) -> ApiError:
    try:
        status = decode(text, STATUSES)
    except (msgspec.DecodeError, msgspec.ValidationError):
        status = None
    reason = status.reason if status else ""
    message = status.message if status and status.message else text[:300].decode("utf-8", "replace")
    try:
        wait = float(answer.headers.get("Retry-After", "0"))
    except ValueError:
        wait = 0.0
    return ApiError(answer.status, reason, message, min(max(wait, 0.0), 60.0))
