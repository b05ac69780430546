"""The node's current state for `top` and `why`: from the agent if one runs, else from the ledger and account pages."""

import json
import os
import time
from typing import Any

from oci_hook.agent.serve import whereabouts
from oci_hook.agent.serve.view import view
from oci_hook.agent.watched import Watched
from oci_hook.cli import named
from oci_hook.config.settings import Settings
from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Inventory
from oci_hook.core.layout import AGENT_LOCK, AGENT_SOCKET
from oci_hook.errors import GhError
from oci_hook.ledger import inventory as cache
from oci_hook.ledger.slot_files import read_gate
from oci_hook.linux import unix_socket
from oci_hook.observe import account
from oci_hook.observe.event_text import text_of
from oci_hook.observe.processes import accounted

SECONDS = 2.0  # to wait for the agent's answer
TRIES = 0.3  # seconds in which an allocation that waits tries again (LONGEST_WAIT_MS of shim/memory/charge.c)
NOT_BACK = "no agent runs to bring it back: start one (`gpu-hook agent`), or run `gpu-hook resume {}`"
NO_MAKER = "no agent runs to make it; start one by `gpu-hook agent`"
MAX = 16 << 20  # bytes of its answer


def node(settings: Settings) -> dict[str, Any]:
    """The form of agent.view.view(); agent.state is "none" if no agent of this install answers. Raises NodeError GH-303."""
    return ask(settings) or alone(settings)


def agent_runs(settings: Settings) -> bool:
    """True if an agent of this install runs, also one that cannot be asked. Only root can see it."""
    return whereabouts.holder(f"{settings.state_dir}/{AGENT_LOCK}") > 0


def ask(settings: Settings) -> dict[str, Any] | None:
    """The answer of this install's agent; None if there is none."""
    data = fetch(settings, "/api/node")
    if not isinstance(data, dict) or not isinstance(data.get("agent"), dict) or not {"containers", "gpus"} <= set(data):
        return None
    return data


def processes(settings: Settings, node: dict[str, Any]) -> list[dict[str, Any]]:
    """The processes that use the node's GPUs, as agent.processes.processes() has them: NVML's, from the agent that `node` is
    from; without one, those on the account pages of containers."""
    if node["agent"]["state"] != "none":
        data = fetch(settings, "/api/processes")
        found = data.get("processes") if isinstance(data, dict) else None
        if isinstance(found, list):
            return found
    return accounted(named.snapshot(settings))


def told(settings: Settings) -> list[dict[str, Any]]:
    """The last events, oldest first, as the agent tells them to everybody (agent/serve/recent.py); none without an agent."""
    data = fetch(settings, "/api/events")
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


def fetch(settings: Settings, path: str) -> Any:
    """The JSON that the agent has at this path; None if none runs, or if it does not tell this user. Nobody else can answer in its
    place, and nobody makes us wait for longer than SECONDS."""
    end = time.monotonic() + SECONDS
    data = b""
    try:
        owner = os.stat(settings.state_dir).st_uid
        with unix_socket.connect(settings.state_dir + AGENT_SOCKET, owner, SECONDS) as s:
            s.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            while (part := s.recv(1 << 16)) and len(data) < MAX:
                data += part
                s.settimeout(max(0.001, end - time.monotonic()))
        head, _, body = data.partition(b"\r\n\r\n")
        return json.loads(body) if head.split(b" ", 2)[1] == b"200" else None
    except (OSError, ValueError, LookupError):
        return None


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
