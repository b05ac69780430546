"""Entering a process's mount namespace."""

import os
import subprocess

import pytest

from oci_hook.linux import namespace
from oci_hook.linux.libc import SyscallError

pytestmark = pytest.mark.root


@pytest.fixture
def stranger():
    """A process in a mount namespace of its own, in which /mnt is an empty tmpfs with one file."""
    script = "mount -t tmpfs none /mnt && touch /mnt/here && echo && read stop"
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        yield process
        process.communicate(b"\n")


def test_same(stranger):
    assert not namespace.same("mnt", stranger.pid)
    assert namespace.same("user", stranger.pid)
    assert namespace.same("mnt", os.getpid())


def test_same_of_nobody():
    with pytest.raises(OSError):
        namespace.same("mnt", 4_000_000)


def test_setns_in_a_child(stranger):
    pidfd = os.pidfd_open(stranger.pid)
    child = os.fork()
    if child == 0:
        namespace.setns(pidfd, namespace.CLONE_NEWNS, "")
        os._exit(0 if os.listdir("/mnt") == ["here"] else 1)
    os.close(pidfd)
    assert os.waitpid(child, 0)[1] == 0
    assert "here" not in os.listdir("/mnt")


def test_setns_into_nothing():
    with pytest.raises(SyscallError, match="setns: Bad file descriptor: x"):
        namespace.setns(-1, namespace.CLONE_NEWNS, "x")
