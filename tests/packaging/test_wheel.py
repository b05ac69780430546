"""The wheel, as pip makes it of the checkout. It is installed and used in test_install_page.py."""

import os
import re
import zipfile
from pathlib import Path

import pytest

from testbed import REPO
from tests.conftest import ARCH
from tests.packaging.conftest import built_twice

pytestmark = [pytest.mark.root, pytest.mark.slow]


def test_has_the_code_and_the_compiled_parts_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as z:
        modes = {i.filename: i.external_attr >> 16 & 0o777 for i in z.infolist()}
        for name in ("gpu-hook-runtime", "oci-gpu-hook", "gpu-hook-boundary"):
            assert modes[f"oci_hook/native/{ARCH}/{name}"] == 0o755
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            assert z.read(f"oci_hook/native/{ARCH}/{name}").startswith(b"\x7fELF")
        tags = re.findall(r"(?m)^Tag: (.*)$", z.read("gpu_hook-0.1.0.dist-info/WHEEL").decode())
    assert tags == [f"py3-none-manylinux2014_{ARCH}"]
    sources = {str(path.relative_to(REPO)) for path in (REPO / "oci_hook").rglob("*.py")}
    assert {name for name in modes if name.endswith(".py")} == sources
    assert not [name for name in modes if name.endswith((".c", ".h", ".pyc")) or "simulat" in name or "/sim" in name]


def test_the_simulators_wheel(packages: Path) -> None:
    (wheel,) = packages.glob("gpu_hook_simulator-*.whl")
    with zipfile.ZipFile(wheel) as z:
        names = [name for name in z.namelist() if ".dist-info/" not in name]
        parts = {name.rpartition("/")[2] for name in names if "/native/" in name}
        metadata = z.read("gpu_hook_simulator-0.1.0.dist-info/METADATA").decode()
    runtimes = {"libcudart.so.12", "libcudart.so.13"}
    assert (
        parts == {"libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ml.so.1-615", "gpu-probe", "share-model"} | runtimes
    )
    assert "gpu_hook_simulator/calibration.json" in names
    assert all(name.startswith("gpu_hook_simulator/") and not name.endswith((".c", ".h", ".pyc")) for name in names)
    assert re.findall(r"(?m)^Requires-Dist: (.*)$", metadata) == ["gpu-hook==0.1.0"]


def test_the_same_sources_give_the_same_bytes(packages: Path, native: Path, tmp_path: Path) -> None:
    """Also where a part has to be compiled first, although pip hides the compiler."""
    for kind, part in (("wheel", "oci-gpu-hook"), ("simulator-wheel", "sim/gpu-probe")):
        os.utime(native / part, (0, 0))
        one, other = built_twice(kind, packages, tmp_path)
        assert one == other
        assert (native / part).stat().st_mtime > 0
