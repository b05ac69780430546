"""SELinux's labels as attributes of files; what they do is tried in a machine that enforces them (tests/machine/test_selinux.py)."""

import os
from pathlib import Path

import pytest

from oci_hook.linux import label

pytestmark = pytest.mark.root


def test_labels(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for file in (one, two):
        file.touch()
    label.put(str(one), label.READ)
    label.copy(str(one), str(two))
    label.put(str(tmp_path / "nothing"), label.READ)
    assert os.listxattr(one) == os.listxattr(two) == []  # there were none: SELinux is off
    os.setxattr(one, label.NAME, b"system_u:object_r:var_run_t:s0:c1,c2\0")
    label.put(str(one), label.READ)
    assert os.getxattr(one, label.NAME) == b"system_u:object_r:container_ro_file_t:s0:c1,c2\0"
    label.copy(str(one), str(two))
    assert os.getxattr(two, label.NAME) == os.getxattr(one, label.NAME)
    os.setxattr(two, label.NAME, b"strange")
    label.put(str(two), label.WRITE)
    assert os.getxattr(two, label.NAME) == b"strange"
