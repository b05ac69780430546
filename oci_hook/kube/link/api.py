"""A small client of the API server for the reporter and for commands: get, list, patch, post and watch. All reads are bounded."""

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

from oci_hook.kube.formats import shallow
from oci_hook.kube.link.kubeconfig import Credential

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
SECONDS = 10.0  # of one call
WATCH_SECONDS = 300  # of one watch; the server ends it then
PAGE = 500  # objects
MAX_ANSWER = 64 << 20  # bytes of one object
MAX_PAGE = 16 << 20  # bytes; the largest object has about 3 MiB
MAX_LINE = 4 << 20
FAILURES = (OSError, http.client.HTTPException, ValueError)  # ssl.SSLError and timeouts are OSErrors

# By the server, while nobody used the connection.
CLOSED = (ConnectionError, ssl.SSLEOFError)


class ApiError(Exception):
    """The server answered with an error. status: of HTTP."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(f"{what} (HTTP {status})")
        self.status = status


class TooLarge(ValueError):
    """The answer exceeds the size limit."""


class Api:
    """One connection, reused while it works; for one thread. seconds: of one call. Raises ApiError and FAILURES."""

    def __init__(self, credential: Credential, seconds: float = SECONDS) -> None:
        self._credential, self._seconds = credential, seconds
        self._prefix = urlsplit(credential.server).path.rstrip("/")
        self._connection: ApiConnection | None = None

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def pages(self, path: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        """A list in pages. Halves the page if one is too large: a tenant may write 256 KiB of annotations into each object."""
        more, limit = "", PAGE
        while True:
            page = {**query, "limit": str(limit), **({"continue": more} if more else {})}
            try:
                listed = self.call("GET", f"{path}?{urlencode(page)}", most=MAX_PAGE if limit > 1 else MAX_ANSWER)
            except TooLarge as e:
                if limit == 1:
                    raise TooLarge(f"one object of {path}: {e}") from None
                limit //= 2
                continue
            limit = min(PAGE, limit + limit // 8 + 1)
            more = (listed.get("metadata") or {}).get("continue") or ""
            yield listed
            if not more:
                return

    def call(self, method: str, path: str, body: Any = None, kind: str = JSON, most: int = MAX_ANSWER) -> Any:
        """The answer's JSON. Reconnects once if the server has closed a reused connection."""
        kept = self._connection is not None
        try:
            return self._call(method, path, body, kind, most)
        except CLOSED:
            self.close()
            if not kept:
                raise
        except FAILURES:
            self.close()
            raise
        try:
            return self._call(method, path, body, kind, most)
        except FAILURES:
            self.close()
            raise

    def watch(self, path: str) -> Iterator[dict[str, Any]]:
        """The events of one watch, until the server ends it."""
        connection = connect(self._credential, WATCH_SECONDS + SECONDS)
        try:
            connection.request("GET", self._prefix + path, headers=self._headers())
            response = connection.getresponse()
            if response.status != 200:
                raise _error(response.status, response.read(MAX_LINE))
            while line := response.readline(MAX_LINE):
                if not line.endswith(b"\n"):
                    raise ValueError("an event is too long")
                event = shallow.loads(line)
                if isinstance(event, dict):
                    yield event
        finally:
            connection.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _call(self, method: str, path: str, body: Any, kind: str, most: int) -> Any:
        if self._connection is None:
            self._connection = connect(self._credential, self._seconds)
        data = None if body is None else json.dumps(body, separators=(",", ":"))
        headers = self._headers() | ({"Content-Type": kind} if data else {})
        self._connection.request(method, self._prefix + path, data, headers)
        response = self._connection.getresponse()
        answer = response.read(most + 1)
        if len(answer) > most:
            raise TooLarge(f"the answer is larger than {most >> 20} MiB")
        if not 200 <= response.status < 300:
            self.close()  # also for a partly read answer, and for a rotated token (401)
            raise _error(response.status, answer)
        return shallow.loads(answer)

    def _headers(self) -> dict[str, str]:
        token = self._credential.bearer()
        return {"Accept": JSON, "User-Agent": "gpu-hook", **({"Authorization": f"Bearer {token}"} if token else {})}


class ApiConnection(http.client.HTTPConnection):
    """context: None for plain HTTP. name: expected in the server's certificate, "" for the host. seconds: the limit of each read."""

    default_port = 443  # the Host header leaves it out

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None, seconds: float, name: str = "") -> None:
        super().__init__(host, port, timeout=seconds)
        self._name = name or host
        self._tls = context

    def connect(self) -> None:
        """Sets keep-alive probes, so that a watch notices a dead server."""
        made = socket.create_connection((self.host, self.port), SECONDS)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
                made.setsockopt(socket.IPPROTO_TCP, option, value)
            self.sock = self._tls.wrap_socket(made, server_hostname=self._name) if self._tls else made
        except BaseException:
            made.close()
            raise
        self.sock.settimeout(self.timeout)


def connect(credential: Credential, seconds: float) -> ApiConnection:
    """Not connected yet. Plain HTTP is for this machine alone (kubeconfig.py). Raises OSError, ssl.SSLError, ValueError."""
    parts, context = urlsplit(credential.server), credential.context()
    return ApiConnection(
        parts.hostname or "", parts.port or (443 if context else 80), context, seconds, credential.name
    )


def _error(status: int, answer: bytes) -> ApiError:
    try:
        what = str(shallow.loads(answer)["message"])[:200]
    except (ValueError, KeyError, TypeError):
        what = http.client.responses.get(status, "no success")
    return ApiError(status, what)
