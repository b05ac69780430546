"""Writes and interprets device programs of cgroup v2: eBPF instructions of type BPF_PROG_TYPE_CGROUP_DEVICE, as integers.

The kernel calls the program with r1 at `struct bpf_cgroup_dev_ctx` (include/uapi/linux/bpf.h): three 32-bit words,
access << 16 | type, major, minor. The program leaves 1 in r0 to permit the access and 0 to deny it. An instruction has
64 bits, here as one little-endian int: code, registers, offset, immediate
(Documentation/bpf/standardization/instruction-set.rst).
"""

from oci_hook.core.layout import NVIDIA_MAJOR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BLOCK, CHAR = 1, 2  # BPF_DEVCG_DEV_*
ACCESS = {"m": 1, "r": 2, "w": 4}  # BPF_DEVCG_ACC_*
GPUS = 254  # minors of the NVIDIA major below this are GPUs; 254 and 255 are control nodes

LD_IMM64, LDX_W, LDX_H, LDX_B = 0x18, 0x61, 0x69, 0x71
MOV_K, MOV_X, AND_K, RSH_K = 0xB7, 0xBF, 0x57, 0x77  # 64-bit
JA, JNE_K, CALL, EXIT = 0x05, 0x55, 0x85, 0x95
STEPS = 10_000

_U32, _U64 = (1 << 32) - 1, (1 << 64) - 1
_CTX = 1 << 48  # stands for the address of the context; no device number comes near it


class Unreadable(ValueError):
    """The program does more than compare its three words with numbers: it has calls, maps or other memory."""


def instruction(code: int, dst: int = 0, src: int = 0, offset: int = 0, immediate: int = 0) -> int:
    """One instruction. Raises ValueError for a field that does not fit: 8 bits, registers 0 to 10, signed 16, 32."""
    if not (0 <= code <= 0xFF and 0 <= dst <= 10 and 0 <= src <= 10):
        raise ValueError(f"no such instruction: code {code}, registers {dst} and {src}")
    if not -(1 << 15) <= offset < 1 << 15:
        raise ValueError(f"jump of {offset} instructions")
    if not -(1 << 31) <= immediate < 1 << 31:
        raise ValueError(f"number {immediate} has more than 32 bits")
    return code | dst << 8 | src << 12 | (offset & 0xFFFF) << 16 | (immediate & _U32) << 32


def access_bits(access: str) -> int:
    """ "rw" -> 6. Raises KeyError for another letter than r, w, m."""
    return sum(ACCESS[letter] for letter in set(access))


def permit(rules: "Iterable[tuple[int, int, str]]") -> tuple[int, ...]:
    """Instructions that permit these character devices (major, minor, access). Every other access falls through to the
    instructions put after them, with r1 unchanged. Raises ValueError for numbers of more than 31 bits."""
    words = [
        instruction(LDX_W, 2, 1, 0),  # r2 = type, r3 = access, r4 = major, r5 = minor
        instruction(MOV_X, 3, 2),
        instruction(AND_K, 2, immediate=0xFFFF),
        instruction(RSH_K, 3, immediate=16),
        instruction(LDX_W, 4, 1, 4),
        instruction(LDX_W, 5, 1, 8),
    ]
    for major, minor, access in rules:
        if major < 0 or minor < 0:
            raise ValueError(f"device {major}:{minor}")
        words += [
            instruction(JNE_K, 2, offset=7, immediate=CHAR),
            instruction(JNE_K, 4, offset=6, immediate=major),
            instruction(JNE_K, 5, offset=5, immediate=minor),
            instruction(MOV_X, 6, 3),
            instruction(AND_K, 6, immediate=~access_bits(access)),  # the rest is access that the rule does not permit
            instruction(JNE_K, 6, offset=2, immediate=0),
            instruction(MOV_K, 0, immediate=1),
            instruction(EXIT),
        ]
    return tuple(words)


