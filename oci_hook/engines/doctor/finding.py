"""The result of one check of `gpu-hook doctor`."""

from dataclasses import dataclass

EDIT = "${EDITOR:-vi}"  # begins the fix of what only a person can decide
OK, NOTE, WARN, FAIL = STATES = ("ok", "note", "warn", "fail")


@dataclass(frozen=True)
class CheckResult:
    """One result.

    check: what was checked. state: ok; note (for information); warn (works with limits, or not for everyone); fail
    (containers will not start, or not as they should). code: of errors.CODES, "" if nothing is wrong. fix: the command
    that fixes it, or "".
    """

    check: str
    state: str
    message: str
    code: str = ""
    fix: str = ""
