"""The node's last events, for the web page."""

from collections import deque
from collections.abc import Iterable
from math import isfinite
from typing import TYPE_CHECKING, Any

from oci_hook.ledger.events import full_name, short
from oci_hook.observe.event_log import Follower
from oci_hook.observe.event_text import text_of

if TYPE_CHECKING:
    from oci_hook.core.grant import Identity

MOST = 50
TEXT_MAX = 600


class Recent:
    """`read` the last events, newest first; refusals also by themselves, so that others do not push them out."""

    def __init__(self, state_dir: str) -> None:
        self.state_dir = state_dir
        self._log = Follower(state_dir, old=True)
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST)
        self._refused: deque[dict[str, Any]] = deque(maxlen=MOST)

    def read(self, living: "Iterable[Identity]" = ()) -> dict[str, list[dict[str, Any]]]:
        """Each event: at (Unix seconds), event (its kind), id (as engines show it), container (its name, else its id), text. A
        name that any event has, as its end has docker's, or one of these containers that live, is that of all with this id."""
        for event in self._log.read():
            if shown := as_shown(event):
                self._events.append(shown)
                if shown["event"] == "refused":
                    self._refused.append(shown)
        shown = {"events": self._events, "refused": self._refused}
        names = {short(who.id): name for who in living if (name := full_name(who))}
        names |= {
            e["id"]: e["container"] for part in shown.values() for e in part if e["id"] not in ("", e["container"])
        }
        return {
            key: [{**e, "container": names.get(e["id"], e["container"])} for e in reversed(part)]
            for key, part in shown.items()
        }


def as_shown(event: dict[str, Any]) -> dict[str, Any] | None:
    """None for an event that is damaged."""
    try:
        at, text = float(event["at"]), text_of(event)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    id = short(str(event.get("id", "")))[:256]
    who = str(event.get("name") or id)[:256]
    if not isfinite(at):
        return None
    return {"at": at, "event": event["event"][:64], "id": id, "container": who, "text": text[:TEXT_MAX]}
