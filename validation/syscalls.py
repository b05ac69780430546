"""Counts the ioctls of a program by ptrace(2), since not every machine has strace. Linux 5.3 or newer."""

import ctypes
import os
import signal
from collections import Counter

PTRACE_TRACEME, PTRACE_SYSCALL, PTRACE_SETOPTIONS, PTRACE_GETEVENTMSG = 0, 24, 0x4200, 0x4201
PTRACE_GET_SYSCALL_INFO = 0x420E
TRACESYSGOOD, TRACEFORK, TRACEVFORK, TRACECLONE, TRACEEXEC, EXITKILL = 0x1, 0x2, 0x4, 0x8, 0x10, 0x100000
WALL = 0x40000000
ENTRY = 1
OTHER = "no GPU"
IOCTL = {"x86_64": 16, "aarch64": 29}[os.uname().machine]
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


class Info(ctypes.Structure):
    """struct ptrace_syscall_info at the entry of a call."""

    _fields_ = [
        ("op", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("ip", ctypes.c_uint64),
        ("sp", ctypes.c_uint64),
        ("nr", ctypes.c_uint64),
        ("args", ctypes.c_uint64 * 6),
    ]


def _ptrace(request: int, pid: int, address: int = 0, data: object = None) -> int:
    result = int(libc.ptrace(request, pid, address, data))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request:#x}: {os.strerror(ctypes.get_errno())}")
    return result


def count_ioctls(argv: list[str], env: dict[str, str], mark: int, lines: bytes) -> dict[str, Counter[str]]:
    """Run argv with `lines` on its standard input. Returns by part of the run ("start", then the number of the ioctl
    `mark` + number on descriptor 0 that began it) how often which
    of the driver's nodes got an ioctl, and any other file (OTHER). Raises OSError without ptrace."""
    read, write = os.pipe()
    os.write(write, lines)
    os.close(write)
    null = os.open("/dev/null", os.O_WRONLY)
    pid = os.fork()
    if not pid:
        try:
            os.dup2(read, 0)
            os.dup2(null, 1)
            _ptrace(PTRACE_TRACEME, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.execve(argv[0], argv, env)
        finally:
            os._exit(127)
    os.close(read)
    os.close(null)
    try:
        _, status = os.waitpid(pid, WALL)
        if not os.WIFSTOPPED(status):
            raise OSError(0, "ptrace is not allowed here")
        options = TRACESYSGOOD | TRACEFORK | TRACEVFORK | TRACECLONE | EXITKILL | TRACEEXEC
        _ptrace(PTRACE_SETOPTIONS, pid, 0, options)
        _ptrace(PTRACE_SYSCALL, pid)
        return _follow(pid, mark)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise


def _follow(first: int, mark: int) -> dict[str, Counter[str]]:
    part = "start"
    counts: dict[str, Counter[str]] = {part: Counter()}
    living = {first}
    while living:
        try:
            pid, status = os.waitpid(-1, WALL)
        except ChildProcessError:
            break
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            living.discard(pid)
            continue
        living.add(pid)
        deliver = os.WSTOPSIG(status)
        if deliver == signal.SIGTRAP | 0x80:
            deliver = 0
            info = Info()
            _ptrace(PTRACE_GET_SYSCALL_INFO, pid, ctypes.sizeof(info), ctypes.byref(info))
            if info.op == ENTRY and info.nr == IOCTL:
                number = info.args[1] & 0xFFFFFFFF
                if info.args[0] == 0 and mark < number < mark + 16:
                    part = str(number - mark)
                    counts.setdefault(part, Counter())
                else:
                    counts[part][_file(pid, info.args[0])] += 1
        elif deliver in (signal.SIGTRAP, signal.SIGSTOP):  # an event, or a new thread
            deliver = 0
        try:
            _ptrace(PTRACE_SYSCALL, pid, 0, deliver)
        except ProcessLookupError:
            living.discard(pid)
    return counts


def _file(pid: int, descriptor: int) -> str:
    try:
        path = os.readlink(f"/proc/{pid}/fd/{descriptor & 0xFFFFFFFF}")
    except OSError:
        path = "?"
    return path if path.startswith("/dev/nvidia") else OTHER