def permits(program: "Sequence[int]", kind: int, access: int, major: int, minor: int) -> bool:
    """Interprets the program: whether the kernel would permit the access. Raises Unreadable if that is unclear."""
    context = ((access << 16 | kind) & _U32).to_bytes(4, "little") + major.to_bytes(4, "little")
    context += minor.to_bytes(4, "little")
    registers: list[int | None] = [None, _CTX, *[None] * 9]

    def value(register: int) -> int:
        found = registers[register]
        if found is None:
            raise Unreadable("it reads a register that has no value")
        return found

    at = 0
    for _ in range(STEPS):
        if not 0 <= at < len(program):
            raise Unreadable("it leaves its own code")
        word = program[at]
        at += 1
        code, dst, src = word & 0xFF, word >> 8 & 0xF, word >> 12 & 0xF
        offset, immediate = _signed(word >> 16, 16), _signed(word >> 32, 32)
        if dst > 9 or src > 10:  # r10 is the stack, which is read-only as a register
            raise Unreadable("it writes where no program may")
        if code == EXIT:
            return value(0) != 0
        if code == CALL:
            raise Unreadable("it calls a function")
        if code in (LDX_W, LDX_H, LDX_B):
            size = {LDX_W: 4, LDX_H: 2, LDX_B: 1}[code]
            start = value(src) - _CTX + offset
            if not 0 <= start <= len(context) - size:
                raise Unreadable("it reads memory beside its context")
            registers[dst] = int.from_bytes(context[start : start + size], "little")
        elif code == LD_IMM64 and src == 0 and at < len(program):
            registers[dst] = immediate & _U32 | program[at] >> 32 << 32
            at += 1
        elif code & 7 in (4, 7):
            operand = value(src) if code & 8 else immediate & _U64
            registers[dst] = _compute(code, 0 if code & 0xF0 == 0xB0 else value(dst), operand)
        elif code == JA:
            at += offset
        elif code & 7 in (5, 6):
            if _compare(code, value(dst), value(src) if code & 8 else immediate & _U64):
                at += offset
        else:
            raise Unreadable(f"it has an instruction of code {code:#04x}")
    raise Unreadable("it has no end")


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def _compute(code: int, a: int, b: int) -> int:
    """BPF_ALU (32 bits, the upper ones become 0) and BPF_ALU64."""
    bits = 64 if code & 7 == 7 else 32
    mask = (1 << bits) - 1
    a, b = a & mask, b & mask
    operation = code & 0xF0
    if operation == 0x00:
        result = a + b
    elif operation == 0x10:
        result = a - b
    elif operation == 0x20:
        result = a * b
    elif operation == 0x40:
        result = a | b
    elif operation == 0x50:
        result = a & b
    elif operation == 0x60:
        result = a << (b & bits - 1)
    elif operation == 0x70:
        result = a >> (b & bits - 1)
    elif operation == 0xA0:
        result = a ^ b
    elif operation == 0xB0:
        result = b
    elif operation == 0xC0:
        result = _signed(a, bits) >> (b & bits - 1)
    else:
        raise Unreadable(f"it has an instruction of code {code:#04x}")
    return result & mask


def _compare(code: int, a: int, b: int) -> bool:
    """BPF_JMP and BPF_JMP32 (the lower 32 bits)."""
    bits = 64 if code & 7 == 5 else 32
    mask = (1 << bits) - 1
    a, b = a & mask, b & mask
    operation = code & 0xF0
    if operation in (0x60, 0x70, 0xC0, 0xD0):
        a, b = _signed(a, bits), _signed(b, bits)
    if operation == 0x10:
        return a == b
    if operation == 0x50:
        return a != b
    if operation == 0x40:
        return bool(a & b)
    if operation in (0x20, 0x60):
        return a > b
    if operation in (0x30, 0x70):
        return a >= b
    if operation in (0xA0, 0xC0):
        return a < b
    if operation in (0xB0, 0xD0):
        return a <= b
    raise Unreadable(f"it has an instruction of code {code:#04x}")


def reachable_gpus(programs: "Iterable[Sequence[int]]", granted: "Iterable[int]") -> list[str]:
    """The GPUs ("195:N") that the container can open for reading or writing although their minor is not in `granted`;
    ["every GPU"] if that holds even for a minor that no program names. programs: all that apply to the container.

    A program can only distinguish the numbers in its code, so those, their neighbours and one other number are tried.
    A program that cannot be interpreted counts as denying nothing.
    """
    programs, granted = tuple(programs), frozenset(granted)
    named = {(word >> 32) + near for program in programs for word in program for near in (-1, 0, 1)}
    other = next((n for n in range(GPUS) if n not in named and n not in granted), GPUS)
    if other < GPUS and _open_to_all(programs, NVIDIA_MAJOR, other):
        return ["every GPU"]
    minors = sorted(n for n in named if 0 <= n < GPUS and n not in granted)
    return [f"{NVIDIA_MAJOR}:{n}" for n in minors if _open_to_all(programs, NVIDIA_MAJOR, n)]


def reachable_nodes(programs: "Sequence[Sequence[int]]", numbers: "Iterable[tuple[int, int]]") -> list[str]:
    """Those of these character devices that the container can open for reading or writing."""
    return [f"{major}:{minor}" for major, minor in numbers if _open_to_all(programs, major, minor)]


def _open_to_all(programs: "Sequence[Sequence[int]]", major: int, minor: int) -> bool:
    return any(
        all(_maybe(program, CHAR, access, major, minor) for program in programs)
        for access in (ACCESS["r"], ACCESS["w"])
    )


def _maybe(program: "Sequence[int]", kind: int, access: int, major: int, minor: int) -> bool:
    try:
        return permits(program, kind, access, major, minor)
    except Unreadable:
        return True
