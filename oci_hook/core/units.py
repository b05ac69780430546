"""Parses text that a tenant wrote into bounded numbers. Each function but `natural` raises ValueError with the words to
put after the value in a message.

Only ASCII digits count: no sign, blank, exponent, leading zero or other digits, so that a number has one spelling and
int() never gets more than a few characters.
"""

MIB = 1 << 20  # bytes
DIGITS = frozenset("0123456789")
MAX_MEMORY_MIB = 1 << 24  # 16 TiB: beyond any GPU, and (in bytes) far within the policy page's 64 bits
SIZES = {"Mi": 1, "Gi": 1 << 10, "Ti": 1 << 20}
DURATIONS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
SIZE_HELP = "write 4Gi, 512Mi, 2048 (MiB) or 30%"


class OutOfBounds(ValueError):
    """The text is a number, but out of bounds."""


def show(value: object) -> str:
    """A value as it stands in a message: quoted, escaped, and cut to 45 characters to leave room for the advice."""
    if not isinstance(value, str):
        return f"of type {type(value).__name__}"
    shown = ascii(value[:45])
    return shown if len(value) <= 45 and len(shown) <= 47 else f"{shown[:43]}..."


def integer(text: str, low: int, high: int) -> int:
    """A whole number from low to high."""
    if not text or not DIGITS.issuperset(text) or (text[0] == "0" and text != "0"):
        raise ValueError(f"is not a whole number from {low} to {high}")
    if len(text) > 9 or not low <= int(text) <= high:
        raise OutOfBounds(f"is not within {low} to {high}")
    return int(text)


def natural(text: str) -> int:
    """The number that these digits are; 0 for any other text, and for more than 9 digits."""
    return int(text) if text and DIGITS.issuperset(text) and len(text) <= 9 else 0


def percent(text: str) -> int:
    """`30` or `30%`: 1..100."""
    try:
        return integer(text[:-1] if text.endswith("%") else text, 1, 100)
    except OutOfBounds:
        raise
    except ValueError as e:
        meant = _number(text, 100) if text.startswith("0.") else _number(text.removesuffix("%").rstrip(" "), 1)
        raise ValueError(f"{e}; did you mean {meant}?" if 1 <= meant <= 100 else str(e)) from None


def size(text: str) -> int:
    """`4Gi`, `512Mi`, `2048`: MiB. Decimal units are refused, because "4G" of a GPU is used for two different sizes."""
    factor = SIZES.get(text[-2:], 0)
    try:
        return integer(text[:-2] if factor else text, 1, MAX_MEMORY_MIB // (factor or 1)) * (factor or 1)
    except OutOfBounds:
        raise OutOfBounds("is not within 1Mi to 16Ti") from None
    except ValueError:
        meant = _meant(text)
        raise ValueError(f"is not a size; {f'did you mean {meant}?' if meant else SIZE_HELP}") from None


def _meant(text: str) -> str:
    """The size that was probably meant; "" if nobody can tell."""
    number = text.rstrip("bBiIkKmMgGtT ")
    unit = text[len(number) :].strip(" ").lower().removesuffix("b").removesuffix("i")
    bare = "." in number and not unit  # a fraction: of 1 GiB, or of the GPU
    mib = _number(number, SIZES["Gi"] if bare else SIZES.get(f"{unit.upper()}i", 0))
    meant = [f"{mib >> 10}Gi" if mib % 1024 == 0 else f"{mib}Mi"] if 1 <= mib <= MAX_MEMORY_MIB else []
    if bare and 1 <= (share := _number(number, 100)) <= 100:
        meant.append(f"{share}%")
    return " or ".join(meant)


def _number(text: str, factor: int) -> int:
    """Digits with at most one point, times the factor; 0 for any other text, or where the product is not whole."""
    whole, _, part = text.partition(".")
    if not whole or not DIGITS.issuperset(whole + part) or len(text) > 9:
        return 0
    product = float(text) * factor
    return round(product) if abs(product - round(product)) < 0.001 else 0


def duration(text: str) -> int:
    """`300us`, `100ms`, `2s`: nanoseconds, from 1us to 4s (the GPU page has 32 bits for a time)."""
    number = text.rstrip("unms")
    factor = DURATIONS.get(text[len(number) :])
    if factor is None:
        raise ValueError("is not a time; write 300us, 100ms or 2s")
    try:
        return integer(number, 1, 4 * DURATIONS["s"] // factor) * factor
    except OutOfBounds:
        raise OutOfBounds("is not within 1us to 4s") from None
    except ValueError:
        raise ValueError("is not a time; write 300us, 100ms or 2s") from None


def memory(text: str) -> tuple[str, int]:
    """A size, or a percentage of a GPU: ("mib", n) or ("percent", n)."""
    return ("percent", percent(text)) if text.endswith("%") else ("mib", size(text))


def names(text: str) -> tuple[str, ...]:
    """The items of a comma list in their order, without the blanks around them and without repeats; none may be empty."""
    items = [item.strip(" ") for item in text.split(",")]
    if not all(items):
        raise ValueError("has an empty item")
    return tuple(dict.fromkeys(items))
