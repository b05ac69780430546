"""Answers a request if we lead, and forwards it to the leader otherwise. So callers may use any controller and need not know the
leader. While nobody leads, requests that can wait are held."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from oci_hook.core.value import Value
from oci_hook.kube.controller.lead.peer import FORWARDED, Peer, Unreachable
from oci_hook.kube.controller.serve.service import NotNow, Service
from oci_hook.kube.controller.trust.own_secret import Own

HOLD = 1.85  # seconds from the request's begin; the API server waits for 2
LOOK = 0.02


Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class Route(Value):
    """path: URL path at the leader, with our tokens. leads: only a leader may answer. holds: seconds to wait for a leader. hint:
    answers without a leader from our copy of the cluster, which the webhook for Bindings checks later."""

    act: Answer
    path: Callable[[Own], str]
    leads: bool = True
    holds: float = 0.0
    hint: Answer | None = None


def calls(service: Service) -> dict[str, Route]:
    """The calls by their name in the URL."""
    return {
        "pods": Route(service.review_pod, lambda own: f"/pods/{own.webhook_token}", leads=False, holds=HOLD),
        "bindings": Route(service.review_binding, lambda own: f"/bindings/{own.webhook_token}", holds=HOLD),
        "filter": Route(
            service.filter, lambda own: f"/extender/{own.extender_token}/filter", hint=service.filter_as_a_hint
        ),
        "preempt": Route(service.preempt, lambda own: f"/extender/{own.extender_token}/preempt"),
        "dry-run": Route(service.dry_run, lambda own: f"/extender/{own.extender_token}/dry-run"),
    }


class Router:
    def __init__(self, service: Service, peer: Peer) -> None:
        self._service, self._peer = service, peer

    def ready(self) -> None:
        """Raises NotNow if we could not answer a request."""
        self._service.check(leads=False)
        if not self._peer.heard():
            self._service.check()

    async def ask(self, call: Route, body: bytes, headers: Mapping[str, str], began: float) -> web.Response:
        """Answers, or forwards to the leader. Raises NotNow and the errors of `act`. began: time.monotonic() at the request's begin."""
        while True:
            try:
                self._service.check(call.leads)
                return _json(await call.act(msgspec.json.decode(body)))
            except NotNow:
                if FORWARDED in headers:
                    raise
            passed = await self.passed_on(call.path(self._service.own()), body, {"Content-Type": "application/json"})
            if passed is not None:
                return passed
            if call.hint is not None:
                return _json(await call.hint(msgspec.json.decode(body)))
            if time.monotonic() - began >= call.holds:
                raise NotNow("there is no leader at the moment")
            await asyncio.sleep(LOOK)

    async def passed_on(self, path: str, body: bytes, headers: dict[str, str]) -> web.Response | None:
        """Returns None if the leader is unreachable or no longer leads."""
        try:
            status, kind, text = await self._peer.forward(path, body, headers)
        except Unreachable:
            return None
        return None if status == 503 else web.Response(status=status, body=text, content_type=kind)


def _json(answer: dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")
