"""Events: one object for repetitions, a bounded rate, bounded memory."""

from oci_hook.kube.controller.api.events import BURST, MOST_KNOWN, REPEAT, About, EventBook

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
