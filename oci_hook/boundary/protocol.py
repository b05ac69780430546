"""Messages between the server, the helper and their callers: one JSON object per packet.

Requests (STATE/boundary.sock, SOCK_SEQPACKET, root alone; at most REQUEST_MAX bytes):
    {"do": "set", "grant": KEY, "pid": PID}     a container that is being made: its limits, set and read back
    {"do": "change", "grant": KEY, "limits": [[UUID, soft, hard], ...]}     of one that runs (bytes)
    {"do": "check", "grant": KEY}     make them again what the grant says: "repaired" says whether they were not
    {"do": "clear", "grant": KEY, "force": BOOL}     of one that has ended; with force also of one that runs
    {"do": "end", "grant": KEY}     of one that is about to end: its soft limits become 0 while its cgroup exists
    {"do": "get", "grant": KEY}     "figures": [[UUID, cgroup, soft, hard, used], ...]
    {"do": "list"}     "grants": the keys that have a record
    {"do": "sweep"}     clear what no grant has any more: "grants": their keys
    {"do": "leaks"}     "left": [[UUID, cgroup, bytes], ...] that the driver still sets aside for cgroups that are gone
Answers: {"ok": true, ...} or {"ok": false, "error": LINE, "code": what NVML answered, or 0}.
launcher/boundary_client.c writes the first form, "clear" and "end", and looks only for OK at the answer's beginning.
"""

import socket
import time

from oci_hook.boundary.nvml_limits import LimitError
from oci_hook.core.boundary import Limit
from oci_hook.core.layout import BOUNDARY_SOCKET
from oci_hook.ledger.store import valid_key
from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oci_hook.boundary.keeper import Keeper

    Packet = dict[str, Any]

REQUEST_MAX = 8192
ANSWER_MAX = 1 << 17
OK = b'{"ok":true'
SECONDS = 3.0  # that a caller waits for the server; an operation takes about a millisecond


class NoServer(Exception):
    """Nobody answers at the socket, or not in time."""


def path(state_dir: str) -> str:
    return f"{state_dir}/{BOUNDARY_SOCKET}"


def ask(state_dir: str, request: "Packet", seconds: float = SECONDS) -> "Packet":
    """The server's answer. Raises NoServer, LimitError with what the server could not do."""
    deadline = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as s:
        try:
            s.settimeout(seconds)
            s.connect(path(state_dir))
            s.send(encode(request))
            s.settimeout(max(0.001, deadline - time.monotonic()))
            data = s.recv(ANSWER_MAX)
        except OSError as e:
            raise NoServer(str(e)) from None
    if not data:
        raise NoServer("the server went away")
    return result(data)


def result(data: bytes) -> "Packet":
    """The answer in these bytes. Raises LimitError for a failure."""
    try:
        answer = fastjson.loads(data)
        if answer["ok"] is True:
            return dict(answer)
        raise LimitError(str(answer["error"])[:300], int(answer.get("code", 0)))
    except (ValueError, TypeError, KeyError):
        raise LimitError("an answer that cannot be read") from None


def encode(packet: "Packet") -> bytes:
    return fastjson.dumps(packet).encode()


def answer(keeper: "Keeper", data: bytes) -> bytes:
    """Do what a request says; the answer's bytes. Never raises."""
    try:
        request = fastjson.loads(data)
        return encode({"ok": True, **_do(keeper, str(request["do"]), request)})
    except LimitError as e:
        return encode({"ok": False, "error": str(e)[:300], "code": e.code})
    except (ValueError, TypeError, KeyError, IndexError) as e:
        return encode({"ok": False, "error": f"not a request ({type(e).__name__})"})
    except (OSError, ArithmeticError, RecursionError) as e:
        return encode({"ok": False, "error": f"{type(e).__name__}: {e}"[:300]})


def _do(keeper: "Keeper", what: str, request: "Packet") -> "Packet":
    if what == "list":
        return {"grants": keeper.keys()}
    if what == "sweep":
        return {"grants": keeper.sweep()}
    if what == "leaks":
        return {"left": [[leak.uuid, leak.cgroup, leak.size] for leak in keeper.leaks()]}
    key = str(request["grant"])
    if not valid_key(key):
        raise LimitError(f"{key[:60]!r} is no grant's key")
    if what == "set":
        return {"limited": keeper.start(key, int(request["pid"]))}
    if what == "change":
        limits = tuple(Limit(str(uuid), int(soft), int(hard)) for uuid, soft, hard in request["limits"])
        keeper.change(key, limits)
        return {}
    if what == "check":
        return {"repaired": keeper.check(key)}
    if what == "clear":
        keeper.clear(key, request.get("force") is True)
        return {}
    if what == "end":
        keeper.end(key)
        return {}
    if what == "get":
        return {"figures": [[uuid, cgroup, f.soft, f.hard, f.used] for uuid, cgroup, f in keeper.figures(key)]}
    raise ValueError(what)
