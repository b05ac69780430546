"""The connection to the leader if another controller leads: checks that it answers, and forwards requests to it."""

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable

import aiohttp

from oci_hook.kube.controller.api.client import ApiError, bounded
from oci_hook.kube.controller.lead.leader import Leader
from oci_hook.kube.formats.names import CONTROLLER
from oci_hook.kube.link.kubeconfig import trusting

LOG = logging.getLogger(__name__)

EVERY = 1.0  # seconds between two health checks
LOOK = 0.7  # seconds; timeout of a health check
ANSWER = 1.5  # seconds; timeout of a forwarded request
KNOWN = 10.0  # seconds after an answer for which the leader counts as reachable
SILENT = 2.0  # seconds without a renewal or an answer, after which the leader's machine counts as unreachable
FORWARDED = "Gpu-Hook-Forwarded"  # header: the receiver must not forward the request again
MAX_ANSWER = 64 << 20


class Unreachable(Exception):
    pass


class Peer:
    """away: called once with the pod of a leader that neither renews its Lease nor answers. find: returns a leader's address by its
    identity, if the Lease does not have the address."""

    def __init__(
        self,
        leader: Leader,
        away: Callable[[str], Awaitable[None]],
        find: Callable[[str], Awaitable[str]],
    ) -> None:
        self._leader, self._away, self._find = leader, away, find
        self._found = "", ""  # identity, address
        self._tls: ssl.SSLContext | None = None
        self._session: aiohttp.ClientSession | None = None
        self._heard_at = float("-inf")
        self._lost = ""  # identity of a leader that does not answer
        self._told = ""

    def trust(self, bundle: str) -> None:
        if bundle:
            self._tls = trusting(bundle)

    def heard(self) -> bool:
        """True if the leader answered lately."""
        return time.monotonic() - self._heard_at < KNOWN

    async def run(self) -> None:
        """Runs until cancelled."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=128, keepalive_timeout=30), trust_env=False
        ) as self._session:
            while True:
                await self._look()
                await asyncio.sleep(EVERY)

    async def forward(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, str, bytes]:
        """Returns (status, content type, body) of the leader's answer. Raises Unreachable."""
        leads = self._leader.other()
        if leads is not None and leads.holder == self._lost:
            raise Unreachable
        try:
            return await self._ask("POST", path, body, {**headers, FORWARDED: "1"}, ANSWER)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ApiError) as e:
            raise Unreachable(f"{type(e).__name__} {e}") from None

    async def _ask(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], seconds: float
    ) -> tuple[int, str, bytes]:
        leads = self._leader.other()
        address = ""
        if leads is not None:
            address = leads.address or (self._found[1] if self._found[0] == leads.holder else "")
        if not address or self._tls is None or self._session is None:
            raise Unreachable
        async with self._session.request(
            method,
            f"https://{address}{path}",
            data=body,
            headers=headers,
            ssl=self._tls,
            server_hostname=CONTROLLER,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=seconds),
        ) as answer:
            return answer.status, answer.content_type, await bounded(answer.content, MAX_ANSWER)

    async def _look(self) -> None:
        leads = self._leader.other()
        if leads is None:
            self._lost = ""
            return
        try:
            if not leads.address and self._found[0] != leads.holder:
                self._found = leads.holder, await self._find(leads.holder)
            await self._ask("GET", "/healthz", None, {}, LOOK)
        except Unreachable:
            return
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ApiError) as e:
            self._lost = leads.holder
            refused = isinstance(e, aiohttp.ClientConnectorError) and isinstance(e.os_error, ConnectionRefusedError)
            if not refused and leads.pod and self._told != leads.holder and self._leader.silent() > SILENT:
                self._told = leads.holder  # not after a refused connection: the kubelet restarts a process that ended
                LOG.warning(f"the leader {leads.pod} is silent: {type(e).__name__}")
                await self._away(leads.pod)
            return
        self._lost = ""
        self._heard_at = time.monotonic()
