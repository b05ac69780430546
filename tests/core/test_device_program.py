"""Device programs: what is built permits exactly its rules, and what is read is judged as a second machine does."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_hook.core import device_program as dp
from oci_hook.core.device_program import Unreadable, instruction, permit, permits, reachable_gpus

MAJORS = (0, 1, 194, 195, 196, 510)
MINORS = (0, 1, 2, 3, 254, 255, (1 << 20) - 1)
DENY = (instruction(dp.MOV_K, 0, immediate=0), instruction(dp.EXIT))
ALLOW = (instruction(dp.MOV_K, 0, immediate=1), instruction(dp.EXIT))

# As runc 1.1.5 attached it (read back with BPF_OBJ_GET_INFO_BY_FD) for: deny all, then allow c *:* m, b *:* m, c 1:3,
# c 195:7 rw. (Its first rule is tried last.)
RUNC_HEAD = [
    (0x61, 2, 1, 0, 0), (0xBC, 3, 2, 0, 0), (0x54, 2, 0, 0, 0xFFFF), (0x74, 3, 0, 0, 16),
    (0x61, 4, 1, 4, 0), (0x61, 5, 1, 8, 0),
]  # fmt: skip


def runc_program(*blocks: list[tuple[int, int, int, int, int]]) -> tuple[int, ...]:
    words = [instruction(*fields) for fields in RUNC_HEAD]
    for block in blocks:
        words += [instruction(*fields) for fields in block]
    return (*words, *DENY)


def runc_rule(kind: int, access: int, major: int | None, minor: int | None) -> list[tuple[int, int, int, int, int]]:
    """One rule as runc writes it: 32-bit moves, JNE to the next rule, access by `and` and compare with itself."""
    body = [(0x55, 2, 0, -1, kind), (0xBC, 1, 3, 0, 0), (0x54, 1, 0, 0, access), (0x5D, 1, 3, -1, 0)]
    if access == 7:
        body = body[:1]
    if major is not None:
        body.append((0x55, 4, 0, -1, major))
    if minor is not None:
        body.append((0x55, 5, 0, -1, minor))
    body += [(0xB4, 0, 0, 0, 1), (0x95, 0, 0, 0, 0)]
    return [(c, d, s, len(body) - at - 1 if o == -1 else o, i) for at, (c, d, s, o, i) in enumerate(body)]


def machine(program: tuple[int, ...], kind: int, access: int, major: int, minor: int) -> int:
    """A second interpreter, only of what these tests build, written the other way round: by mnemonic."""
    ctx = {0: access << 16 | kind, 4: major, 8: minor}
    r = dict.fromkeys(range(11), 0)
    at = 0
    while True:
        raw = program[at].to_bytes(8, "little")
        code, regs = raw[0], raw[1]
        dst, src = regs & 15, regs >> 4
        off = int.from_bytes(raw[2:4], "little", signed=True)
        imm = int.from_bytes(raw[4:8], "little", signed=True)
        at += 1
        match code:
            case 0x61:
                assert src == 1
                r[dst] = ctx[off]
            case 0xB7 | 0xB4:
                r[dst] = imm
            case 0xBF | 0xBC:
                r[dst] = r[src]
            case 0x57 | 0x54:
                r[dst] &= imm
            case 0x77 | 0x74:
                r[dst] >>= imm
            case 0x55:
                at += off if r[dst] != imm else 0
            case 0x5D:
                at += off if r[dst] != r[src] else 0
            case 0x95:
                return r[0]
            case _:
                raise AssertionError(hex(code))


def grid():
    return itertools.product((dp.BLOCK, dp.CHAR), range(8), MAJORS, MINORS)


def by_rules(rules, kind, access, major, minor):
    return kind == dp.CHAR and any(
        (major, minor) == (a, b) and access & ~dp.access_bits(letters) == 0 for a, b, letters in rules
    )


@pytest.mark.parametrize(
    "rules",
    [
        (),
        ((195, 0, "rw"),),
        ((195, 0, "rw"), (195, 255, "rw"), (510, 1, "r")),
        ((1, 3, "m"), (195, 2, "rwm"), (195, 2, "w"), (0, 0, "w"), (196, (1 << 20) - 1, "rm")),
    ],
)
def test_a_program_permits_exactly_its_rules(rules):
    closed, opened = (*permit(rules), *DENY), (*permit(rules), *ALLOW)
    for case in grid():
        expected = by_rules(rules, *case)
        assert permits(closed, *case) is expected, case
        assert machine(closed, *case) == int(expected), case
        assert permits(opened, *case) is True, case


def test_before_another_program():
    """What the old program permits stays permitted; the rules come on top."""
    old = runc_program(runc_rule(dp.CHAR, 1, None, None), runc_rule(dp.CHAR, 7, 1, 3), runc_rule(dp.CHAR, 6, 195, 1))
    rules = ((195, 0, "rw"), (195, 255, "rw"))
    new = (*permit(rules), *old)
    for case in grid():
        expected = by_rules(rules, *case) or bool(machine(old, *case))
        assert permits(new, *case) is expected, case
        assert permits(old, *case) is bool(machine(old, *case)), case
    again = (*permit(rules), *new)
    assert all(permits(again, *case) == permits(new, *case) for case in grid())


@given(st.lists(st.tuples(st.sampled_from(MAJORS), st.sampled_from(MINORS), st.sampled_from(["r", "w", "rw", "m"]))))
def test_any_rules(rules):
    program = (*permit(rules), *DENY)
    for kind, access in ((dp.CHAR, 2), (dp.CHAR, 6), (dp.BLOCK, 2)):
        for major, minor in itertools.product(MAJORS, MINORS):
            assert permits(program, kind, access, major, minor) is by_rules(rules, kind, access, major, minor)


@pytest.mark.parametrize(
    ("rules", "granted", "found"),
    [
        ([(dp.CHAR, 7, 1, 3)], (), []),
        ([(dp.CHAR, 6, 195, 1)], (0,), ["195:1"]),
        ([(dp.CHAR, 2, 195, 1)], (0,), ["195:1"]),
        ([(dp.CHAR, 4, 195, 1)], (0,), ["195:1"]),
        ([(dp.CHAR, 6, 195, 1)], (1,), []),
        ([(dp.CHAR, 1, 195, 1)], (0,), []),
        ([(dp.BLOCK, 7, 195, 1)], (0,), []),
        ([(dp.CHAR, 7, 195, 255), (dp.CHAR, 7, 195, 254), (dp.CHAR, 7, 226, None)], (), []),
        ([(dp.CHAR, 6, 195, None)], (0,), ["every GPU"]),
        ([(dp.CHAR, 6, None, None)], (0,), ["every GPU"]),
        ([(dp.CHAR, 6, None, 4), (dp.CHAR, 7, 195, 7)], (0,), ["195:4", "195:7"]),
    ],
)
def test_other_gpus(rules, granted, found):
    program = runc_program(*(runc_rule(*rule) for rule in rules))
    assert reachable_gpus([program], granted) == found
    assert reachable_gpus([program, ALLOW], granted) == found  # each of several must permit
    assert reachable_gpus([program, (*DENY,)], granted) == []


def test_a_container_without_any_program_reaches_every_gpu():
    assert reachable_gpus([], (0,)) == ["every GPU"]


def test_what_cannot_be_read_denies_nothing():
    call = instruction(0x85, immediate=5)
    assert reachable_gpus([(call, *DENY)], ()) == ["every GPU"]
    with pytest.raises(Unreadable, match="calls a function"):
        permits((call, *DENY), dp.CHAR, 2, 195, 0)


@pytest.mark.parametrize(
    "program",
    [
        (),
        (instruction(dp.JA, offset=-1),),
        (instruction(dp.JA, offset=5), *DENY),
        (instruction(dp.EXIT),),
        (instruction(dp.LDX_W, 2, 1, 12), *DENY),
        (instruction(dp.LDX_W, 2, 1, -4), *DENY),
        (instruction(dp.LDX_W, 2, 10, -4), *DENY),
        (instruction(dp.LDX_W, 2, 3, 0), *DENY),
        (instruction(dp.MOV_K, 10, immediate=1), *DENY),
        (instruction(0x37, 2, immediate=3), *DENY),
        (instruction(0x63, 10, 1, -8), *DENY),
        (0xC2, *DENY),
        (instruction(dp.CALL, immediate=125), *DENY),
    ],
)
def test_programs_that_are_not_understood(program):
    with pytest.raises(Unreadable):
        permits(program, dp.CHAR, 2, 195, 0)


@pytest.mark.parametrize(
    ("code", "a", "b", "result"),
    [
        (0x07, 5, -7, (1 << 64) - 2),
        (0x04, 5, -7, (1 << 32) - 2),
        (0x17, 5, 7, (1 << 64) - 2),
        (0x27, 1 << 20, 1 << 20, 1 << 40),
        (0x24, 1 << 20, 1 << 20, 1 << 40 & 0xFFFFFFFF),
        (0x47, 6, 1, 7),
        (0x57, -1, 0xF0, 0xF0),
        (0x67, 1, 33, 1 << 33),
        (0x64, 1, 33, 2),
        (0x77, -1, 60, 15),
        (0xA7, 6, 3, 5),
        (0xC7, -8, 1, (1 << 64) - 4),
        (0xC4, -8, 1, (1 << 32) - 4),
    ],
)
def test_arithmetic(code, a, b, result):
    """a OP b, compared with the number by a 64-bit constant."""
    program = (
        instruction(dp.MOV_K, 2, immediate=a),
        instruction(code, 2, immediate=b),
        dp.LD_IMM64 | 3 << 8 | (result & 0xFFFFFFFF) << 32,
        (result >> 32) << 32,
        instruction(0x5D, 2, 3, 2),
        *ALLOW,
        *DENY,
    )
    assert permits(program, dp.CHAR, 2, 195, 0)


@pytest.mark.parametrize(
    ("code", "a", "b", "jumps"),
    [
        (0x15, 3, 3, True), (0x15, 3, 4, False), (0x55, 3, 3, False), (0x55, 3, 4, True), (0x25, 3, 3, False),
        (0x25, -1, 3, True), (0x65, -1, 3, False), (0x35, 3, 3, True), (0x75, 3, 3, True), (0x75, -1, 3, False),
        (0xA5, 3, 3, False), (0xA5, 3, -1, True), (0xC5, 3, -1, False), (0xB5, 3, 3, True), (0xD5, -1, 3, True),
        (0x45, 6, 2, True), (0x45, 6, 1, False), (0x16, -1, -1, True), (0x66, -1, 3, False), (0x26, -1, 3, True),
    ],
)  # fmt: skip
def test_jumps(code, a, b, jumps):
    program = (instruction(dp.MOV_K, 2, immediate=a), instruction(code, 2, offset=2, immediate=b), *DENY, *ALLOW)
    assert permits(program, dp.CHAR, 2, 195, 0) is jumps


@pytest.mark.parametrize(
    "fields", [(256,), (-1,), (7, 11), (7, 0, 11), (7, 0, 0, 1 << 15), (7, 0, 0, -(1 << 15) - 1), (7, 0, 0, 0, 1 << 31)]
)
def test_fields_that_do_not_fit(fields):
    with pytest.raises(ValueError, match="."):
        instruction(*fields)


def test_rules_that_do_not_fit():
    for rule in ((1 << 31, 0, "r"), (0, 1 << 31, "r"), (-1, 0, "r")):
        with pytest.raises(ValueError, match="."):
            permit([rule])
    with pytest.raises(KeyError):
        permit([(1, 3, "x")])
