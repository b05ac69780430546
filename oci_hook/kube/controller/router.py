"""Who answers a request: we, where we lead; else the leader, to whom we pass it on. So every controller may be asked, and it does
not matter how soon callers learn who leads. While nobody leads, what can wait is held until somebody does."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from oci_hook.core.value import Value
from oci_hook.kube.controller.dry_runs import DRY_RUNS
from oci_hook.kube.controller.own_secret import Own
from oci_hook.kube.controller.peer import FORWARDED, Peer, Unreachable
from oci_hook.kube.controller.service import NotNow, Service

HOLD = 1.85  # seconds, from a request's begin; the API server waits for 2
LOOK = 0.02


class Call(Value):
    """path: with our tokens, at the leader. leads: only a leader may answer. holds: seconds for which it waits for one.
    hint: where there is no leader, we answer it by what we know: whoever binds looks again."""

    act: Callable[[Any], Awaitable[Any]]
    path: Callable[[Own], str]
    leads: bool = True
    holds: float = 0.0
    hint: Callable[[Any], Awaitable[Any]] | None = None


def calls(service: Service) -> dict[str, Call]:
    """By the name in the URL."""
    return {
        "pods": Call(service.review_pod, lambda own: f"/pods/{own.webhook_token}", leads=False, holds=HOLD),
        "bindings": Call(service.review_binding, lambda own: f"/bindings/{own.webhook_token}", holds=HOLD),
        "filter": Call(
            service.filter, lambda own: f"/extender/{own.extender_token}/filter", hint=service.filter_as_a_hint
        ),
        "preempt": Call(service.preempt, lambda own: f"/extender/{own.extender_token}/preempt"),
        **{path: Call(service.dry_run(verb), _extender(path)) for path, verb in DRY_RUNS.items()},
    }


def _extender(verb: str) -> Callable[[Own], str]:
    return lambda own: f"/extender/{own.extender_token}/{verb}"


class Router:
    def __init__(self, service: Service, peer: Peer) -> None:
        self._service, self._peer = service, peer

    def ready(self) -> None:
        """Raises NotNow where a request would not be answered."""
        self._service.check(leads=False)
        if not self._peer.heard():
            self._service.check()

    async def ask(self, call: Call, body: bytes, headers: Any, began: float) -> web.Response:
        """Raises NotNow, and what `act` raises. began: time.monotonic() at the request's begin."""
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
        """None where the leader cannot be reached, or leads no longer."""
        try:
            status, kind, text = await self._peer.forward(path, body, headers)
        except Unreachable:
            return None
        return None if status == 503 else web.Response(status=status, body=text, content_type=kind)


def _json(answer: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")
