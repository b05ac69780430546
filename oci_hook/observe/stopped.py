"""Finds, in the node's events, that the agent stopped a container."""

from collections.abc import Iterable
from typing import Any


def by_agent(log: Iterable[dict[str, Any]], id: str) -> str:
    """ "the agent killed it: over-memory on GPU …: …", "the agent froze it: …", or "" if the agent did neither since the
    container last got its share, or was resumed. log: the events, oldest first. id: the container's."""
    found = ""
    for event in log:
        if event.get("id") != id:
            continue
        if event["event"] == "granted" or event.get("action") == "resumed":
            found = ""
        done = {"killed": "killed", "frozen": "froze"}.get(str(event.get("action")))
        if event["event"] == "finding" and done:
            on = f" on {event['uuid']}" if event.get("uuid") else ""
            found = f"the agent {done} it: {event.get('kind')}{on}: {event.get('evidence')}"
    return found
