"""A grant as the ledger keeps it: one short JSON array, because every transaction of the ledger parses all of them."""

import os
from _operator import attrgetter
from stat import S_ISREG

from oci_hook.core.gpu_page import SLOTS
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.terms import WORDS, Terms
from oci_hook.errors import refuse
from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FORMAT = 4
GRANT_MAX = 1 << 15  # bytes of a grant file; the names in it are chosen by the tenant
MEMORY_MAX = 1 << 40  # MiB
MAX = (1 << 63) - 1  # of times and other numbers
INODE_MAX = (1 << 64) - 1
PID_MAX = 1 << 22  # proc_sys_kernel(5)
# So many fields at the end are written where one of them says something. A version that could suspend and not lend had the first three.
LATER = 5
COUNTS = len(Grant.FIELDS), len(Grant.FIELDS) - 2, len(Grant.FIELDS) - LATER
LATER_TERMS = 1  # the same, of terms: for one that is apart from others

_GRANT, _WHO, _LIFE, _SHARE, _TERMS = (attrgetter(*kind.FIELDS) for kind in (Grant, Identity, Life, Share, Terms))


def _kinds(record: type) -> "list[tuple[bool, tuple[Any, ...], tuple[str, ...] | None]]":
    """Of each field, by its annotation: whether it is a list in JSON, the types that it or its items may have, and the
    words that it may be."""
    found: list[tuple[bool, tuple[Any, ...], tuple[str, ...] | None]] = []
    for name, kind in record.__annotations__.items():
        many = getattr(kind, "__origin__", None) is tuple
        found.append((many, getattr(kind, "__args__", (kind,)), WORDS.get(name)))
    return found


_TERMS_KINDS = _kinds(Terms)


def encode(grant: Grant) -> bytes:
    """A JSON array: FORMAT, then the grant's fields in their order; its records and its shares are arrays again.

    (With the fields' names in the file, every reader would take four times as long per grant.)
    """
    key, who, life, shares, terms, *rest = _GRANT(grant)
    if not any(rest[-LATER:]):  # nearly always; and an earlier version reads it
        del rest[-LATER:]
    shares = [_SHARE(share) if share.request_mib else _SHARE(share)[:-1] for share in shares]
    said = _TERMS(terms)
    if not terms.apart_from:
        said = said[:-LATER_TERMS]
    return fastjson.dumps([FORMAT, key, _WHO(who), _LIFE(life), shares, said, *rest]).encode()


def decode(data: bytes) -> Grant:
    """The grant of a ledger file. Raises ValueError, with the reason, for anything that `encode` did not write: a value
    out of its bounds would be added to others, compared with clocks, or handed to the kernel as a pid."""
    try:
        version, *fields = fastjson.loads(data)
        if type(version) is not int or version != FORMAT:
            raise ValueError("another version's format")
        if len(fields) not in COUNTS:
            raise ValueError("not as many fields as a grant has")
        lent_to = fields.pop() if len(fields) == len(Grant.FIELDS) else ""
        key, who, life, shares, terms, exclusive, competes, driver, *numbers = fields
        boot, creator, init, cgroup, inode, deadline, space = life
        "".join((key, boot, cgroup, driver, lent_to, *who))  # TypeError unless all are text
        if not type(who) is type(terms) is type(shares) is list or not type(exclusive) is type(competes) is bool:
            raise ValueError("a part is of another kind")
        for uuid, memory, compute, limit, whole, slot, *request in shares:
            if type(uuid) is not str or not uuid or type(whole) is not bool:
                raise ValueError("a share is not valid")
            _check((memory, MEMORY_MAX), (compute, 100), (limit, 100), (slot, SLOTS), *[(n, memory) for n in request])
        _check((inode, INODE_MAX), (space, INODE_MAX), (deadline, MAX), *[(number, MAX) for number in numbers])
        made = Grant(
            key,
            Identity(*who),
            Life(boot, _process(creator), _process(init), cgroup, inode, deadline, space),
            tuple([Share(*share) for share in shares]),
            _terms(terms),
            exclusive,
            competes,
            driver,
            *numbers,
        )
        return made.replace(lent_to=lent_to) if lent_to else made
    except TypeError as e:
        raise ValueError(f"not a grant ({e})") from None


def _terms(values: "list[Any]") -> Terms:
    """Each value is of the kind that its field is annotated with. An earlier version lacks the last ones."""
    found: list[Any] = []
    if len(values) > len(_TERMS_KINDS):
        raise ValueError("more terms than this version has")
    for value, (many, types, words) in zip(values, _TERMS_KINDS, strict=False):
        if many:
            if type(value) is not list:
                raise ValueError("a term is no list")
            for item in value:
                _check_kind(item, types)
            value = tuple(value)
        elif words is None:
            _check_kind(value, types)
        elif value not in words:
            raise ValueError("no such policy, class or boundary")
        found.append(value)
    return Terms(*found)


def _check_kind(value: object, types: "tuple[Any, ...]") -> None:
    if type(value) not in types or (type(value) is int and not 0 <= value <= MAX):
        raise ValueError("a term is of another kind, or out of bounds")


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
    # Whatever has this name: a FIFO would keep all readers waiting, and a link would lead them elsewhere.
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
        why = str(e).replace("(", "").replace(")", "")  # the json module's messages end in such, and are cut below
        raise refuse(
            "GH-303",
            f"grant file {path} is damaged ({why[:40]}): nothing is granted until its container is stopped and"
            f" `gpu-hook release --force --key {key[:32]}` removed it",
        ) from None
    return grant
