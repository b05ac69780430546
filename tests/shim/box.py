"""A container for the shim tests: a mount namespace with a private directory at /run/gpu-hook, no runtime.

The libraries under test are the shipped ones; only what lies below them differs.
"""

import os
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
DEVICES, SLOTS = 4, 256
_HEAD = struct.Struct("<QIIIIII40s56x")
_GPU = struct.Struct("<48sQQIIII48x")


def uuid(gpu: int) -> str:
    """The fake driver's UUID of a GPU."""
    h = f"{0xA0 + gpu:02x}" * 16
    return f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def policy(limits: dict[int, int], whole: tuple[int, ...] = (), seq: int = 0, version: int = 1) -> bytes:
    """A policy page that grants GPUs with limits in bytes."""
    page = bytearray(4096)
    _HEAD.pack_into(page, 0, 0x31594C4F50484755, version, 4096, seq, len(limits), 0, 1, b"key")
    for i, (gpu, limit) in enumerate(limits.items()):
        _GPU.pack_into(page, 128 + 128 * i, uuid(gpu).encode(), limit, 8192 * MIB, 0, 0, int(gpu in whole), gpu)
    return bytes(page)


class Box:
    """One container: its private directory, its policy, its fake GPU."""

    def __init__(self, place: Path, shim: Path, real_cuda: Path, real_ml: Path | None = None) -> None:
        self.place = place
        self.shim = shim
        (place / "driver").mkdir(parents=True)
        (place / "account").mkdir()
        (place / "account").chmod(0o1777)
        copy(real_cuda, place / "driver" / "cuda")
        if real_ml:
            copy(real_ml, place / "driver" / "ml")
        self.gpu = place / "gpu"
        self.gpu.write_bytes(struct.pack(f"<{2 * DEVICES}Q", *[8192 * MIB] * DEVICES, *[0] * DEVICES))
        os.truncate(self.gpu, 8 * DEVICES * (2 + SLOTS))
        self.grant({0: 1024 * MIB})

    def grant(self, limits: dict[int, int], **more: object) -> None:
        """Write the policy page, in place as gpu-hook does."""
        self.write_policy(policy(limits, **more))  # type: ignore[arg-type]

    def write_policy(self, page: bytes) -> None:
        """Any bytes as the policy page."""
        path = self.place / "policy"
        with open(path, "r+b" if path.exists() else "w+b") as f:
            f.write(page)
            f.truncate(len(page))

    def peak(self, gpu: int = 0) -> int:
        """The most bytes that all running processes ever had on a GPU at once."""
        return int(struct.unpack_from("<Q", self.gpu.read_bytes(), 8 * (DEVICES + gpu))[0])

    def account(self) -> bytes:
        """The account page as it is."""
        return (self.place / "account" / "page").read_bytes()

    def total(self, gpu: int = 0) -> int:
        """Bytes charged on a GPU."""
        return int(struct.unpack_from("<Q", self.account(), 1024 + 64 * gpu)[0] >> 30 << 9)

    def command(self, argv: list[str]) -> list[str]:
        """argv, as it would run in the box."""
        # A /dev of its own: the real libnvidia-ml, run by root, makes itself /dev/nvidiactl.
        script = (
            "mount -t tmpfs none /run && mkdir -p /run/gpu-hook /run/dev/shm && "
            "cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /run/dev && mount --bind /run/dev /dev && "
            f'mount --bind {self.place} /run/gpu-hook && exec "$@"'
        )
        return ["unshare", "-m", "sh", "-c", script, "sh", *argv]

    def env(self, **more: str) -> dict[str, str]:
        """The environment of a program in the box."""
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "ASAN_OPTIONS", "TSAN_OPTIONS")}
        return {**kept, "LD_LIBRARY_PATH": str(self.shim), "PYTHONPATH": str(Path(__file__).parent), **more}

    def start(self, argv: list[str], **env: str) -> "subprocess.Popen[str]":
        """Start a program in the box, with pipes."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.command(argv), env=self.env(**env), stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def run(
        self, argv: list[str], check: bool = True, timeout: float = 60, **env: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program in the box to its end."""
        done = subprocess.run(
            self.command(argv), env=self.env(**env), capture_output=True, text=True, timeout=timeout, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"{argv}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def python(self, code: str, check: bool = True, **env: str) -> "subprocess.CompletedProcess[str]":
        """Run Python code in the box, with `driver` from client.py at hand as `cu`."""
        return self.run([sys.executable, "-c", "import client as cu\n" + code], check=check, **env)


def copy(source: Path, target: Path) -> None:
    """A copy of a library."""
    target.write_bytes(source.read_bytes())
