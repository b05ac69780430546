"""Missing device nodes of GPUs are made."""

import os
from pathlib import Path

import pytest

from oci_hook.agent.act import device_nodes
from oci_hook.core.inventory import DeviceFile
from oci_hook.discovery import char_links
from tests.agent.parts import inventory

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.mark.root
@root_only
def test_missing_nodes_and_links_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(char_links, "FOLDER", str(tmp_path / "char"))
    nodes = (DeviceFile(str(tmp_path / "nvidiactl"), 195, 255), DeviceFile(str(tmp_path / "uvm"), 510, 0))
    (tmp_path / "uvm").write_text("in its place")
    made, wrong = device_nodes.repair(inventory(False, 0, nodes))
    assert made == [str(tmp_path / "nvidiactl"), str(tmp_path / "char/195:255")]
    assert wrong == [f"{tmp_path}/uvm is not the device 510:0; remove it"]
    st = os.stat(tmp_path / "nvidiactl")
    assert (os.major(st.st_rdev), os.minor(st.st_rdev), st.st_mode & 0o777) == (195, 255, 0o666)
    assert os.path.lexists(tmp_path / "char/195:255")
    assert device_nodes.repair(inventory(False, 0, nodes))[0] == []
    assert device_nodes.repair(inventory(True, 2, nodes)) == ([], [])
