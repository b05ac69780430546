"""HTTP client for the API server: requests, paged lists, watches. Tokens, errors and size limits are handled only here."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
import msgspec

from oci_hook.kube.controller.api.objects import STATUSES, Kind
from oci_hook.kube.controller.api.shallow import decode
from oci_hook.kube.link.kubeconfig import Credential

Body = dict[str, Any] | list[dict[str, Any]]  # an object, or a JSON Patch
PAGE = 500  # objects
MAX_ANSWER = 64 << 20  # bytes of one object or one watch event
MAX_PAGE = 16 << 20  # bytes; the largest object has about 3 MiB
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"


class ApiError(Exception):
    """status: of HTTP; 0 without an answer. retry_after: seconds to wait, from the server's Retry-After header."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else message)
        self.status, self.reason, self.message, self.retry_after = status, reason, message, retry_after


class TooLarge(ApiError):
    """The answer exceeds the size limit."""


def keep_alive_socket(address: Any) -> socket.socket:
    """TCP keepalive: an idle watch notices within half a minute that its peer vanished."""
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
    """An async context manager, which owns the connections."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Client":
        connector = aiohttp.TCPConnector(
            limit=64, ssl=self._credential.context() or True, socket_factory=keep_alive_socket, keepalive_timeout=60
        )
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        return an_object(await self.request("GET", path, query=query))

    async def post(self, path: str, body: Body) -> dict[str, Any]:
        return an_object(await self.request("POST", path, body))

    async def put(self, path: str, body: Body) -> dict[str, Any]:
        return an_object(await self.request("PUT", path, body))

    async def patch(self, path: str, body: Body, kind: str = MERGE) -> dict[str, Any]:
        return an_object(await self.request("PATCH", path, body, kind=kind))

    async def request(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        *,
        query: Mapping[str, str] | None = None,
        kind: str = "application/json",
        timeout: float = 10.0,
        most: int = MAX_ANSWER,
    ) -> bytes:
        """Returns the answer's body. Raises ApiError for error statuses and for network errors."""
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._open(method, path, data, query, kind, aiohttp.ClientTimeout(total=timeout)) as answer:
                text = await bounded(answer.content, most)
                if answer.status >= 300:
                    raise _error(answer, text)
                return text
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as e:
            raise ApiError(0, "", f"{method} {path}: {type(e).__name__} {e}".rstrip()) from None

    async def pages(self, kind: Kind, query: Mapping[str, str]) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        """Yields (objects, the list's version) page by page, so the whole list is never in memory. Halves the page size if a page
        is too large: a tenant may write 256 KiB of annotations into each object."""
        more, limit = "", PAGE
        while True:
            page = {**query, "limit": str(limit), **({"continue": more} if more else {})}
            try:
                text = await self.request(
                    "GET", kind.path, query=page, timeout=60, most=MAX_PAGE if limit > 1 else MAX_ANSWER
                )
            except TooLarge:
                if limit == 1:
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
        """Yields the text of each event until the server ends the watch. Raises ApiError."""
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
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Sends a request with our token, read again each time since tokens are rotated. Raises OSError."""
        assert self._session is not None
        headers = {"Accept": "application/json", "User-Agent": "gpu-hook"}
        if token := self._credential.bearer():
            headers["Authorization"] = f"Bearer {token}"
        if data is not None:
            headers["Content-Type"] = kind
        return self._session.request(
            method,
            self._credential.server + path,
            data=data,
            params=query,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
            server_hostname=self._credential.name or None,
        )


async def bounded(content: aiohttp.StreamReader, most: int = MAX_ANSWER) -> bytes:
    """Reads the whole body. Raises TooLarge above `most` bytes."""
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


def an_object(text: bytes) -> dict[str, Any]:
    """Decodes a whole object of the API server."""
    found: dict[str, Any] = decode(text)
    return found
