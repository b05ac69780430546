"""A grant as the ledger keeps it: one short JSON array, since a reader of the ledger parses all of them."""

import os
from _operator import attrgetter
from stat import S_ISREG

from oci_hook.core.gpu_page import SLOTS
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.value_parsers import CLASSES, POLICIES
from oci_hook.errors import refuse
from oci_hook.oci import fastjson

FORMAT = 1
NUMBERS = 5  # created, born, linger, frozen, tolerance
GRANT_MAX = 1 << 15  # bytes of a grant file; names in it are the tenant's
MEMORY_MAX = 1 << 40  # MiB
MAX = (1 << 63) - 1  # of times and other numbers
INODE_MAX = (1 << 64) - 1
PID_MAX = 1 << 22  # proc_sys_kernel(5)

_GRANT, _WHO, _LIFE, _SHARE = (attrgetter(*kind.FIELDS) for kind in (Grant, Identity, Life, Share))


def encode(grant: Grant) -> bytes:
    """A JSON array: FORMAT, then the fields in the order of their slots; records and shares are arrays again, and
    the numbers of IMEX channels, which few have, are the last ones.

    (Names in the file would cost every reader four times as long per grant.)
    """
    key, who, life, shares, *rest, channels = _GRANT(grant)
    return fastjson.dumps([FORMAT, key, _WHO(who), _LIFE(life), [_SHARE(s) for s in shares], *rest, *channels]).encode()


def decode(data: bytes) -> Grant:
    """The grant of a ledger file. Raises ValueError, with the reason, for anything that `encode` did not write: a value
    out of its bounds would be added to others, compared with clocks, or handed to the kernel as a pid."""
    try:
        version, key, who, life, shares, policy, priority, exclusive, offered, driver, *numbers = fastjson.loads(data)
        if type(version) is not int or version != FORMAT:
            raise ValueError("another version's format")
        boot, creator, init, cgroup, inode, deadline, space = life
        "".join((key, boot, cgroup, policy, priority, driver, *who, *offered))  # TypeError unless all are text
        if not type(who) is type(offered) is type(shares) is list or type(exclusive) is not bool:
            raise ValueError("a part is of another kind")
        if policy not in POLICIES or priority not in CLASSES:
            raise ValueError("no such policy or class")
        for uuid, memory, compute, limit, whole, slot in shares:
            if type(uuid) is not str or not uuid or type(whole) is not bool:
                raise ValueError("a share is not valid")
            _check((memory, MEMORY_MAX), (compute, 100), (limit, 100), (slot, SLOTS))
        _check((inode, INODE_MAX), (space, INODE_MAX), (deadline, MAX), *[(number, MAX) for number in numbers])
        created, born, linger, frozen, tolerance = numbers[:NUMBERS]
        return Grant(
            key,
            Identity(*who),
            Life(boot, _process(creator), _process(init), cgroup, inode, deadline, space),
            tuple([Share(*fields) for fields in shares]),
            policy,
            priority,
            exclusive,
            tuple(offered),
            driver,
            created,
            born,
            linger,
            frozen,
            tolerance,
            tuple(numbers[NUMBERS:]),
        )
    except TypeError as e:
        raise ValueError(f"not a grant ({e})") from None


def _check(*bounded: tuple[int, int]) -> None:
    """Each number with the most that it may be; none is negative."""
    for number, most in bounded:
        if type(number) is not int or not 0 <= number <= most:
            raise ValueError("a number is out of bounds")


def _process(pair: "list[int] | None") -> tuple[int, int] | None:
    if pair is None:
        return None
    pid, start = pair
    _check((pid, PID_MAX), (start, MAX))
    if not pid or not start:
        raise ValueError("a process is not valid")
    return pid, start


def read(folder: str, key: str) -> Grant:
    """FOLDER/KEY.json. Raises NodeError GH-303 for a damaged one, OSError."""
    path = f"{folder}/{key}.json"
    # Whatever bears such a name: a FIFO would keep all readers waiting, a link lead them elsewhere.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        try:
            if not S_ISREG(os.fstat(fd).st_mode):
                raise ValueError("not a regular file")
            data = os.read(fd, 2 * GRANT_MAX)
        finally:
            os.close(fd)
        grant = decode(data)
        if grant.key != key:
            raise ValueError("the key inside is another one")
    except ValueError as e:
        why = str(e).replace("(", "").replace(")", "")  # json's end in such, and are cut
        raise refuse(
            "GH-303",
            f"grant file {path} is damaged ({why[:40]}): nothing is granted until its container is stopped and"
            f" `gpu-hook release --force --key {key[:32]}` removed it",
        ) from None
    return grant
