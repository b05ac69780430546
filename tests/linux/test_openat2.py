"""openat2: nothing on the way leads out of the root; the error says which kernel has the call."""

import errno
import os
import threading
from pathlib import Path

import pytest

from oci_hook.linux import libc
from oci_hook.linux import openat2 as openat2_module
from oci_hook.linux.libc import SyscallError
from oci_hook.linux.openat2 import (
    RESOLVE_IN_ROOT,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    openat2,
)

INSIDE = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS


@pytest.fixture
def root(tmp_path: Path):
    (tmp_path / "outside").write_text("host")
    inside = tmp_path / "root"
    (inside / "sub").mkdir(parents=True)
    (inside / "outside").write_text("inside")
    fd = os.open(inside, os.O_PATH | os.O_DIRECTORY)
    yield inside, fd
    os.close(fd)


@pytest.mark.parametrize(
    "target", ["/outside", "../outside", "../../../../outside", "/sub/../../../outside", "sub/../../outside"]
)
def test_links_and_dots_stay_inside(root, target):
    inside, fd = root
    (inside / "link").symlink_to(target)
    for path in ("link", "/link", "sub/../link"):
        with open(openat2(fd, path, os.O_RDONLY, INSIDE)) as f:
            assert f.read() == "inside"


@pytest.mark.parametrize(
    "target",
    ["/proc/self/root", f"/proc/{os.getpid()}/root/outside", "/proc/self/cwd/x"],
    ids=("root", "outside", "cwd"),
)
def test_magic_links_are_refused(target):
    fd = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        with pytest.raises(SyscallError) as e:
            openat2(fd, target, os.O_PATH, INSIDE)
    finally:
        os.close(fd)
    assert e.value.errno == errno.ELOOP


def test_no_symlinks(root):
    inside, fd = root
    (inside / "link").symlink_to("sub")
    with pytest.raises(SyscallError) as e:
        openat2(fd, "link/x", os.O_PATH, RESOLVE_NO_SYMLINKS)
    assert e.value.errno == errno.ELOOP
    assert str(e.value) == "openat2: Too many levels of symbolic links: link/x"


def test_descriptor_is_not_inherited(root):
    opened = openat2(root[1], "outside", os.O_RDONLY, INSIDE)
    assert not os.get_inheritable(opened)
    os.close(opened)


def test_a_kernel_without_it(root, monkeypatch):
    monkeypatch.setitem(libc.NUMBERS, "openat2", 9999)
    with pytest.raises(SyscallError, match=r"openat2: Function not implemented \(Linux 5\.6 or newer has it\)") as e:
        openat2(root[1], "outside", os.O_RDONLY, INSIDE)
    assert e.value.errno == errno.ENOSYS


def test_a_race_is_tried_again_but_not_for_ever(root, monkeypatch):
    real, calls = openat2_module.syscall, []

    def racing(*arguments, path):
        calls.append(1)
        if len(calls) <= failures:
            raise SyscallError(errno.EAGAIN, "openat2", path)
        return real(*arguments, path=path)

    monkeypatch.setattr(openat2_module, "syscall", racing)
    failures = 5
    os.close(openat2(root[1], "outside", os.O_RDONLY, INSIDE))
    assert len(calls) == 6
    failures = 10_000
    with pytest.raises(SyscallError, match="Resource temporarily unavailable"):
        openat2(root[1], "outside", os.O_RDONLY, INSIDE)
    assert len(calls) == 6 + openat2_module.TRIES


def test_swapped_while_resolving(root):
    """A directory on the way is exchanged for a link out of the root, over and over: host content is never opened."""
    inside, fd = root
    (inside / "a").mkdir()
    (inside / "a" / "file").write_text("inside")
    (inside / "b").symlink_to("../../../../../../../../" + str(inside.parent))
    (inside.parent / "file").write_text("host")
    stop = threading.Event()

    def swap():
        while not stop.wait(0.0002):
            os.rename(inside / "a", inside / "c")
            os.rename(inside / "b", inside / "a")
            os.rename(inside / "a", inside / "b")
            os.rename(inside / "c", inside / "a")

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen = set()
    try:
        for _ in range(2000):
            try:
                with open(openat2(fd, "sub/../a/../a/file", os.O_RDONLY, INSIDE)) as f:
                    seen.add(f.read())
            except SyscallError as e:
                assert e.errno in (errno.ENOENT, errno.EAGAIN)
    finally:
        stop.set()
        swapper.join()
    assert seen == {"inside"}
