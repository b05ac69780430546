"""The pages that the agent serves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oci_hook.agent.serve.http import Page

if TYPE_CHECKING:
    from oci_hook.agent.serve.publish import Publisher

METRICS = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"


def pages(published: "Publisher") -> dict[str, Page]:
    """/: for people. /metrics: Prometheus. /api/node: view.view(). /api/history: by container and GPU, oldest first,
    [Unix seconds, MiB in use, per cent busy]. /api/processes: process_view.processes(). /api/events: recent.Recent."""
    html = (Path(__file__).parent / "page.html").read_bytes()

    def document(make: Callable[[], Any]) -> Page:
        return lambda: (JSON, json.dumps(make(), separators=(",", ":")).encode())

    return {
        "/": lambda: ("text/html; charset=utf-8", html),
        "/metrics": lambda: (METRICS, published.metrics()),
        "/api/node": document(published.view),
        "/api/history": document(published.history),
        "/api/events": document(published.events),
        "/api/processes": document(lambda: {"processes": published.processes()}),
    }
