"""A grant as the ledger keeps it: one short JSON array, since a reader of the ledger parses all of them."""

from _operator import attrgetter

from oci_hook.core.card_page import SLOTS
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.errors import refuse
from oci_hook.node.life import read_once
from oci_hook.oci import fastjson

FORMAT = 1
NUMBERS = 5  # created, born, linger, frozen, tolerance
GRANT_MAX = 1 << 15  # bytes of a grant file; names in it are the tenant's

_GRANT, _WHO, _LIFE, _SHARE = (attrgetter(*kind.__slots__) for kind in (Grant, Identity, Life, Share))


def encode(grant: Grant) -> bytes:
    """A JSON array: FORMAT, then the fields in the order of their slots; records and shares are arrays again, and
    the numbers of IMEX channels, which few have, are the last ones.

    (Names in the file would cost every reader four times as long per grant.)
    """
    key, who, life, shares, *rest, channels = _GRANT(grant)
    return fastjson.dumps([FORMAT, key, _WHO(who), _LIFE(life), [_SHARE(s) for s in shares], *rest, *channels]).encode()


def decode(data: bytes) -> Grant:
    """The grant of a ledger file. Raises ValueError, with the reason, for anything that `encode` did not write."""
    try:
        version, key, who, life, shares, policy, priority, exclusive, offered, driver, *numbers = fastjson.loads(data)
        if version != FORMAT:
            raise ValueError("another version's format")
        boot, creator, init, cgroup, inode, deadline, space = life
        "".join((key, boot, cgroup, policy, priority, driver, *who, *offered))  # TypeError unless all are text
        for fields in shares:
            uuid, memory, compute, limit, whole, slot = fields
            if type(uuid) is not str or not type(memory) is type(compute) is type(limit) is type(slot) is int:
                raise ValueError("a share is not valid")
            if memory < 0 or not 0 <= slot <= SLOTS:
                raise ValueError("a share is not valid")
        created, born, linger, frozen, tolerance = map(int, numbers[:NUMBERS])
        return Grant(
            key,
            Identity(*who),
            Life(boot, _process(creator), _process(init), cgroup, int(inode), int(deadline), int(space)),
            tuple([Share(*fields) for fields in shares]),
            policy,
            priority,
            bool(exclusive),
            tuple(offered),
            driver,
            created,
            born,
            linger,
            frozen,
            tolerance,
            tuple(map(int, numbers[NUMBERS:])),
        )
    except TypeError as e:
        raise ValueError(f"not a grant ({e})") from None


def _process(pair: "list[int] | None") -> tuple[int, int] | None:
    if pair is None:
        return None
    pid, start = pair
    return int(pid), int(start)


def read(folder: str, key: str) -> Grant:
    """FOLDER/KEY.json. Raises NodeError GH-303 for a damaged one, OSError."""
    path = f"{folder}/{key}.json"
    data = read_once(path, 2 * GRANT_MAX)
    try:
        grant = decode(data)
        if grant.key != key:
            raise ValueError("the key inside is another one")
    except ValueError as e:
        why = str(e)
        raise refuse(
            "GH-303",
            f"grant file {path} is damaged ({why[:50]}): nothing is granted until its container is stopped and"
            f" `gpu-hook release --force --key {key[:32]}` removed it",
        ) from None
    return grant
