"""The wheel, as pip makes it of the checkout. It is installed and used in test_install_page.py."""

import os
import re
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ARCH, REPO
from tests.packaging.conftest import built_twice

pytestmark = [pytest.mark.root, pytest.mark.slow]


def test_has_the_code_and_the_compiled_parts_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as z:
        modes = {i.filename: i.external_attr >> 16 & 0o777 for i in z.infolist()}
        for name in ("gpu-hook-runtime", "oci-gpu-hook", "sim/share-model", "sim/gpu-probe"):
            assert modes[f"oci_hook/native/{ARCH}/{name}"] == 0o755
        for name in ("libcuda.so.1", "libnvidia-ml.so.1", "sim/libcuda.so.1"):
            assert z.read(f"oci_hook/native/{ARCH}/{name}").startswith(b"\x7fELF")
        tags = re.findall(r"(?m)^Tag: (.*)$", z.read("gpu_hook-0.1.0.dist-info/WHEEL").decode())
    assert tags == [f"py3-none-manylinux2014_{ARCH}"]
    sources = {str(path.relative_to(REPO)) for path in (REPO / "oci_hook").rglob("*.py")}
    assert {name for name in modes if name.endswith(".py")} == sources
    assert not [name for name in modes if name.endswith((".c", ".h", ".pyc"))]


def test_the_same_sources_give_the_same_bytes(native: Path, tmp_path: Path) -> None:
    """Also where a part has to be compiled first, although pip hides the compiler."""
    os.utime(native / "sim/gpu-probe", (0, 0))
    one, other = built_twice("wheel", tmp_path)
    assert one == other
    assert (native / "sim/gpu-probe").stat().st_mtime > 0
