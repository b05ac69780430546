"""One thing that was looked at."""

from dataclasses import dataclass

EDIT = "${EDITOR:-vi}"  # what only a person can decide
OK, NOTE, WARN, FAIL = STATES = ("ok", "note", "warn", "fail")


@dataclass(frozen=True)
class Finding:
    """state: ok; note (good to know); warn (works, or not for everybody); fail (containers will not start, or not as
    they should). code: of docs/reference/errors.md, "" where nothing is wrong. fix: the command that helps, or ""."""

    check: str
    state: str
    message: str
    code: str = ""
    fix: str = ""
