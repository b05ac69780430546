"""Judges the two runs of a case. Nothing here runs anything."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.clients.frame import Case, Known, Steps

MISSING = "(no such step)"


@dataclass(frozen=True)
class Verdict:
    """What the page says of a case, and what is wrong with it."""

    steps: int
    succeeded: int  # on both sides
    limits: int
    known: tuple[Known, ...]
    faults: tuple[str, ...]

    @property
    def stopped(self) -> int:
        """Steps that fail or are skipped on both sides alike."""
        return self.steps - self.succeeded - len(self.known)


def tried(value: object) -> bool:
    """A step that did what it tried."""
    return not str(value).startswith(("failed", "skipped")) and value != MISSING


def judge(client: str, case: Case, bare: Steps, share: Steps, differences: Sequence[Known]) -> Verdict:
    known = {d.step: d for d in differences if (d.client, d.case) == (client, case.name)}
    faults, seen, succeeded = [], [], 0
    names = list(dict.fromkeys([*bare, *share]))
    for name in names:
        b, s = bare.get(name, MISSING), share.get(name, MISSING)
        if name in case.limits:
            limit = case.limits[name]
            if limit.holds(b, s):
                succeeded += 1
            else:
                faults.append(
                    f"{name}: limits are {b!r} bare and {s!r} on the share, expected {_told(limit.bare, limit.share)}"
                )
        elif name in known:
            seen.append(known[name])
            if (b, s) != (known[name].bare, known[name].share):
                faults.append(f"{name}: a known difference, but now {b!r} bare and {s!r} on the share")
        elif b != s or type(b) is not type(s):
            faults.append(f"{name}: {b!r} bare, {s!r} on the share")
        else:
            succeeded += tried(b)
    faults += [f"{name}: this step with a limit did not come" for name in case.limits if name not in names]
    faults += [f"{name}: a known difference in a step that did not come" for name in known if name not in names]
    if succeeded < case.least:
        faults.append(f"only {succeeded} steps succeeded, expected at least {case.least}")
    return Verdict(len(names), succeeded, len(case.limits), tuple(seen), tuple(faults))


def _told(*expected: object) -> str:
    return " and ".join(e.__doc__ or e.__name__ if callable(e) else repr(e) for e in expected)  # type: ignore[attr-defined]
