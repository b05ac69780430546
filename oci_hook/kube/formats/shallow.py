"""Reads JSON of any depth. A tenant may nest thousands of levels in its objects (metadata.managedFields, the configuration of a
ResourceClaim), and the decoders raise RecursionError at some hundred. Deep values are replaced by null, since we read none of them.
Pure."""

import json
import re
from typing import Any

MOST = 64  # levels; the fields of an object that we read have fewer than 16
# A run of brackets is one match: a tenant's object may have half a million brackets.
TOKENS = re.compile(rb'(?P<keys>(?:\{"[^"\\]*":)+)|(?P<close>[}\]]+)|(?P<open>[{\[])|"[^"\\]*(?:\\.[^"\\]*)*"')


def loads(text: bytes) -> Any:
    """Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(shallow(text))


def shallow(text: bytes) -> bytes:
    """Replaces each object and list deeper than MOST by null. Raises ValueError."""
    parts: list[bytes] = []
    depth = kept = 0
    for found in TOKENS.finditer(text):
        start, count = found.start(), 1
        if found.lastgroup == "close":
            count = found.end() - start
            if depth > MOST >= depth - count:
                parts.append(b"null")
                kept = start + depth - MOST
            depth -= count
        elif found.lastgroup is not None:
            if found.lastgroup == "keys":
                count = found.group().count(b'":')
            if depth <= MOST < depth + count:
                for _ in range(MOST - depth):
                    start = text.index(b'":', start) + 2
                parts.append(text[kept:start])
            depth += count
    if depth > MOST:
        raise ValueError("the JSON ends too early")
    return b"".join([*parts, text[kept:]])
