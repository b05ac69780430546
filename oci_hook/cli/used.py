"""How much device memory a container uses now: read from its account page (docs/account-page.md), changing nothing.

The page belongs to the container: it is opened below the container's root without leaving it, read and not mapped, and
what it says is a number to show, never one to rely on.
"""

import os
import stat
import struct

from oci_hook.core.grant import Grant
from oci_hook.core.layout import ACCOUNT_FILE
from oci_hook.linux.openat2 import RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS, openat2
from oci_hook.node.life import start_time

# struct gh_account_page of shim/account_page.h
MAGIC = 0x3154434148474755
VERSION = 1
HEAD = struct.Struct("<QI")
CARDS_OFFSET = 1024
CARD_SIZE = 64
TOTAL = struct.Struct("<Q")
VALUE_SHIFT = 30
UNIT = 512
MIB = 1 << 20


def used_mib(grant: Grant) -> list[int | None]:
    """MiB in use per share, rounded up; None where the container tells nothing (not started, no CUDA yet, ended)."""
    unknown: list[int | None] = [None] * len(grant.shares)
    if grant.life.init is None or not grant.shares:
        return unknown
    try:
        page = read_page(*grant.life.init, CARDS_OFFSET + CARD_SIZE * len(grant.shares))
    except OSError:
        return unknown
    if len(page) < CARDS_OFFSET + CARD_SIZE * len(grant.shares) or HEAD.unpack_from(page) != (MAGIC, VERSION):
        return unknown
    totals = (TOTAL.unpack_from(page, CARDS_OFFSET + CARD_SIZE * i)[0] for i in range(len(grant.shares)))
    return [-(-(total >> VALUE_SHIFT) * UNIT // MIB) for total in totals]


def read_page(pid: int, start: int, size: int) -> bytes:
    """The first `size` bytes of the account page of the container whose init this is. Raises OSError."""
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if start_time(pid) != start:
            raise ProcessLookupError(pid)
        resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
        page = openat2(root, ACCOUNT_FILE, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, resolve)
    finally:
        os.close(root)
    try:
        if not stat.S_ISREG(os.fstat(page).st_mode):
            raise OSError("not a regular file")
        return os.pread(page, size, 0)
    finally:
        os.close(page)
