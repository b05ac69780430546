"""Makes boxes for box.py: a small process, since a fork of one that holds all tests takes fifty times as long as of this.

A line of JSON asks for a box: [rootfs, [[host directory, path], ...], flags, [bare]]; the answer is its pid, or what failed.
"""

import ctypes
import json
import os
import signal
import sys

libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED, MS_RDONLY, MS_REMOUNT = 1 << 12, 1 << 14, 1 << 18, 1 << 20, 1, 32


def mount(source: str, target: str, fstype: str | None, flags: int) -> None:
    if libc.mount(source.encode(), target.encode(), fstype.encode() if fstype else None, flags, None):
        raise OSError(ctypes.get_errno(), "mount", target)


def make(root: str, binds: list[tuple[str, str]], flags: int, bare: list[str]) -> None:
    """A mount namespace in which root is mounted on itself."""
    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount(root, root, None, MS_BIND)
    if flags:
        mount("none", root, None, flags | (MS_BIND | MS_REMOUNT if flags == MS_RDONLY else 0))
    for name, fstype in (("dev", "tmpfs"), ("proc", "proc")):
        if name not in bare and not os.path.islink(f"{root}/{name}"):
            mount(fstype, f"{root}/{name}", fstype, 0)
    for source, path in binds:
        mount(source, root + path, None, MS_BIND)


def started(asked: str) -> str:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            make(*json.loads(asked))
            os.write(writer, str(os.getpid()).encode())
        except BaseException as e:
            os.write(writer, repr(e).encode())
            os._exit(1)
        os.closerange(0, 4096)
        while True:
            signal.pause()
    os.close(writer)
    answer = os.read(reader, 1000).decode()
    os.close(reader)
    return answer


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for boxes
    for line in sys.stdin:
        print(started(line), flush=True)
