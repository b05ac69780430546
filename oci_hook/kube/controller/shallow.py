"""Decodes JSON however deep it is. A tenant may write some thousand levels into its objects (metadata.managedFields), and the
decoders raise RecursionError at some hundred; what is that deep is nothing that we read, so it becomes null. Pure."""

import re
from typing import Any, Protocol

import msgspec

MOST = 64  # levels; those of a pod that we read are below 16
# Runs of brackets are one match each: a tenant's object may have half a million.
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
    """The same JSON, with null for each object and list that is deeper than MOST."""
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
