"""Simulated GPUs for single processes: a driver root and GPU files below a folder."""

import os
import subprocess
import sys
from pathlib import Path

from build_c.native_build import PYTHON
from gpu_hook_simulator import driver_root
from gpu_hook_simulator.release import DEFAULT, Release
from oci_hook.discovery.driver_files import MULTIARCH
from testbed import REPO

CLIENT = Path(__file__).resolve().parent  # the folder with client.py, for a child's sys.path
MEMORY_MIB = 1024
CONTEXT_MIB = 64


def ahead() -> list[str]:
    """Begins a command that is to run before the other programs of the machine: tests tell who has the GPU, not who has the
    processor. In real time (sched(7)) where we may, in which kernels of the simulated GPU cost some per cent of a processor."""
    real_time = ["chrt", "--rr", "1"]
    may = subprocess.run([*real_time, "true"], capture_output=True, check=False).returncode == 0
    return real_time if may else ["nice", "-n", "-10"]


def build_simulated(*parts: str) -> Path:
    """Bring these parts of scripts/build up to date (the simulated driver); the build folder."""
    out = REPO / "build" / os.uname().machine
    words = [word for part in parts or ("sim",) for word in ("--part", part)]
    command = [PYTHON, REPO / "scripts/build", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


class Sim:
    """Two GPUs of 1 GiB. Programs find them by the environment of `env`."""

    def __init__(
        self,
        place: Path,
        native: Path,
        memory_mib: int = MEMORY_MIB,
        gpus: int = 2,
        scale: int = 1,
        release: Release = DEFAULT,
    ) -> None:
        self.prefix, self.state = place / "prefix", place / "state"
        self.root = driver_root.make(str(self.prefix), str(self.state), gpus, memory_mib, scale, release=release)
        self.gpus = driver_root.gpus_of(str(self.state))
        self.libraries = self.root / "usr/lib" / MULTIARCH[os.uname().machine]
        self.probe = str(native / "sim/gpu-probe")
        self.started: list[subprocess.Popen[str]] = []

    @property
    def env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
        return {**kept, "GPU_HOOK_SIM_GPUS": str(self.gpus), "LD_LIBRARY_PATH": str(self.libraries)}

    def run(self, *command: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env={**self.env, **env}, input=stdin, capture_output=True, text=True, timeout=120
        )

    def start(self, *command: str) -> subprocess.Popen[str]:
        """A process that runs beside the test; its input and output are pipes. Killed at the end of the test."""
        child = subprocess.Popen(
            command, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.started.append(child)
        return child

    def holder(self, mib: int, *before: str) -> subprocess.Popen[str]:
        """A process that holds that much memory of GPU 0 until it is killed or its input ends."""
        child = self.start(*before, self.probe, "alloc", str(mib), "pause")
        assert child.stdout
        lines = [child.stdout.readline(), child.stdout.readline()]
        assert lines == [f"alloc {mib} MiB: ok\n", "pause\n"], lines
        return child

    def python(self, code: str, **env: str) -> str:
        """Run Python with `cuda` (ctypes, calls that must succeed) and `nvml` (pynvml); its standard output."""
        r = self.run(sys.executable, "-", stdin=f"from client import *\n{code}", PYTHONPATH=str(CLIENT), **env)
        assert r.returncode == 0, r.stdout + r.stderr
        return r.stdout

    def start_python(self, code: str) -> subprocess.Popen[str]:
        """The same in the background; returns when the process has printed "ready"."""
        start = f"import sys; sys.path.insert(0, {str(CLIENT)!r})\nfrom client import *\n{code}"
        child = self.start(sys.executable, "-c", start)
        assert child.stdout and child.stdout.readline() == "ready\n"
        return child

    def open_for_all(self) -> None:
        """Let other users reach GPUs and libraries."""
        for folder in (*self.gpus.parents, *self.libraries.parents):
            if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
                folder.chmod(0o755)

    def free(self) -> int:
        """Free memory of GPU 0 in MiB, by NVML, which needs no context for that."""
        return int(self.python("nvml.nvmlInit(); print(nvml.nvmlDeviceGetMemoryInfo(gpu(0)).free >> 20)"))

    @staticmethod
    def tell(child: subprocess.Popen[str], words: str = "\n") -> None:
        assert child.stdin
        child.stdin.write(words)
        child.stdin.flush()

    @staticmethod
    def line(child: subprocess.Popen[str]) -> str:
        assert child.stdout
        return child.stdout.readline()

    def close(self) -> None:
        for child in self.started:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe:
                    pipe.close()
