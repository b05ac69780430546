"""JSON for the hot path: the C core of the standard `json` package without its Python shell.

`import json` takes longer than Python's own start, since it loads `re`; `_json`, which does its work, takes 0.4 ms.
`_json` is an accelerator and no API: an interpreter without it gets the package itself.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _no_constant(name: str) -> "Any":
    raise ValueError(f"{name} is not JSON (RFC 8259)")


class _Context:
    strict = True
    object_hook = None
    object_pairs_hook: "Any" = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_no_constant)
    memo: "dict[str, str]" = {}


def _unique(pairs: "list[tuple[str, Any]]") -> "dict[str, Any]":
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"an object has a key twice: {key[:60]!r}")
            seen.add(key)
    return found


class _UniqueContext(_Context):
    object_pairs_hook = staticmethod(_unique)


def _no_default(value: object) -> "Any":
    raise TypeError(f"{type(value).__name__} is not JSON")


try:
    import _json

    _scan = _json.make_scanner(_Context)  # type: ignore[arg-type]  # it reads six attributes, of any class
    _scan_unique = _json.make_scanner(_UniqueContext)  # type: ignore[arg-type]
    _encode = _json.make_encoder(None, _no_default, _json.encode_basestring_ascii, None, ":", ",", False, False, False)

    def _loads(data: bytes, scan: "Any") -> "Any":
        text = data.decode("utf-8")
        start = len(text) - len(text.lstrip(" \t\r\n"))
        try:
            value, end = scan(text, start)
        except (StopIteration, SystemError):
            # CPython < 3.12 reports a syntax error through json.decoder, and as SystemError while that is not loaded.
            import json

            json.loads(text)
            raise ValueError("not JSON") from None
        except RecursionError:
            raise ValueError("JSON is nested too deep") from None
        except ValueError as e:
            if "int_max_str_digits" in str(e):  # CPython 3.11: its words are for programmers
                raise ValueError("a number has thousands of digits") from None
            raise
        if text[end:].strip(" \t\r\n"):
            raise ValueError(f"text after the JSON value at character {end}")
        return value

    def loads(data: bytes) -> "Any":
        """One JSON text in UTF-8. Raises ValueError, also for trailing text, NaN, and nesting too deep to parse."""
        return _loads(data, _scan)

    def loads_unique(data: bytes) -> "Any":
        """Parses JSON like loads; an object with a key twice is a ValueError, too."""
        return _loads(data, _scan_unique)

    def dumps(value: "Any") -> str:
        """Compact ASCII JSON. Raises TypeError for what is not JSON, ValueError for NaN."""
        return "".join(_encode(value, 0))

except ImportError:  # not CPython
    import json

    def _parse(data: bytes, pairs: "Any") -> "Any":
        try:
            return json.loads(data.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=pairs)
        except RecursionError:
            raise ValueError("JSON is nested too deep") from None

    def loads(data: bytes) -> "Any":
        return _parse(data, None)

    def loads_unique(data: bytes) -> "Any":
        return _parse(data, _unique)

    def dumps(value: "Any") -> str:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
