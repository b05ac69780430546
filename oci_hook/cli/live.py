"""The node's current state for `top` and `why`: from the agent if one runs, else from the ledger and account pages."""

import base64
import json
import os
import socket
import time
from typing import Any

from oci_hook.agent import options
from oci_hook.agent.serve import whereabouts
from oci_hook.agent.serve.view import view
from oci_hook.agent.watched import Watched
from oci_hook.cli import named
from oci_hook.config.settings import Settings
from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Inventory
from oci_hook.core.layout import AGENT_LOCK
from oci_hook.errors import GhError
from oci_hook.ledger import inventory as cache
from oci_hook.ledger.slot_files import read_gate
from oci_hook.observe import account
from oci_hook.observe.event_text import text_of
from oci_hook.observe.processes import accounted

SECONDS = 2.0  # to wait for the agent's answer
TRIES = 0.3  # seconds in which an allocation that waits tries again (LONGEST_WAIT_MS of shim/memory/charge.c)
NOT_BACK = "no agent runs to bring it back: start one (`gpu-hook agent`), or run `gpu-hook resume {}`"
NO_MAKER = "no agent runs to make it; start one by `gpu-hook agent`"
MAX = 16 << 20  # bytes of its answer


def node(settings: Settings, prefix: str) -> dict[str, Any]:
    """The form of agent.view.view(); agent.state is "none" if no agent of this install answers. Raises NodeError GH-303."""
    return ask(settings, prefix) or alone(settings)


def agent_runs(settings: Settings) -> bool:
    """True if an agent of this install runs, also one that cannot be asked. Only root can see it."""
    return whereabouts.holder(f"{settings.state_dir}/{AGENT_LOCK}") > 0


def ask(settings: Settings, prefix: str) -> dict[str, Any] | None:
    """The answer of this install's agent; None if there is none."""
    data = fetch(settings, prefix, "/api/node")
    # Another program may use the port, or the agent may be that of another install.
    if not isinstance(data, dict) or not isinstance(data.get("agent"), dict) or not {"containers", "gpus"} <= set(data):
        return None
    return data if data["agent"].get("state_dir") == settings.state_dir else None


def processes(settings: Settings, prefix: str, node: dict[str, Any]) -> list[dict[str, Any]]:
    """The processes that use the node's GPUs, as agent.processes.processes() has them: NVML's, from the agent that `node` is
    from; without one, those on the account pages of containers."""
    if node["agent"]["state"] != "none":
        data = fetch(settings, prefix, "/api/processes")
        found = data.get("processes") if isinstance(data, dict) else None
        if isinstance(found, list):
            return found
    return accounted(named.snapshot(settings))


def told(settings: Settings, prefix: str) -> list[dict[str, Any]]:
    """The last events, oldest first, as the agent tells them to everybody (agent/serve/recent.py); none without an agent."""
    data = fetch(settings, prefix, "/api/events")
    try:
        # "events" first: it has the order of those with the same time.
        parts = (e for part in ("events", "refused") for e in reversed(data[part]))
        found = {(e["at"], e["event"], e["id"], e["text"]): {**e, "name": e["container"]} for e in parts}
        return sorted(found.values(), key=lambda e: float(e["at"]))
    except (TypeError, ValueError, LookupError):  # an agent of before, or another program
        return []


def words(event: dict[str, Any]) -> str:
    """An event of the log, or one that the agent has put in words."""
    return str(event["text"]) if "text" in event else text_of(event)


def fetch(settings: Settings, prefix: str, path: str) -> Any:
    """The JSON that whoever listens on the agent's address has at this path; None if there is none."""
    if os.geteuid() == 0 and not agent_runs(settings):
        return None  # another program may listen there, which must not get the agent's token, nor be believed
    try:
        given = whereabouts.used(settings.state_dir, options.load(prefix))
        if given.address == "none":
            return None
        token = options.token(given)
        host, port = options.split(given.address)
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        listener = socket.create_connection((host, port), SECONDS)
    except (OSError, ValueError, GhError):
        return None
    import http.client  # a fifth of the start of commands that find no agent

    connection = http.client.HTTPConnection(host, port)
    connection.sock = listener
    try:
        credential = base64.b64encode(f"gpu-hook:{token}".encode()).decode()
        connection.request("GET", path, headers={"Authorization": f"Basic {credential}"} if token else {})
        answer = connection.getresponse()
        return json.loads(answer.read(MAX)) if answer.status == 200 else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def alone(settings: Settings) -> dict[str, Any]:
    """The node's state from the ledger and account pages: without NVML's figures and findings."""
    inventory: Inventory | None = None
    problems = {}
    try:
        inventory = cache.load(settings)
    except GhError as e:
        problems["inventory"] = str(e)
    grants = {grant.key: grant for grant in named.snapshot(settings)}
    watched = {}
    for key, grant in grants.items():
        watched[key] = Watched()
        for part in grant.shares:
            watched[key].set_gate(part.uuid, read_gate(settings.state_dir, part))
        watched[key].account = account.look(grant)
    for (key, uuid), size in waiting(grants).items():
        watched[key].waits[uuid] = size
    status = {"state": "none", "problems": problems, "nvml": "not asked", "state_dir": settings.state_dir}
    return view(inventory, grants, {}, watched, (), {}, status)


def waiting(grants: dict[str, Grant]) -> dict[tuple[str, str], int]:
    """The bytes of an allocation that waits for room, by (the grant's key, the GPU's UUID). A process that was killed while it
    waited has left its word on the page, so the number of tries must change."""
    first = {key: account.waiting(grant) for key, grant in grants.items()}
    first = {key: words for key, words in first.items() if any(size for size, _ in words)}
    if first:
        time.sleep(TRIES)
    return {
        (key, share.uuid): now[0]
        for key, words in first.items()
        for share, before, now in zip(grants[key].shares, words, account.waiting(grants[key]), strict=False)
        if now[0] and now[1] != before[1]
    }
