"""Kubernetes' quantities as whole numbers, or as thousandths.

The API server rewrites them into its shortest form: what was applied as 2000 comes back as 2k.
"""

import functools

from oci_hook.core.quantity import read


def whole(text: str) -> int:
    """The number. Raises ValueError, also for a fraction; its message is to follow the text."""
    value, scale = read(text)
    if scale >= 0:
        return value * int(10**scale)
    if value % 10**-scale:
        raise ValueError("is not a whole number")
    return value // int(10**-scale)


@functools.lru_cache(4096)  # most pods of a cluster ask for the same few amounts
def milli(text: str) -> int:
    """The number of thousandths, rounded up. Raises ValueError as `whole`."""
    value, scale = read(text)
    return value * int(10 ** (scale + 3)) if scale >= -3 else -(-value // int(10 ** (-scale - 3)))


def plain(amount: object) -> str:
    """The amount of a resource as plain digits for our own parsers. Text that is no whole number stays, so that their error shows
    what the user wrote. Kubernetes reads null as 0."""
    text = "0" if amount is None else str(amount)
    try:
        return str(whole(text))
    except ValueError:
        return text
