"""Containers that share one simulated GPU, for programs that attack their memory limit through the shipped shim."""

import os
import platform
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_hook_simulator import driver_root
from testbed.compiled import ZIG
from testbed.sim.gpus import build_simulated
from tests.shim.box import MIB, ROOT, Box, policy
from tests.shim.sim_box import CONTEXT_BYTES_AT, Gpu

HERE = Path(__file__).parent
GPU_MIB, LIMIT = 8192, 1024 * MIB
FAIL_EVERY_AT = 336  # struct gpu_head
PATIENCE = 60  # seconds until a program that hangs is killed
SONAME, PRIVATE = b"libcuda.so.1\0", b"libcuda.sim1\0"


class Program:
    """A program in a container: Python with client.py as `cu`. It says lines; what it says last ends the attack."""

    def __init__(self, box: Box, code: str, env: dict[str, str]) -> None:
        text = f"import sys; sys.path.insert(0, {str(HERE)!r})\nfrom attack import *\n{code}"
        self.process = box.start([sys.executable, "-c", text], **env)
        self.late = threading.Timer(PATIENCE, self.process.kill)
        self.late.start()

    def line(self) -> str:
        """The next line that the program says."""
        assert self.process.stdout
        if said := self.process.stdout.readline():
            return said.strip()
        _, error = self.process.communicate()
        raise AssertionError(f"the program ended: {self.process.returncode}\n{error[-3000:]}")

    def tell(self, text: str = "") -> None:
        """Send it a line."""
        assert self.process.stdin
        print(text, file=self.process.stdin, flush=True)

    def ask(self, text: str = "") -> str:
        """Send it a line; its answer."""
        self.tell(text)
        return self.line()

    def kill(self) -> None:
        """SIGKILL."""
        self.late.cancel()
        self.process.kill()
        self.process.communicate()


class Container:
    """A box with 1 GiB of the simulated GPU. What it was charged, against what the GPU itself counts."""

    def __init__(self, node: "Node", name: str, real_cuda: Path, context_bytes: int = 0, block: int = 0) -> None:
        self.node = node
        self.box = Box(node.place / name, node.shim, real_cuda)
        page = bytearray(policy({i: LIMIT * (i + 1) for i in range(len(node.gpus))}))
        for i, uuid in enumerate(node.uuids):
            struct.pack_into("<48s", page, 128 * (i + 1), uuid.encode())
            struct.pack_into("<QII", page, 128 * (i + 1) + 80, context_bytes, 0, block)
        self.box.write_policy(bytes(page))
        self.programs: list[Program] = []

    def start(self, code: str, **env: str) -> Program:
        """A program that runs beside the test."""
        program = Program(self.box, code, {**self.node.env, **env})
        self.programs.append(program)
        return program

    def charged(self, gpu: int = 0) -> int:
        """Bytes that the account page says are in use."""
        try:
            return self.box.total(gpu)
        except FileNotFoundError:
            return 0


class Node:
    """Simulated GPUs of 8 GiB and the containers on them: 1 GiB of GPU 0 for each, 2 GiB of GPU 1. A context takes
    `context_bytes`, and the driver takes memory in blocks of `block` bytes."""

    def __init__(
        self, place: Path, shim: Path, slow: Path, context_bytes: int = 0, gpus: int = 1, block: int = 0
    ) -> None:
        self.block = block
        self.place, self.shim, self.slow, self.context_bytes = place, shim, slow, context_bytes
        files = [place / "gpus" / str(i) for i in range(gpus)]
        files[0].parent.mkdir()
        self.uuids = [driver_root.make_gpu(file, i, GPU_MIB) for i, file in enumerate(files)]
        self.files = files
        for file in files:
            self.write(CONTEXT_BYTES_AT, struct.pack("<Q", context_bytes), file)
            self.write(driver_root.BLOCK_BYTES_AT, struct.pack("<I", block), file)
        self.gpus = [Gpu(file) for file in files]
        self.env = {"GPU_HOOK_SIM_GPUS": str(files[0].parent), "GH_SLOW_DRIVER": str(slow.parent / "simulated.so")}
        self.containers: list[Container] = []

    def container(self, name: str = "box", slow: bool = False) -> Container:
        """Another container. slow: its driver's calls can be made to return late (GH_SLOW)."""
        driver = self.slow if slow else self.shim / "sim/libcuda.so.1"
        made = Container(self, name, driver, self.context_bytes, self.block)
        self.containers.append(made)
        return made

    def held(self, gpu: int = 0) -> int:
        """Bytes that the GPU itself counts, for all containers."""
        return self.gpus[gpu].counted()

    def left(self) -> int:
        """Bytes of these that their maker has freed, or left by its exit, while others hold them."""
        return self.gpus[0].left()

    def fail(self, every: int, code: int = 2) -> None:
        """From now on, every so-manieth driver call fails; 0: none."""
        self.write(FAIL_EVERY_AT, struct.pack("<II", every, code), self.files[0])

    @staticmethod
    def write(at: int, data: bytes, file: Path) -> None:
        """Into the head of a GPU's file."""
        with open(file, "r+b") as f:
            f.seek(at)
            f.write(data)

    def close(self) -> None:
        """End all programs."""
        for container in self.containers:
            for program in container.programs:
                program.kill()
        for gpu in self.gpus:
            gpu.close()


@pytest.fixture(scope="session")
def shim() -> Path:
    """The folder of the shim libraries as they are shipped."""
    build_simulated()
    command = [sys.executable, str(ROOT / "scripts" / "build"), "--part", "shim"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return ROOT / "build" / platform.machine()


@pytest.fixture(scope="session")
def slow(shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """slow.c over the simulated driver, which gets another name: the program's libcuda.so.1 is the shim."""
    out = tmp_path_factory.mktemp("slow")
    driver = (shim / "sim/libcuda.so.1").read_bytes()
    assert driver.count(SONAME) == 1
    (out / "simulated.so").write_bytes(driver.replace(SONAME, PRIVATE))
    command = [*ZIG, "-shared", "-fPIC", "-o", str(out / "slow.so")]
    link = ["-Wl,-soname,libcuda.so.1", "-Wl,--no-as-needed", str(out / "simulated.so"), f"-Wl,-rpath,{out}", "-ldl"]
    (out / PRIVATE[:-1].decode()).symlink_to(out / "simulated.so")
    subprocess.run([*command, str(HERE / "slow.c"), *link], check=True)
    return out / "slow.so"


@pytest.fixture
def make_node(tmp_path: Path, shim: Path, slow: Path) -> Iterator[Callable[..., Node]]:
    """Nodes with one GPU each."""
    made: list[Node] = []

    def make(**options: int) -> Node:
        place = tmp_path / f"node{len(made)}"
        place.mkdir()
        made.append(Node(place, shim, slow, **options))
        return made[-1]

    yield make
    for node in made:
        node.close()


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    """A GPU on which contexts take no memory."""
    return make_node()


__all__ = ["LIMIT", "MIB", "Container", "Node", "Program", "os"]
