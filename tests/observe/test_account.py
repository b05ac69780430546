"""The way to the account page through what a container has mounted there: a FUSE of its own, below other file systems too."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oci_hook.linux.patience import Patience
from oci_hook.linux.proc import process_life, stat
from oci_hook.observe import account

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and FUSE"),
]

# It answers all but lookups, and those as well where it is honest. It ends by itself, which ends every wait for it.
TENANT = """
import ctypes, os, signal, struct, sys, threading
signal.alarm(40)
way, libc, fuse = sys.argv[1], ctypes.CDLL(None, use_errno=True), os.open("/dev/fuse", os.O_RDWR)
def mount(point, kind, options=""):
    os.makedirs(point, exist_ok=True)
    if libc.mount(b"x", point.encode(), kind.encode(), 0, options.encode()):
        raise OSError(ctypes.get_errno(), kind)
folder = struct.pack("<QQQQQQIIIIIIIIII", *(0,) * 9, 0o40755, 2, *(0,) * 5)
def serve():
    while True:
        _, call, unique, node = struct.unpack_from("<IIQQ", os.read(fuse, 1 << 17))
        error, body = -38, b""
        if call == 26:
            error, body = 0, struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 17, 0, 8, 8, 1 << 16, 1, 0, 0, 0)
        if call == 17:
            error, body = 0, struct.pack("<QQQQQIIII24x", 1, 1, 1, 1, 1, 4096, 255, 4096, 0)
        if call == 3:
            error, body = 0, struct.pack("<QII", 0, 0, 0) + folder
        if call == 1 and way != "honest":
            continue
        if call == 1:
            error, body = 0, struct.pack("<QQQQII", node + 1, 0, 0, 0, 0, 0) + folder
        if call not in (2, 42):
            os.write(fuse, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
mount("/run", "tmpfs")
places = {"overlay": "/run/f", "above": "/run/gpu-hook", "there": "/run/gpu-hook/account", "honest": "/run"}
mount(places[way], "fuse", f"fd={fuse},rootmode=40000,user_id=0,group_id=0")
threading.Thread(target=serve, daemon=True).start()
if way == "overlay":
    mount("/run", "overlay", "lowerdir=/run/f:/run")
if way == "honest":
    mount("/run/gpu-hook/account", "tmpfs")
print("ready", flush=True)
threading.Event().wait()
"""


@contextmanager
def container(*command: str) -> Iterator[tuple[int, int]]:
    """Its init."""
    argv = ["unshare", "--mount", "--propagation", "private", *command]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as p:
        try:
            assert p.stdout and p.stdout.readline() == "ready\n"
            yield process_life(p.pid)
        finally:
            p.kill()


@pytest.fixture(autouse=True)
def walks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "_walks", Patience(0.2, account.REST, 1024, os.close), raising=False)


@pytest.mark.parametrize("way", ["overlay", "above", "there"])
def test_a_file_system_that_never_answers_is_not_waited_for(way: str) -> None:
    with container(sys.executable, "-c", TENANT, way) as init:
        for _ in range(3):
            began = time.monotonic()
            why = "not on a tmpfs" if way == "there" else "does not answer"
            with pytest.raises(account.DamagedPage, match=why):
                account.Account(*init)
            assert time.monotonic() - began < 20
        assert sum(t.name == "patience" for t in threading.enumerate()) == (way != "there")
    for thread in threading.enumerate():
        if thread.name == "patience":
            thread.join(60)
            assert not thread.is_alive()


def test_a_file_system_of_a_users_process_that_answers_is_entered() -> None:
    """The root of a container of podman without root's rights is one: fuse-overlayfs."""
    with container(sys.executable, "-c", TENANT, "honest") as init:
        account.Account(*init).close()


@pytest.mark.parametrize("cached", [True, False])
def test_a_link_on_the_way_is_followed_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool) -> None:
    if not cached:  # as before Linux 5.12
        monkeypatch.setattr(account, "RESOLVE_CACHED", 1 << 40, raising=False)
    setup = (
        "mount -t tmpfs x /run && mkdir -p /run/a/account && ln -s /run/a /run/gpu-hook && echo ready && exec sleep 60"
    )
    with container("sh", "-c", setup) as init:
        account.Account(*init).close()


# Its main thread ends, by exit(2), and another one works on.
LED = """
import ctypes, threading
threading.Thread(target=threading.Event().wait).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall(ctypes.c_long({exit}), ctypes.c_long(0))
"""


def test_an_init_whose_main_thread_has_ended_has_its_page(tmp_path: Path) -> None:
    code = LED.format(exit=60 if os.uname().machine == "x86_64" else 93)
    setup = f"mount -t tmpfs x /run && mkdir -p /run/gpu-hook/account && exec '{sys.executable}' -c '{code}'"
    with container("sh", "-c", setup) as init:
        end = time.monotonic() + 60
        while stat(init[0])[0] != b"Z" and time.monotonic() < end:
            time.sleep(0.01)
        with account.Account(*init) as page:
            assert page.read(1) is None
