"""The inventory cache: what is written is what is read, and whatever changed since makes it stale."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oci_hook.config.settings import Settings
from oci_hook.core.inventory import DeviceFile, DriverFile, Gpu, GpuNode, Inventory
from oci_hook.discovery.save import save_inventory
from oci_hook.errors import NodeError
from oci_hook.ledger import inventory
from oci_hook.linux.proc import boot_id
from testbed.long import draws

text = st.text(st.characters(codec="utf-8"), max_size=30)
number = st.integers(0, 2**53)


@pytest.fixture
def node(tmp_path: Path) -> Settings:
    (tmp_path / "libcuda.so.1.2").write_text("cuda")
    (tmp_path / "state").mkdir(mode=0o700)
    return Settings(str(tmp_path / "prefix"), driver_root=str(tmp_path), state_dir=str(tmp_path / "state"))


def found(node: Settings) -> Inventory:
    libcuda = f"{node.driver_root}/libcuda.so.1.2"
    return Inventory(
        boot_id=boot_id(),
        driver_version="1.2",
        driver_root=node.driver_root,
        simulated=False,
        gpus=(Gpu("GPU-0", 0, 3, 1024, "A GPU", "0000:01:00.0", 1), Gpu("GPU-1", 1, 4, 2048, simulated=True)),
        control=(DeviceFile("/dev/nvidiactl", 195, 255),),
        files=(DriverFile(libcuda, "library", "compute", ("libcuda.so.1.2", "libcuda.so.1")),),
        libcuda=libcuda,
        libnvml="/nowhere",
        links=(("GPU-0", "GPU-1", 40),),
        nodes=(GpuNode("GPU-0", "graphics", "/dev/dri/card1", 226, 1),),
        stamp=(inventory.stamp(libcuda), inventory.stamp("/proc/version")),
    )


def refusal(node: Settings, code: str) -> str:
    with pytest.raises(NodeError) as e:
        inventory.load(node)
    assert [p.code for p in e.value.problems] == [code]
    assert "gpu-hook gpus --refresh" in str(e.value)
    return str(e.value)


def file(node: Settings) -> Path:
    return Path(node.state_dir) / "inventory.json"


def test_what_was_saved_is_loaded(node: Settings) -> None:
    said = found(node)
    save_inventory(node, said)
    assert inventory.load(node) == said
    st = file(node).stat()
    assert (stat.S_IMODE(st.st_mode), st.st_uid) == (0o644, os.geteuid())
    assert sorted(os.listdir(node.state_dir)) == ["inventory.json", "owner"]


def test_the_old_one_stays_when_the_new_one_cannot_be_written(node: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    save_inventory(node, found(node))

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(NodeError, match="GH-303.*No space left"):
        save_inventory(node, found(node).replace(driver_version="9"))
    monkeypatch.undo()
    assert inventory.load(node).driver_version == "1.2"
    assert sorted(os.listdir(node.state_dir)) == ["inventory.json", "owner"]


def test_none_yet(node: Settings) -> None:
    assert f"--prefix {node.prefix}" in refusal(node, "GH-301")


def test_another_boot(node: Settings) -> None:
    save_inventory(node, found(node).replace(boot_id="00000000-0000-0000-0000-000000000000"))
    assert "earlier boot" in refusal(node, "GH-301")


def test_driver_root_was_changed(node: Settings) -> None:
    save_inventory(node, found(node))
    assert "driver_root" in refusal(node.replace(driver_root="/run/nvidia/driver"), "GH-301")


def test_library_was_replaced(node: Settings) -> None:
    save_inventory(node, found(node))
    new = Path(node.driver_root) / "new"
    new.write_text("cuda")
    new.rename(Path(node.driver_root) / "libcuda.so.1.2")
    assert "libcuda.so.1.2 changed" in refusal(node, "GH-301")


def test_library_is_gone(node: Settings) -> None:
    save_inventory(node, found(node))
    (Path(node.driver_root) / "libcuda.so.1.2").unlink()
    assert "libcuda.so.1.2 is gone" in refusal(node, "GH-302")


def test_kernel_driver_was_replaced(node: Settings) -> None:
    """Files below /proc have no lasting inode and time: their text counts."""
    path, zero, length, checksum = inventory.stamp("/proc/version")
    assert (path, zero, length) == ("/proc/version", 0, len(Path("/proc/version").read_bytes()))
    save_inventory(node, found(node).replace(stamp=((path, zero, length, checksum ^ 1),)))
    assert "/proc/version changed" in refusal(node, "GH-301")


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_others_could_have_written_it(node: Settings, mode: int) -> None:
    save_inventory(node, found(node))
    file(node).chmod(mode)
    assert "can be changed by other users" in refusal(node, "GH-301")


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"format":2}',
        b'{"format":1}',
        b'{"format":1,"gpus":3}',
        b"\xff",
        b"[" * 100000,
    ],
)
def test_damaged(node: Settings, damage: bytes) -> None:
    save_inventory(node, found(node))
    file(node).write_bytes(damage)
    refusal(node, "GH-301")


def test_every_cut_is_refused(node: Settings) -> None:
    save_inventory(node, found(node))
    whole = file(node).read_bytes()
    for length in range(0, len(whole) - 1, 7):
        file(node).write_bytes(whole[:length])
        refusal(node, "GH-301")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=draws(50))
@given(name=text, version=text, index=number, pci=text, links=st.lists(st.tuples(text, text, number), max_size=3))
def test_any_values_survive(
    node: Settings, name: str, version: str, index: int, pci: str, links: list[tuple[str, str, int]]
) -> None:
    gpu = Gpu("GPU-x", index, index, index, name, pci)
    said = found(node).replace(driver_version=version, gpus=(gpu,), links=tuple(links))
    save_inventory(node, said)
    assert inventory.load(node) == said
