"""bpf(2) for the device program of a cgroup: find what is attached, read its instructions, load, replace in one step.

Wants CAP_SYS_ADMIN, or CAP_BPF and CAP_NET_ADMIN, in the first user namespace.
"""

import ctypes
import os
from errno import EPERM

from oci_hook.linux.libc import SyscallError, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PROG_LOAD, PROG_ATTACH, PROG_GET_FD_BY_ID, OBJ_GET_INFO_BY_FD, PROG_QUERY = 5, 8, 13, 15, 16  # enum bpf_cmd
PROG_TYPE_CGROUP_DEVICE = 15
CGROUP_DEVICE = 6  # enum bpf_attach_type
F_ALLOW_MULTI = 2
F_REPLACE = 4
QUERY_EFFECTIVE = 1
PROGRAMS = 64  # BPF_CGROUP_MAX_PROGS: the kernel attaches no more to one cgroup
LOG_SIZE = 1 << 16

_U32, _U64 = ctypes.c_uint32, ctypes.c_uint64


class _Load(ctypes.Structure):
    _fields_ = [
        ("type", _U32),
        ("count", _U32),
        ("instructions", _U64),
        ("license", _U64),
        ("log_level", _U32),
        ("log_size", _U32),
        ("log", _U64),
        ("kernel_version", _U32),
        ("flags", _U32),
    ]


class _Attach(ctypes.Structure):
    _fields_ = [("target", _U32), ("program", _U32), ("type", _U32), ("flags", _U32), ("replaced", _U32)]


class _Query(ctypes.Structure):
    _fields_ = [("target", _U32), ("type", _U32), ("query", _U32), ("flags", _U32), ("ids", _U64), ("count", _U32)]


class _ById(ctypes.Structure):
    _fields_ = [("id", _U32), ("next", _U32), ("flags", _U32)]


class _InfoByFd(ctypes.Structure):
    _fields_ = [("fd", _U32), ("size", _U32), ("info", _U64)]


class _ProgramInfo(ctypes.Structure):
    """The beginning of struct bpf_prog_info; the kernel fills as much as the caller has room for."""

    _fields_ = [
        ("type", _U32),
        ("id", _U32),
        ("tag", ctypes.c_uint8 * 8),
        ("native_size", _U32),
        ("size", _U32),
        ("native", _U64),
        ("instructions", _U64),
    ]


def attached(cgroup: int, effective: bool = False) -> tuple[list[int], int]:
    """(ids of the device programs attached to the cgroup, flags of their attachment). An access needs the permission of
    each of them. effective: with those of the cgroups above. Raises SyscallError."""
    ids = (_U32 * PROGRAMS)()
    query = _Query(cgroup, CGROUP_DEVICE, QUERY_EFFECTIVE if effective else 0, 0, ctypes.addressof(ids), PROGRAMS)
    _bpf(PROG_QUERY, query, "BPF_PROG_QUERY")
    return list(ids[: query.count]), int(query.flags)


def open_program(id: int) -> int:
    """A descriptor of a loaded program. Raises SyscallError; ENOENT: it was unloaded."""
    return _bpf(PROG_GET_FD_BY_ID, _ById(id, 0, 0), "BPF_PROG_GET_FD_BY_ID")


def instructions(program: int) -> tuple[int, ...]:
    """The program's instructions as the kernel has them after verification, each one an int (see
    core/device_program.py).

    Raises SyscallError; EPERM also where the kernel keeps them to itself (kernel.kptr_restrict, hardened JIT).
    """
    info = _ProgramInfo()
    _bpf(OBJ_GET_INFO_BY_FD, _InfoByFd(program, ctypes.sizeof(info), ctypes.addressof(info)), "BPF_OBJ_GET_INFO_BY_FD")
    size = int(info.size)
    buffer = ctypes.create_string_buffer(size)
    info = _ProgramInfo(size=size, instructions=ctypes.addressof(buffer))
    _bpf(OBJ_GET_INFO_BY_FD, _InfoByFd(program, ctypes.sizeof(info), ctypes.addressof(info)), "BPF_OBJ_GET_INFO_BY_FD")
    if not size or info.size != size or not info.instructions:
        raise SyscallError(EPERM, "BPF_OBJ_GET_INFO_BY_FD", "the program's instructions")
    return tuple(int.from_bytes(buffer.raw[at : at + 8], "little") for at in range(0, size, 8))


def load(program: "Sequence[int]") -> int:
    """Load a program, which the kernel verifies; its descriptor. Raises SyscallError with the verifier's last line."""
    data = ctypes.create_string_buffer(b"".join(word.to_bytes(8, "little") for word in program), 8 * len(program))
    license = ctypes.create_string_buffer(b"Apache-2.0")
    log = ctypes.create_string_buffer(LOG_SIZE)

    def attempt(log_level: int) -> int:
        attr = _Load(
            PROG_TYPE_CGROUP_DEVICE,
            len(program),
            ctypes.addressof(data),
            ctypes.addressof(license),
            log_level,
            LOG_SIZE if log_level else 0,
            ctypes.addressof(log) if log_level else 0,
        )
        return _bpf(PROG_LOAD, attr, "BPF_PROG_LOAD")

    try:
        return attempt(0)
    except SyscallError as e:
        if e.errno == EPERM and _lock_more_memory():
            return attempt(0)
        first = e
    try:
        return attempt(1)
    except SyscallError:
        lines = [line for line in log.value.decode("ascii", "replace").splitlines() if line]
        said = next((line for line in reversed(lines) if not line.startswith("processed ")), "")
        raise SyscallError(first.errno or EPERM, "BPF_PROG_LOAD", said or "the device program") from None


def replace(cgroup: int, old: int, new: int, flags: int) -> None:
    """Replace program `old` by `new` in one step, so that the cgroup is never without one. flags: those of the
    attachment. Raises SyscallError; ENOENT: `old` is not attached any more."""
    if flags & F_ALLOW_MULTI:
        attr = _Attach(cgroup, new, CGROUP_DEVICE, flags | F_REPLACE, old)
    else:
        attr = _Attach(cgroup, new, CGROUP_DEVICE, flags, 0)  # only one may be attached, so the new one replaces it
    _bpf(PROG_ATTACH, attr, "BPF_PROG_ATTACH")


def _bpf(command: int, attr: ctypes.Structure, what: str) -> int:
    return syscall("bpf", command, ctypes.byref(attr), ctypes.sizeof(attr), path=what)


def _lock_more_memory() -> bool:
    """Raise the limit of locked memory, to which kernels before 5.11 charge programs; whether that can help."""
    import resource

    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError):
        return False
    return os.uname().release.split(".")[0] in ("4", "5")
