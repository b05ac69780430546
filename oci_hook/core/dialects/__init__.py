"""The systems whose words are understood, one table file each; `native` is our own and always on.

A table module has
  KEYS  annotation key (native: without our prefix) -> (wish, reader, implied wishes)
  ENV   environment variable -> key, for nodes that trust the environment
  SAME  pairs of keys whose system writes both for one share: in the environment the second is not read beside the first
To add a dialect, write its file and put its name into NAMES.
"""

NATIVE = "native"
NAMES = ("t9k",)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    Row = tuple[str, Callable[[str], object], dict[str, object]]


def table(name: str) -> "ModuleType":
    """The table module of a dialect, imported only where it is enabled. KeyError for an unknown name."""
    if name != NATIVE and name not in NAMES:
        raise KeyError(name)
    module: ModuleType = __import__(f"{__name__}.{name}", fromlist=["KEYS"])
    return module
