"""The cluster's web page: one HTML file, and the overview as JSON. The overview is made at most every EVERY seconds for all visitors,
in slices of SLICE seconds, so that decisions come between."""

import asyncio
import secrets
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from oci_hook.core.units import natural
from oci_hook.kube.answers.overview import Overview
from oci_hook.kube.controller.copy import Copy
from oci_hook.kube.controller.trust import own_secret
from oci_hook.observe.browser import LOG_IN, SAFE, credential, names_this_machine

EVERY = 2.0
SLICE = 0.001
ROWS = 64  # joined in one piece
GZIP = 16 + zlib.MAX_WBITS
JSON = "application/json"
PATHS = ("/", "/api/cluster")


class Page:
    """token: required of visitors by --address; "" closes that way. who: returns the leader for the page."""

    def __init__(self, copy: Copy, token: str, who: Callable[[], dict[str, Any]]) -> None:
        self._copy, self._token, self._who = copy, token, who
        self._overview = Overview()
        self._instance = secrets.token_hex(4)
        self._looked = float("-inf")
        self._lock = asyncio.Lock()
        self._whole: tuple[int, bytes] = -1, b""  # (version, the compressed overview)
        self._html = (Path(__file__).parent / "page.html").read_bytes()
        press = zlib.compressobj(9, zlib.DEFLATED, GZIP)
        self._small_html = press.compress(self._html) + press.flush()

    def may(self, request: web.BaseRequest) -> bool:
        """Returns whether a request by --address has the token."""
        given = credential(request.headers.get("Authorization", "")).decode(errors="replace")
        return bool(self._token) and own_secret.same(self._token, given)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers a request by --address."""
        if not self._token:
            return _plain(404, "not found")
        if not self.may(request):
            refused = _plain(401, "a token is needed", LOG_IN)
            refused.force_close()
            return refused
        return await self._answer(request)

    async def answer_on_loopback(self, request: web.BaseRequest) -> web.StreamResponse:
        if not names_this_machine(request.headers.get("Host", "")):
            return _plain(403, "the Host header must name this machine's loopback address")
        return await self._answer(request)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method != "GET":
            return _plain(405, "only GET", {"Allow": "GET"})
        if request.path == "/":
            small = _takes_gzip(request)
            return _body(self._small_html if small else self._html, "text/html; charset=utf-8", small)
        if request.path == "/api/cluster":
            return await self._data(request)
        return _plain(404, "there is " + " ".join(PATHS))

    async def _data(self, request: web.BaseRequest) -> web.Response:
        """The whole overview; with ?since=VERSION or If-None-Match only the changes since that version."""
        async with self._lock:
            if time.monotonic() - self._looked >= EVERY:
                await self._look()
                self._looked = time.monotonic()
            known = request.headers.get("If-None-Match", "").removeprefix("W/").strip('"')
            tag = self.tag()
            if known == tag:
                return web.Response(status=304, headers={**SAFE, "ETag": f'"{tag}"'})
            since = self._since(request.query.get("since", ""))
            if since == self._overview.version:
                return web.Response(status=304, headers={**SAFE, "ETag": f'"{tag}"'})
            small = _takes_gzip(request)
            if since and not self._overview.knows(since):
                since = 0
            data = await self._text(since, small)
        return _body(data, JSON, small, {"ETag": f'"{tag}"'})

    def tag(self) -> str:
        return f"{self._instance}-{self._overview.version}"

    def _since(self, tag: str) -> int:
        instance, _, version = tag.partition("-")
        return natural(version) if instance == self._instance else 0

    async def _look(self) -> None:
        copy = self._copy
        await _in_slices(self._overview.look(copy.state, copy.waiting, copy.enabled, self._who()))

    async def _text(self, since: int, small: bool) -> bytes:
        whole = small and not since
        if whole and self._whole[0] == self._overview.version:
            return self._whole[1]
        out: list[bytes] = []
        await _in_slices(_written(self._overview.parts(since), out, small))
        data = b"".join(out)
        if whole:
            self._whole = self._overview.version, data
        return data


def _written(parts: Iterable[str], out: list[bytes], small: bool) -> Iterator[None]:
    """Appends the parts to `out`, compressed if `small`."""
    press = zlib.compressobj(1, zlib.DEFLATED, GZIP)
    lines: list[str] = []
    for part in parts:
        lines.append(part)
        if len(lines) == ROWS:
            data = "".join(lines).encode()
            out.append(press.compress(data) if small else data)
            lines.clear()
            yield
    data = "".join(lines).encode()
    out += [press.compress(data), press.flush()] if small else [data]


async def _in_slices(work: Iterator[None]) -> None:
    began = time.perf_counter()
    for _ in work:
        if time.perf_counter() - began > SLICE:
            await asyncio.sleep(0)
            began = time.perf_counter()


def _takes_gzip(request: web.BaseRequest) -> bool:
    return "gzip" in request.headers.get("Accept-Encoding", "").lower()


def _body(data: bytes, kind: str, small: bool, more: dict[str, str] | None = None) -> web.Response:
    headers = {**SAFE, "Content-Type": kind, "Vary": "Accept-Encoding", **(more or {})}
    if small:
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=data, headers=headers)


def _plain(status: int, text: str, more: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers={**SAFE, **(more or {})})
