"""HMAC-SHA256 (RFC 2104) from the interpreter's own SHA-256: `hmac` and `hashlib` load OpenSSL, which takes 4 ms."""

from _operator import _compare_digest as same

try:
    from _sha256 import sha256  # type: ignore[import-not-found]  # CPython up to 3.11
except ImportError:
    try:
        from _sha2 import sha256  # type: ignore[import-not-found]  # CPython 3.12 and newer
    except ImportError:
        from hashlib import sha256

__all__ = ["hexdigest", "same"]

BLOCK = 64  # bytes of a block of SHA-256


def hexdigest(key: bytes, data: bytes) -> str:
    """64 lower-case hex digits. `same` compares two of them in a time that does not depend on them."""
    if len(key) > BLOCK:
        key = sha256(key).digest()
    key = key.ljust(BLOCK, b"\0")
    inner = sha256(bytes([byte ^ 0x36 for byte in key]) + data).digest()
    found: str = sha256(bytes([byte ^ 0x5C for byte in key]) + inner).hexdigest()
    return found
