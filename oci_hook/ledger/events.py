"""What happened on this node: STATE/events, one JSON object per line; older ones in STATE/events.1.

The container path (refused, granted), the CLI (changed) and the agent write events; `gpu-hook events`, `why` and the
agent read them. An event is one write(2) to a file opened for appending, so no other writer can split it. A full disk,
or a line cut short by it, loses events and nothing else.
"""

import os
import time

from oci_hook.core.layout import EVENTS
from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from oci_hook.core.grant import Grant, Identity
    from oci_hook.core.request import Request
    from oci_hook.errors import Problem
    from oci_hook.oci.engine_name import Lists

MAX = 1 << 20  # bytes; a larger file becomes the older one, and that one is forgotten
LINE_MAX = 4096


def record(state_dir: str, event: str, **what: "Any") -> None:
    """Append one event with its time (Unix seconds). Never fails and never waits, so that no container does."""
    path = f"{state_dir}/{EVENTS}"
    try:
        head = {"at": round(time.time(), 3), "event": event}
        line = fastjson.dumps({**head, **what})
        if len(line) >= LINE_MAX:
            line = fastjson.dumps({**head, "id": str(what.get("id", ""))[:256], "cut": True})
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(path, flags, 0o600)
        try:
            st = os.fstat(fd)
            if st.st_size > MAX and os.stat(path).st_ino == st.st_ino:  # no other writer has just done it
                os.rename(path, path + ".1")
            os.write(fd, (line + "\n").encode())
        finally:
            os.close(fd)
    except (OSError, ValueError, TypeError):
        pass


def refused(
    state_dir: str,
    id: str,
    problems: "Sequence[Problem]",
    name: str = "",
    request: "Request | None" = None,
    pod_uid: str = "",
    bundle: str = "",
) -> None:
    """A container was refused. request: what it asked for, where that could be parsed. pod_uid: "" outside Kubernetes.
    bundle: "" where it is not known. Without a name, the engine's is recorded: with --rm, nobody knows it a moment later."""
    more: dict[str, Any] = {"uid": pod_uid[:64]} if pod_uid else {}
    if request is not None:
        from oci_hook.core.request_data import as_data

        more["request"] = as_data(request)
    name = name or engine_name(id, bundle)
    lines = [str(p) for p in problems[:5]]
    record(state_dir, "refused", id=id[:256], name=name[:256], codes=[p.code for p in problems], messages=lines, **more)


def engine_name(id: str, bundle: str, lists: "Lists | None" = None) -> str:
    """The engine's name of a container; "" if it has none that is found. lists: as of oci.engine_name.look."""
    from oci_hook.ledger.life import valid_id  # loaded here, since most containers are not refused
    from oci_hook.oci.engine_name import look

    try:
        return look(id, bundle, lists) if valid_id(id) else ""
    except MemoryError:
        return ""


def unclear(state_dir: str, id: str, problems: "Sequence[Problem]") -> None:
    """A container starts that seems to ask for a GPU in words that are not understood."""
    lines = [str(p) for p in problems[:5]]
    record(state_dir, "unclear", id=id[:256], codes=[p.code for p in problems], messages=lines)


def granted(state_dir: str, grant: "Grant", seconds: float) -> None:
    """A container got its share. seconds: how long gpu-hook took, without the start of Python."""
    shares = [[s.uuid, s.memory_mib, s.compute] for s in grant.shares]
    lent = any(s.request_mib for s in grant.shares)
    booked = {"booked_mib": [s.booked_mib for s in grant.shares]} if lent else {}
    name = full_name(grant.who)
    took = round(seconds, 6)
    record(state_dir, "granted", id=grant.who.id[:256], name=name, key=grant.key, shares=shares, seconds=took, **booked)


def moved(state_dir: str, event: str, grant: "Grant", **what: "Any") -> None:
    """A container was suspended or resumed, or that failed, or its share was released by force. what: further figures."""
    name, id = full_name(grant.who)[:256], grant.who.id[:256]
    record(state_dir, event, id=id, name=name, key=grant.key, **what)


def full_name(who: "Identity") -> str:
    """namespace/pod/container, without the parts that are not known."""
    return "/".join([part[:64] for part in (who.namespace, who.pod, who.container) if part])


def title(who: "Identity") -> str:
    """A container in a line for people: its name, else the one that its engine has for it, and its id as engines show it."""
    name, id = full_name(who) or engine_name(who.id, who.bundle), short(who.id)
    id = id if len(id) <= 64 else id[:64] + "…"
    said = f"{name} ({id})" if name and name != id else id
    return "".join(c if c.isprintable() else "?" for c in said)  # names come from tenants


def short(id: str) -> str:
    """The first twelve digits of an id of 64 hex digits, as engines show them; another id as it is."""
    return id[:12] if len(id) == 64 and all(c in "0123456789abcdef" for c in id) else id


def changed(state_dir: str, grant: "Grant", new: "Grant") -> None:
    """A share was changed while its container runs. Recorded are the MiB by GPU before and after, and in `changes` all
    differences as text."""
    before, after = ([[s.uuid, s.memory_mib] for s in g.shares] for g in (grant, new))
    changes = []
    for old, now in zip(grant.shares, new.shares, strict=True):
        words = [
            ("memory", f"{old.memory_mib} MiB", f"{now.memory_mib} MiB"),
            ("compute", f"{old.compute} %", f"{now.compute} %"),
            ("ceiling", f"{old.compute_limit} %", f"{now.compute_limit} %"),
        ]
        if old.request_mib or now.request_mib:
            words.append(("booked", f"{old.booked_mib} MiB", f"{now.booked_mib} MiB"))
        changes += [f"{old.uuid[:12]}: {what} {was} -> {is_}" for what, was, is_ in words if was != is_]
    terms = new.terms.data()
    changes += [f"{what} {was} -> {terms[what]}" for what, was in grant.terms.data().items() if was != terms[what]]
    if bool(grant.frozen) != bool(new.frozen):
        changes.append("its GPU work is stopped" if new.frozen else "its GPU work goes on")
    name, id = full_name(grant.who)[:256], grant.who.id[:256]
    record(state_dir, "changed", id=id, name=name, key=grant.key, before=before, after=after, changes=changes)
