"""Over NVIDIA's own libraries (550, from Debian): without a GPU, but with every real function behind the stubs."""

import subprocess
import sys
from pathlib import Path

import pytest
from box import Box
from conftest import HERE, compile_c
from test_build import exported

from oci_hook.shim import build

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def real_box(box: Box, real_driver: Path, no_new_devices: None) -> Box:
    for ours, theirs in (("cuda", "libcuda.so"), ("ml", "libnvidia-ml.so")):
        (box.place / "driver" / ours).write_bytes((real_driver / theirs).read_bytes())
    return box


def call_all(box: Box, program: Path, library: str, names: list[str]) -> dict[str, str]:
    listed = box.place / "names"
    listed.write_text("\n".join(names) + "\n")
    out = box.run(["sh", "-c", f"{program} {library} < /run/gpu-hook/names"], timeout=200)
    return dict(line.split(" ", 1) for line in out.stdout.splitlines())


@pytest.mark.parametrize(("library", "private"), [("libcuda.so", "cuda"), ("libnvidia-ml.so", "ml")])
def test_every_function_answers_as_the_drivers_own(
    real_box: Box, real_driver: Path, tmp_path: Path, library: str, private: str
) -> None:
    names = sorted(n for n in exported(real_driver / library) if n.startswith(("cu", "nvml")))
    assert len(names) > 300
    program = compile_c(tmp_path / "every", "-w", str(HERE / "every.c"), "-ldl")
    theirs = call_all(real_box, program, f"/run/gpu-hook/driver/{private}", names)
    ours = call_all(real_box, program, f"{library}.1", names)
    assert "missing" not in ours.values()
    refused = set(build.table("GH_NVML_REFUSED"))
    other = {
        n: (theirs[n], ours[n]) for n in names if theirs[n] != ours[n] and n not in refused and n != "nvmlErrorString"
    }  # a pointer
    assert not other, other
    assert {ours[n] for n in refused & set(names)} <= {"4"}
    if private == "cuda":
        assert ours["cuInit"] == "100"  # CUDA_ERROR_NO_DEVICE
        assert ours["cuMemAlloc_v2"] == "3"  # CUDA_ERROR_NOT_INITIALIZED


def test_nvidia_smi_says_what_it_says_without_us(real_box: Box, real_driver: Path) -> None:
    """It says that there is no driver, with its own libraries first on the path and with ours."""
    program = str(real_driver / "nvidia-smi")
    ours = real_box.run([program], check=False)
    plain = subprocess.run(
        [program], env={"LD_LIBRARY_PATH": str(real_driver / "plain")}, capture_output=True, text=True
    )
    assert "couldn't communicate with the NVIDIA driver" in ours.stdout
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)


def test_a_static_cudart_finds_the_shim(real_box: Box, real_driver: Path) -> None:
    """cuda-bindings contains a static cudart, which opens libcuda.so.1 and asks it for every function."""
    pytest.importorskip("cuda.bindings.runtime")
    code = """
from cuda.bindings import runtime
print(runtime.cudaGetDeviceCount(), runtime.cudaMalloc(10), runtime.cudaDriverGetVersion())
opened = {line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps") if "/libcuda.so" in line or "/gpu-hook/driver" in line}
print(sorted(opened))
"""
    ours = real_box.run([sys.executable, "-c", code])
    (real_driver / "plain" / "libcuda.so.1").unlink(missing_ok=True)
    (real_driver / "plain" / "libcuda.so.1").symlink_to(real_driver / "libcuda.so")
    env = {"LD_LIBRARY_PATH": str(real_driver / "plain")}
    plain = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert ours.stdout.splitlines()[0] == plain.stdout.splitlines()[0]
    assert str(real_box.shim / "libcuda.so.1") in ours.stdout and "/run/gpu-hook/driver/cuda" in ours.stdout
