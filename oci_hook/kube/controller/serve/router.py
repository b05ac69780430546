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
from oci_hook.kube.controller.trust import own_secret
from oci_hook.kube.controller.trust.own_secret import Own

HOLD = 1.85  # seconds from the request's begin; the API server waits for 2
LOOK = 0.02
MAX_REVIEW = 8 << 20  # etcd stores at most 1.5 MiB for a pod; the review of an update has the pod twice
MAX_FILTER = 64 << 20  # 5 000 whole Node objects, from a scheduler without nodeCacheCapable
WEBHOOK, EXTENDER = "{webhook token}", "{extender token}"  # no URL has braces


Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class Route(Value):
    """url: as callers write it, with WEBHOOK or EXTENDER in place of our token. bound: of MAX_AT_A_TIME. most: bytes of a body.
    leads: only a leader may answer. holds: seconds to wait for a leader. hint: answers without a leader from our copy of the
    cluster, which the webhook for Bindings checks later."""

    url: str
    act: Answer
    bound: str
    most: int
    leads: bool = True
    holds: float = 0.0
    hint: Answer | None = None


def routes(service: Service) -> tuple[Route, ...]:
    """All that is asked with one of our tokens."""
    return (
        Route(f"/pods/{WEBHOOK}", service.review_pod, "review", MAX_REVIEW, leads=False, holds=HOLD),
        Route(f"/bindings/{WEBHOOK}", service.review_binding, "review", MAX_REVIEW, holds=HOLD),
        Route(f"/extender/{EXTENDER}/filter", service.filter, "filter", MAX_FILTER, hint=service.filter_as_a_hint),
        Route(f"/extender/{EXTENDER}/preempt", service.preempt, "filter", MAX_FILTER),
        Route(f"/extender/{EXTENDER}/dry-run", service.dry_run, "dry-run", MAX_FILTER),
    )


def without_token(path: str, own: Own) -> str:
    """The path as a Route's url has it; "" if it has no valid token."""
    parts = path.split("/")
    if len(parts) == 3 and own_secret.same(own.webhook_token, parts[2]):
        return f"/{parts[1]}/{WEBHOOK}"
    if len(parts) == 4 and parts[1] == "extender" and own_secret.same(own.extender_token, parts[2]):
        return f"/extender/{EXTENDER}/{parts[3]}"
    return ""


def with_token(url: str, own: Own) -> str:
    return url.replace(WEBHOOK, own.webhook_token).replace(EXTENDER, own.extender_token)


class Router:
    def __init__(self, service: Service, peer: Peer) -> None:
        self._service, self._peer = service, peer

    def ready(self) -> None:
        """Raises NotNow if we could not answer a request."""
        self._service.check(leads=False)
        if not self._peer.heard():
            self._service.check()

    async def ask(self, route: Route, body: bytes, headers: Mapping[str, str], began: float) -> web.Response:
        """Answers, or forwards to the leader. Raises NotNow and the errors of `act`. began: time.monotonic() at the request's begin."""
        while True:
            try:
                self._service.check(route.leads)
                return _json(await route.act(msgspec.json.decode(body)))
            except NotNow:
                if FORWARDED in headers:
                    raise
            passed = await self.passed_on(
                with_token(route.url, self._service.own()), body, {"Content-Type": "application/json"}
            )
            if passed is not None:
                return passed
            if route.hint is not None:
                return _json(await route.hint(msgspec.json.decode(body)))
            if time.monotonic() - began >= route.holds:
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
