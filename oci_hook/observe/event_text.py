"""Events of the node (ledger/events.py) in words."""

from typing import Any

from oci_hook.core.words import cut, limit, size


def text_of(event: dict[str, Any]) -> str:
    """One line without the time, the kind and the container's name. What tenants wrote is in it as it is."""
    return TEXT_OF.get(event["event"], rest)(event)


def granted(event: dict[str, Any]) -> str:
    shares = event.get("shares") or ()
    booked = event.get("booked_mib") or [mib for _, mib, _ in shares]
    words = [
        f"{gpu(uuid)}: {limit(int(mib), int(part))}" + (f", compute {compute}%" if compute else "")
        for (uuid, mib, compute), part in zip(shares, booked, strict=True)
    ]
    return f"{'; '.join(words) or 'driver files only'} (took {float(event.get('seconds', 0)) * 1000:.1f} ms)"


def refused(event: dict[str, Any]) -> str:
    return "; ".join(str(text) for text in event.get("messages") or ())


def gpu(uuid: object) -> str:
    """A UUID, shortened for people; --json has all of it."""
    return cut(str(uuid))


def ended(event: dict[str, Any]) -> str:
    peak = event.get("peak_mib")
    return "its share was released" + (f"; the agent saw it use at most {size(peak)}" if isinstance(peak, int) else "")


def released(event: dict[str, Any]) -> str:
    return "its share, by `gpu-hook release --force`; what of it still runs is unaccounted"


def finding(event: dict[str, Any]) -> str:
    on = f" on {gpu(event['uuid'])}" if event.get("uuid") else ""
    return f"{event.get('kind')}{on}: {event.get('evidence')}; {event.get('action')}"


def rest(event: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in event.items() if k not in ("at", "event", "id", "name"))


def changed(event: dict[str, Any]) -> str:
    """An event that was cut short has no `changes`."""
    return "; ".join(map(str, event["changes"])) if isinstance(event.get("changes"), list) else rest(event)


def suspended(event: dict[str, Any]) -> str:
    whom = f", for {cut(str(event['lent_to']))}" if event.get("lent_to") else ""
    return f"its GPU memory is in the host's{whom}: {size(int(event.get('host_mib') or 0))} ({event.get('seconds')} s)"


def resumed(event: dict[str, Any]) -> str:
    done = "what was cut off has been undone" if event.get("cut_off") else "its GPU memory is back on its GPUs"
    return f"{done} ({event.get('seconds')} s)"


def not_moved(event: dict[str, Any]) -> str:
    return str(event.get("why"))


TEXT_OF = {
    "suspended": suspended,
    "resumed": resumed,
    "not-suspended": not_moved,
    "not-resumed": not_moved,
    "granted": granted,
    "changed": changed,
    "refused": refused,
    "unclear": refused,
    "ended": ended,
    "released": released,
    "finding": finding,
    "finding-cleared": finding,
}
