"""A box whose driver is the simulated one, and the simulated GPU's own figures."""

import fcntl
import mmap
import os
import struct
from pathlib import Path

from gpu_hook_simulator import driver_root
from tests.shim.box import MIB, Box, policy

GPU_MIB, LIMIT, CONTEXT = 8192, 1024 * MIB, driver_root.CONTEXT_MIB * MIB
CONTEXT_BYTES_AT = 232  # struct gpu_head
LOCK_SLOT, LOCK_PIECE = 1 << 32, 5 << 32


class Gpu:
    """The simulated GPU's own figures."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR)
        self.map = mmap.mmap(self.fd, driver_root.FILE_SIZE, prot=mmap.PROT_READ)

    def counted(self) -> int:
        """Bytes in use: in the slots of processes, and in pieces that several may hold."""
        root = driver_root
        slots = (i for i in range(root.SLOTS) if self._used(4096, root.SLOT_SIZE, i) and self._locked(LOCK_SLOT, i))
        return sum(self._used(4096, root.SLOT_SIZE, i) for i in slots) + sum(used for used, _ in self._pieces())

    def left(self) -> int:
        """Bytes of these that their maker has freed, or whose maker has exited, while an importer holds them."""
        return sum(used for used, maker in self._pieces() if not maker or not self._locked(LOCK_SLOT, maker - 1))

    def _used(self, at: int, size: int, i: int) -> int:
        return int(struct.unpack_from("<Q", self.map, at + i * size)[0])

    def _locked(self, first: int, i: int) -> bool:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, first + i, 1, 0)
        return bool(struct.unpack("hhqqi4x", fcntl.fcntl(self.fd, fcntl.F_GETLK, lock))[0] != fcntl.F_UNLCK)

    def _pieces(self) -> list[tuple[int, int]]:
        """Bytes of each piece, and 1 + its maker's slot."""
        at, size = driver_root.PIECES_AT, driver_root.PIECE_SIZE
        used = [i for i in range(driver_root.PIECES) if self._used(at, size, i) and self._locked(LOCK_PIECE, i)]
        return [struct.unpack_from("<Q4xI", self.map, at + i * size) for i in used]  # type: ignore[misc]

    def close(self) -> None:
        """Unmap."""
        self.map.close()
        os.close(self.fd)


class SimBox(Box):
    """A container with 1 GiB of a simulated GPU of 8 GiB. context: what a CUDA context takes, and the page says so."""

    def __init__(self, place: Path, shim: Path, context: int = CONTEXT) -> None:
        self.gpus = place / "gpus"
        self.gpus.mkdir(parents=True)
        uuid = driver_root.make_gpu(self.gpus / "0", 0, GPU_MIB)
        with open(self.gpus / "0", "r+b") as f:
            f.seek(CONTEXT_BYTES_AT)
            f.write(struct.pack("<Q", context))
        super().__init__(place / "box", shim, shim / "sim" / "libcuda.so.1", shim / "sim" / "libnvidia-ml.so.1")
        page = bytearray(policy({0: LIMIT}))
        struct.pack_into("<48s", page, 128, uuid.encode())
        struct.pack_into("<Q", page, 128 + 80, context)
        self.write_policy(bytes(page))
        self.figures = Gpu(self.gpus / "0")

    def env(self, **more: str) -> dict[str, str]:
        return super().env(GPU_HOOK_SIM_GPUS=str(self.gpus), **more)

    def close(self) -> None:
        """Unmap."""
        self.figures.close()
