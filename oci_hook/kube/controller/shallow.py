"""Decodes JSON however deep it is. A tenant may write some thousand levels into its objects (metadata.managedFields), and the
decoders raise RecursionError at some hundred; what is that deep is nothing that we read, so it becomes null. Pure."""

import re
from typing import Any, Protocol

import msgspec

MOST = 64  # levels; those of a pod that we read are below 16
TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]')


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
    for found in TOKEN.finditer(text):
        token = found.group()
        if token in b"{[":
            depth += 1
            if depth == MOST + 1:
                parts.append(text[kept : found.start()])
        elif token in b"}]":
            if depth == MOST + 1:
                parts.append(b"null")
                kept = found.end()
            depth -= 1
    if depth > MOST:
        raise msgspec.DecodeError("the JSON ends too early")
    return b"".join([*parts, text[kept:]])
