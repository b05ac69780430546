"""A process's parent, and a child that goes with its parent."""

import os
import signal

import pytest

from oci_hook.linux import proc, process


def test_parent():
    assert proc.parent(os.getpid()) == os.getppid()
    with pytest.raises(OSError):
        proc.parent(4_000_000)


def test_die_with_parent():
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        me = os.getpid()
        if os.fork() == 0:
            process.die_with_parent(me)
            os.write(writer, b"x")
            signal.pause()
        signal.pause()
    os.close(writer)
    assert os.read(reader, 1) == b"x"
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert os.read(reader, 1) == b""  # the child's end is closed: it is gone
    os.close(reader)
