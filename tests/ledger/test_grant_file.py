"""A grant's file: what is written is read back, and nothing else is believed, whoever put it there."""

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_hook.core.gpu_page import SLOTS
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.terms import CLASSES, POLICIES, Terms
from oci_hook.errors import NodeError
from oci_hook.ledger import grant_file, store

KEY = "0123456789abcdef" * 2
FULL = Grant(
    KEY,
    Identity("/run/runc", "c1", "/bundle", "runc", "uid", "ns", "pod", "main"),
    Life("boot", (1, 2), (3, 4), "/sys/fs/cgroup/x", 5, 6),
    (Share("GPU-0", 4096, 30, 80, False, 1), Share("GPU-1", 0)),
    Terms(imex_channels=(0, 2047), preempt_tolerance_us=7, apart_from="others"),
    created=7,
    born=8,
)
# Where each number and text of FULL is in the file, and what it may be at the most.
NUMBERS = {
    (3, 1, 0): grant_file.PID_MAX,
    (3, 1, 1): grant_file.MAX,
    (3, 2, 0): grant_file.PID_MAX,
    (3, 4): grant_file.INODE_MAX,
    (3, 5): grant_file.MAX,
    (3, 6): grant_file.INODE_MAX,
    (4, 0, 1): grant_file.MEMORY_MAX,
    (4, 0, 2): 100,
    (4, 0, 3): 100,
    (4, 0, 5): SLOTS,
    (5, 2): grant_file.MAX,
    (5, 4, 0): grant_file.MAX,
    **{(9 + n,): grant_file.MAX for n in range(4)},
}
TEXTS = [
    (1,),
    *((2, n) for n in range(8)),
    (3, 0),
    (3, 3),
    (4, 0, 0),
    (5, 0),
    (5, 1),
    (5, 3, 0),
    (5, 5),
    (5, 6),
    (5, 7),
    (8,),
]
FLAGS = [(4, 0, 4), (6,), (7,)]
OPTIONAL = {(5, 2)}  # may be null


def fields() -> list[Any]:
    found: list[Any] = json.loads(grant_file.encode(FULL))
    return found


def put(where: tuple[int, ...], value: object) -> bytes:
    data = fields()
    inner = data
    for index in where[:-1]:
        inner = inner[index]
    inner[where[-1]] = value
    return json.dumps(data).encode()


def refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        grant_file.decode(data)


def test_the_table_knows_every_value() -> None:
    """So that a field that is added is bounded, too."""

    def places(value: object, where: tuple[int, ...] = ()) -> set[tuple[int, ...]]:
        if isinstance(value, list):
            return set().union(*(places(v, (*where, n)) for n, v in enumerate(value)))
        return {where}

    assert grant_file.decode(grant_file.encode(FULL)) == FULL
    twins = {(3, 2, 1), (5, 3, 1), (5, 4, 1), *((4, 1, n) for n in range(6))}  # of a field that is in the table
    assert places(fields()) - twins == {(0,), *NUMBERS, *TEXTS, *FLAGS}


def test_a_file_of_a_version_with_fewer_terms() -> None:
    """It reads ours as well, where nobody uses the terms that it does not know: nodes are rolled back under running containers."""
    older = fields()
    older[5].pop()
    plain = FULL.replace(terms=FULL.terms.replace(apart_from=""))
    assert grant_file.decode(json.dumps(older).encode()) == plain
    assert json.loads(grant_file.encode(plain)) == older
    older[5] += ["", ""]
    refused(json.dumps(older).encode())


@pytest.mark.parametrize("where", NUMBERS)
def test_numbers_out_of_their_bounds(where: tuple[int, ...]) -> None:
    most = NUMBERS[where]
    assert grant_file.decode(put(where, most)) is not None
    for wrong in (-1, most + 1, -(10**30), 10**30, 1.0, "1", True, None, [], {}):
        if wrong is not None or where not in OPTIONAL:
            refused(put(where, wrong))


@pytest.mark.parametrize("where", [(3, 1), (3, 2)])
def test_a_process_is_one(where: tuple[int, ...]) -> None:
    assert grant_file.decode(put(where, None)) is not None
    for wrong in ([0, 1], [1, 0], [1], [1, 2, 3], [-1, 1], 1, "12", {}, [None, None]):
        refused(put(where, wrong))


@pytest.mark.parametrize("where", TEXTS)
def test_texts_of_another_kind(where: tuple[int, ...]) -> None:
    for wrong in (1, None, [], {}, True):
        refused(put(where, wrong))


@pytest.mark.parametrize("where", FLAGS)
def test_flags_of_another_kind(where: tuple[int, ...]) -> None:
    for wrong in (0, 1, None, "", "true", []):
        refused(put(where, wrong))


def test_words_that_nobody_knows() -> None:
    for where in ((5, 0), (5, 1)):
        refused(put(where, "best"))
    for where in ((2,), (4,), (5,), (5, 3), (5, 4)):
        for wrong in ("texttext", {}, {"a": 1}, None, 1):
            refused(put(where, wrong))
    refused(put((0,), True))
    refused(put((0,), 1.0))


