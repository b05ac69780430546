"""What every program of a case says: one line of JSON for each step."""

import json
from collections.abc import Callable
from typing import Any


def said(step: str, value: Any) -> None:
    print(json.dumps({"step": step, "is": value}), flush=True)


def outcome(step: str, work: Callable[[], Any]) -> Any:
    """Does it and says what came of it: its value where it is plain, `ok`, or the name and text of what it raised."""
    try:
        value = work()
    except Exception as e:
        said(step, f"failed: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}")
        return None
    said(step, value if isinstance(value, bool | int | float | str | list) else "ok")
    return value
