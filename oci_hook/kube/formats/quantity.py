"""Kubernetes' quantities (apimachinery, resource.Quantity: 2k, 3e3, 4Ki, 1500m) as whole numbers, or as thousandths.

The API server rewrites them into its shortest form: what was applied as 2000 comes back as 2k.
"""

import functools

SUFFIXES = {
    **{"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18, "m": -3, "u": -6, "n": -9},
}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
DIGITS = frozenset("0123456789")
MAX_TEXT = 40


def whole(text: str) -> int:
    """The number. Raises ValueError, also for a fraction; its message is to follow the text."""
    value, scale = _read(text)
    if scale >= 0:
        return value * int(10**scale)
    if value % 10**-scale:
        raise ValueError("is not a whole number")
    return value // int(10**-scale)


@functools.lru_cache(4096)  # most pods of a cluster ask for the same few amounts
def milli(text: str) -> int:
    """The number of thousandths, rounded up. Raises ValueError as `whole`."""
    value, scale = _read(text)
    return value * int(10 ** (scale + 3)) if scale >= -3 else -(-value // int(10 ** (-scale - 3)))


def _read(text: str) -> tuple[int, int]:
    """(value, scale): the number is value times 10 to the power of scale."""
    sign = -1 if text[:1] == "-" else 1
    rest = text[1:] if text[:1] in ("+", "-") else text
    number = rest.rstrip("KMGTPEikmunpe")
    suffix = rest[len(number) :]
    scale = 0
    if "e" in number or "E" in number:
        number, _, exponent = number.replace("E", "e").partition("e")
        if not _digits(exponent.lstrip("+-")) or suffix or len(exponent) > 3:
            raise ValueError("is not a quantity")
        scale = int(exponent)
    integer, _, fraction = number.partition(".")
    if len(text) > MAX_TEXT or not _digits(integer + fraction):
        raise ValueError("is not a quantity")
    value = int(integer + fraction)
    if suffix in BINARY:
        value <<= BINARY[suffix]
    elif suffix in SUFFIXES:
        scale += SUFFIXES[suffix]
    else:
        raise ValueError("is not a quantity")
    return sign * value, scale - len(fraction)


def plain(text: str) -> str:
    """The quantity as plain digits for our own parsers. Text that is no whole number stays, so that their error shows what the
    user wrote."""
    try:
        return str(whole(text))
    except ValueError:
        return text


def _digits(text: str) -> bool:
    return bool(text) and DIGITS.issuperset(text)
