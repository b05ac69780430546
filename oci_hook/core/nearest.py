"""The known word that somebody most likely meant."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MOST = 40  # characters that are compared; the work grows with their square, and tenants choose the words


def distance(one: str, other: str) -> int:
    """The number of characters missing, added, changed, or swapped with their neighbour (optimal string alignment)."""
    one, other = one[:MOST], other[:MOST]
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, a in enumerate(one):
        row = [i + 1]
        for j, b in enumerate(other):
            cost = min(last[j + 1] + 1, row[j] + 1, last[j] + (a != b))
            if i and j and a == other[j - 1] and b == one[i - 1]:
                cost = min(cost, before[j - 1] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]


def nearest(word: str, known: "Iterable[str]") -> str:
    """The known word that is nearest to `word`; "" if none is near. Case, `-`, `_` and `.` make no difference."""
    folded = fold(word)
    best, found = max(1, len(folded) // 3) + 1, ""
    for name in known:
        if abs(len(fold(name)) - len(folded)) < best and (far := distance(folded, fold(name))) < best:
            best, found = far, name
    return found


def fold(word: str) -> str:
    """A word without what people get wrong in spelling it: case and separators."""
    return word[: 4 * MOST].lower().replace("-", "").replace("_", "").replace(".", "").replace(" ", "")
