"""The pages of the agent's server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oci_hook.agent.http import Page

if TYPE_CHECKING:
    from oci_hook.agent.agent import Agent

METRICS = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"


def pages(agent: "Agent") -> dict[str, Page]:
    """/: for people. /metrics: Prometheus. /api/node: view.view(). /api/history: by container and GPU, oldest first,
    [Unix seconds, MiB in use, per cent busy]."""
    html = (Path(__file__).parent / "page.html").read_bytes()

    def document(make: Callable[[], Any]) -> Page:
        return lambda: (JSON, json.dumps(make(), separators=(",", ":")).encode())

    def history() -> dict[str, Any]:
        return {key: watched.history for key, watched in agent.watched.items()}

    return {
        "/": lambda: ("text/html; charset=utf-8", html),
        "/metrics": lambda: (METRICS, agent.metrics()),
        "/api/node": document(agent.view),
        "/api/history": document(history),
    }
