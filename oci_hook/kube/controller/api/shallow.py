"""Decodes JSON of any depth. A tenant may nest thousands of levels in its objects (metadata.managedFields), and the decoders raise
RecursionError at some hundred. Deep values are replaced by null, since we read none of them. Pure."""

import re
from typing import Any, Protocol

import msgspec

MOST = 64  # levels; the fields of a pod that we read have fewer than 16
# A run of brackets is one match: a tenant's object may have half a million brackets.
TOKENS = re.compile(rb'(?P<keys>(?:\{"[^"\\]*":)+)|(?P<close>[}\]]+)|(?P<open>[{\[])|"[^"\\]*(?:\\.[^"\\]*)*"')


class Decoder(Protocol):
    def decode(self, buf: bytes, /) -> Any: ...


ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def decode(text: bytes, decoder: Decoder = ANY) -> Any:
    """Raises msgspec.DecodeError."""
    try:
        return decoder.decode(text)
    except RecursionError:
        return decoder.decode(shallow(text))


def shallow(text: bytes) -> bytes:
    """Replaces each object and list deeper than MOST by null."""
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
        raise msgspec.DecodeError("the JSON ends too early")
    return b"".join([*parts, text[kept:]])
