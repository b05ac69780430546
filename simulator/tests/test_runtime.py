"""The simulator's CUDA runtime, called by a program that is compiled with NVIDIA's own headers of each version."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_hook_simulator.release import release
from testbed import pinned as fetch
from testbed.compiled import ZIG
from testbed.sim.gpus import Sim

CC = [*ZIG, "-std=c11", "-Wall", "-fno-sanitize=undefined"]
VERSIONS = {
    "12": ("nvidia/cuda_runtime/include", "550", 12090, 12040),
    "13": ("nvidia/cu13/include", "580", 13000, 13000),
}
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


@pytest.fixture(scope="module")
def runtime(simulated: Path) -> Path:
    """The folder of the runtime's libraries, up to date with their sources."""
    command = [sys.executable, ROOT / "scripts/build", "--part", "sim/runtime"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return simulated / "sim/runtime"


@pytest.fixture(scope="module")
def client(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The program with headers and library of that major version."""
    folder = tmp_path_factory.mktemp("runtime")
    headers = fetch.wheels("cuda-runtime-headers")

    def make(major: str) -> str:
        program = folder / f"client{major}"
        if not program.exists():
            library = runtime / f"libcudart.so.{major}"
            include = [f"-I{headers / VERSIONS[major][0]}", f"-I{headers / 'nvidia/cu13/include'}"]
            words = [*CC, *include, "-o", str(program), str(HERE / "runtime_client.c"), str(library)]
            subprocess.run([*words, f"-Wl,-rpath,{runtime}"], check=True)
        return str(program)

    return make


@pytest.mark.parametrize("major", list(VERSIONS))
def test_a_program_with_nvidias_headers(major: str, client: Callable[[str], str], make_sim: Callable[..., Sim]) -> None:
    _, driver, version, driver_version = VERSIONS[major]
    done = make_sim(release=release(driver)).run(client(major))
    assert done.stdout.splitlines() == [
        f"devices 2, runtime {version} of headers {version}, driver {driver_version}",
        "Simulated GPU 1 GiB, 1024 MiB, 9.0, warp 32, threads 1024, grid 2147483647, bus 52, pools 1",
        "multiprocessors 0",
        "device 2: cudaErrorInvalidDevice",
        "last error: cudaErrorInvalidDevice, then cudaSuccess",
        "0 bytes: (nil); 100 MiB took 100",
        "64 GiB: out of memory",
        "device memory: type 2, device 0, 1",
        "a variable: type 0, device -2, 1",
        "copied: runtime",
        "direction 7: cudaErrorInvalidMemcpyDirection",
        "set: AAAAAAA",
        "pinned: AAAAAAA",
        "left 0",
        "kernel: 1024 threads at most, fits",
        "no kernel: cudaErrorInvalidDeviceFunction",
        "no configuration: cudaErrorMissingConfiguration",
        "variable: symbol, 4096 bytes, somewhere",
        "beyond it: cudaErrorInvalidValue",
        "graph: capture 1, 1 node, it took time",
        "another thread uses device 1, this one 0",
        "driver's cuMemAlloc: 0, found",
        "driver's cuNothing: 1, missing",
        "kernel after a reset: cudaSuccess",
        "kernel of an unloaded library: cudaErrorInvalidDeviceFunction",
    ], done
    assert done.returncode == 0 and done.stderr == "", done


def test_13_needs_a_driver_of_cuda_13(client: Callable[[str], str], sim: Sim) -> None:
    done = sim.run(client("13"))
    assert (done.stdout, done.returncode) == ("cudaErrorInsufficientDriver\n", 3)
    assert "the driver's CUDA version is before this runtime's" in done.stderr


def test_no_gpu_and_no_driver(client: Callable[[str], str], sim: Sim, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    assert sim.run(client("12"), GPU_HOOK_SIM_GPUS=str(tmp_path / "none")).stdout == "cudaErrorNoDevice\n"
    assert sim.run(client("12"), LD_LIBRARY_PATH="").stdout == "cudaErrorInsufficientDriver\n"


def test_above_another_driver_it_refuses(client: Callable[[str], str], sim: Sim) -> None:
    """The name of its devices tells; a GPU file with another name stands for a real GPU."""
    gpu = sim.gpus / "0"
    data = gpu.read_bytes()
    gpu.write_bytes(data.replace(b"Simulated GPU 1 GiB", b"NVIDIA H100 80GB HB", 1))
    done = sim.run(client("12"))
    assert (done.stdout, done.returncode) == ("cudaErrorInsufficientDriver\n", 3)
    assert done.stderr == (
        "libcudart of gpu-hook's simulator: this driver is not a simulated one. Use NVIDIA's libcudart with it.\n"
    )


def test_it_says_what_it_is(runtime: Path) -> None:
    for major in VERSIONS:
        data = (runtime / f"libcudart.so.{major}").read_bytes()
        assert b"CUDA runtime of gpu-hook's simulator: not NVIDIA's" in data
