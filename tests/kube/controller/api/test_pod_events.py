"""Events: one object for repetitions, a bounded rate, bounded memory."""

import re

import pytest

from oci_hook.kube.controller.api.pod_events import BURST, MOST_KNOWN, REPEAT, About, EventBook

ABOUT = About("ns", "p", "u")


def test_a_repeated_event_is_one_object_with_a_count() -> None:
    book = EventBook()
    first = book.add(ABOUT, "R", "m", True, 0, "t0")
    assert first and first[0] == "POST" and first[2]["count"] == 1 and first[2]["type"] == "Warning"
    assert [book.add(ABOUT, "R", "m", True, 1 + n, "t1") for n in range(9)] == [None] * 9
    again = book.add(ABOUT, "R", "m", True, REPEAT + 1, "t2")
    assert again == ("PATCH", f"{first[1]}/{first[2]['metadata']['name']}", {"count": 11, "lastTimestamp": "t2"})


def test_events_are_limited_in_rate_and_memory() -> None:
    book = EventBook()
    written = [book.add(About("ns", f"p{n}", f"u{n}"), "R", "m", True, 1, "t") for n in range(2 * MOST_KNOWN)]
    assert sum(w is not None for w in written) == BURST and book.dropped == 2 * MOST_KNOWN - BURST
    assert len(book._known) <= MOST_KNOWN
    assert book.add(About("ns", "late", "x"), "R", "m" * 9999, True, 2, "t")[2]["message"] == "m" * 1000  # type: ignore[index]


@pytest.mark.parametrize("name", ["p", "a" * 199 + "-b", "a" * 199 + ".b", "a" * 198 + "--b", "a" * 253])
def test_an_event_of_a_pod_with_a_long_name_has_a_name_that_kubernetes_takes(name: str) -> None:
    made = EventBook().add(About("ns", name, "u"), "R", "m", True, 0, "t0")
    assert made is not None
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", made[2]["metadata"]["name"])
