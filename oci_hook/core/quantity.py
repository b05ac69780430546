"""Kubernetes' quantities: 2k, 3e3, 4Ki, 1500m.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/ has the grammar.
"""

from oci_hook.core.units import DIGITS

DECIMAL = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18, "m": -3, "u": -6, "n": -9}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
MAX_TEXT = 40


def read(text: str) -> tuple[int, int]:
    """(value, scale): the number is value times 10 to the power of scale. Raises ValueError; its message is to follow the text."""
    sign = -1 if text[:1] == "-" else 1
    rest = text[1:] if text[:1] in ("+", "-") else text
    number = rest.rstrip("KMGTPEikmunpe")
    suffix = rest[len(number) :]
    scale = 0
    if "e" in number or "E" in number:
        number, _, exponent = number.replace("E", "e").partition("e")
        power = exponent[1:] if exponent[:1] in ("+", "-") else exponent
        if not _digits(power) or suffix or len(exponent) > 3:
            raise ValueError("is not a quantity")
        scale = int(exponent)
    integer, _, fraction = number.partition(".")
    if len(text) > MAX_TEXT or not _digits(integer + fraction):
        raise ValueError("is not a quantity")
    value = int(integer + fraction)
    if suffix in BINARY:
        value <<= BINARY[suffix]
    elif suffix in DECIMAL:
        scale += DECIMAL[suffix]
    else:
        raise ValueError("is not a quantity")
    return sign * value, scale - len(fraction)


def rounded_up(text: str, unit: int) -> int:
    """The number in units of so many, rounded up. Raises ValueError as `read`."""
    value, scale = read(text)
    return -(-value * int(10 ** max(scale, 0)) // (unit * int(10 ** max(-scale, 0))))


def _digits(text: str) -> bool:
    return bool(text) and DIGITS.issuperset(text)
