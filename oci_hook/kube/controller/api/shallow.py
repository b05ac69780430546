"""Decodes the API server's JSON of any depth (formats/shallow.py). Pure."""

from typing import Any, Protocol

import msgspec

from oci_hook.kube.formats.shallow import shallow


class Decoder(Protocol):
    def decode(self, buf: bytes, /) -> Any: ...


ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def decode(text: bytes, decoder: Decoder = ANY) -> Any:
    """Raises msgspec.DecodeError."""
    try:
        return decoder.decode(text)
    except RecursionError:
        pass
    try:
        return decoder.decode(shallow(text))
    except ValueError as e:
        raise msgspec.DecodeError(str(e)) from None