texts = st.text(max_size=8)
times = st.integers(0, grant_file.MAX)
processes = st.none() | st.tuples(st.integers(1, grant_file.PID_MAX), st.integers(1, grant_file.MAX))
percent = st.integers(0, 100)
memory = st.integers(0, grant_file.MEMORY_MAX)
shares = st.builds(Share, texts.filter(bool), memory, percent, percent, st.booleans(), st.integers(0, SLOTS))
inodes = st.integers(0, grant_file.INODE_MAX)
grants = st.builds(
    Grant,
    texts,
    st.builds(Identity, *[texts] * 8),
    st.builds(Life, texts, processes, processes, texts, inodes, times),
    st.lists(shares, max_size=3).map(tuple),
    st.builds(
        Terms,
        st.sampled_from(POLICIES),
        st.sampled_from(CLASSES),
        st.none() | times,
        st.lists(texts, max_size=3).map(tuple),
        st.lists(times, max_size=3).map(tuple),
    ),
    st.booleans(),
    st.booleans(),
    texts,
    *[times] * 4,
)


@given(grants)
def test_what_is_written_is_read(grant: Grant) -> None:
    assert grant_file.decode(grant_file.encode(grant)) == grant


odd = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.lists(st.integers(), max_size=3)


@given(st.data(), odd)
def test_anything_else_is_refused_or_within_bounds(data: st.DataObject, value: object) -> None:
    """One part of a good file is another value, is gone, or is there twice: ValueError, or a grant that could be one,
    which is written as it was read."""
    document = fields()
    part: Any = document
    while True:
        index = data.draw(st.integers(0, len(part) - 1))
        if not isinstance(part[index], list) or not part[index] or data.draw(st.booleans()):
            break
        part = part[index]
    how = data.draw(st.sampled_from(["set", "drop", "twice"]))
    if how == "set":
        part[index] = value
    elif how == "drop":
        del part[index]
    else:
        part.insert(index, part[index])
    text = json.dumps(document).encode()
    try:
        grant = grant_file.decode(text)
    except ValueError:
        return
    assert grant_file.decode(grant_file.encode(grant)) == grant
    for share in grant.shares:
        assert share.memory_mib >= 0 and 0 <= share.compute <= 100 and 0 <= share.slot <= SLOTS
    assert min(grant.created, grant.born, grant.frozen, grant.life.deadline, *grant.terms.imex_channels, 0) == 0


@given(st.binary(max_size=60) | st.text('[]",0123456789ntrue.-e', max_size=60).map(str.encode))
def test_bytes_are_refused(data: bytes) -> None:
    refused(data)


# --- what may bear a grant file's name ---


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        folder = os.open(path.parent, os.O_PATH)
        s.bind(f"/proc/self/fd/{folder}/{path.name}")  # the path itself may be too long
        os.close(folder)


def _device(path: Path) -> None:
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero, which never ends


def _link(path: Path) -> None:
    path.with_suffix(".else").write_bytes(grant_file.encode(FULL))
    path.symlink_to(path.with_suffix(".else"))


MAKES: list[Callable[[Path], None]] = [_fifo, Path.mkdir, _socket, _link]
if os.geteuid() == 0:
    MAKES.append(_device)


@pytest.mark.parametrize("make", MAKES)
def test_no_file_at_a_grants_place_keeps_nobody_waiting(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Every reader of the ledger refuses at once, with the code, and the name can be forced away."""
    state = str(tmp_path / "state")
    with store.open_ledger(state):
        pass
    make(Path(state, "ledger", f"{KEY}.json"))

    def opened() -> None:
        with store.open_ledger(state):
            pass

    began = time.process_time()  # who waits for a pipe never ends
    for reader in (opened, lambda: store.snapshot(state), lambda: store.peek(state)):
        with pytest.raises(NodeError, match="GH-303"):
            reader()
    assert time.process_time() - began < 3
    if make is not Path.mkdir:  # a directory is for an administrator
        assert store.forget(state, KEY)
        assert store.snapshot(state) == ()


def test_a_suspended_or_lent_grant_has_more_fields_and_others_are_as_before() -> None:
    plain = json.loads(grant_file.encode(FULL))
    assert len(plain) == 1 + len(Grant.FIELDS) - grant_file.LATER
    late: dict[str, object] = {"suspended": 4, "lent_to": "a" * 64, "memory_wait": 600}
    for more in (
        {"moving": 3, "host_mib": 9},
        {"suspended": 4, "host_mib": 9},
        {"moving": 5},
        {"memory_wait": 1},
        late,
    ):
        one = FULL.replace(**more)
        assert grant_file.decode(grant_file.encode(one)) == one
    for n in range(grant_file.LATER):
        for bad in (-1, "x", True, 1 << 63) if n else (-1, True, None, []):
            data = json.loads(grant_file.encode(FULL.replace(suspended=4, host_mib=9)))
            data[-1 - n] = bad
            with pytest.raises(ValueError):
                grant_file.decode(json.dumps(data).encode())
    with pytest.raises(ValueError):
        grant_file.decode(json.dumps([*plain, 0]).encode())
    before = [*plain, 4, 0, 9]  # of the version that could suspend and not lend
    assert grant_file.decode(json.dumps(before).encode()) == FULL.replace(suspended=4, host_mib=9)


def test_a_share_with_a_request_has_one_field_more() -> None:
    share = FULL.shares[0].replace(memory_mib=4096, request_mib=1024)
    one = FULL.replace(shares=(share, *FULL.shares[1:]))
    assert grant_file.decode(grant_file.encode(one)) == one
    assert [len(s) for s in json.loads(grant_file.encode(one))[4]] == [7] + [6] * (len(FULL.shares) - 1)
    for bad in (-1, 4097, "x", True, None):
        data = json.loads(grant_file.encode(one))
        data[4][0][-1] = bad
        with pytest.raises(ValueError):
            grant_file.decode(json.dumps(data).encode())
