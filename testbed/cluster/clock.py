"""The clocks of one program of the lab, by clock_shift.c."""

import struct
from pathlib import Path


class Clock:
    def __init__(self, library: Path, file: Path) -> None:
        self.file = file
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(file)}
        self.set()

    def set(self, real: float = 0, monotonic: float = 0, boot: float = 0) -> None:
        """Seconds before (+) or behind (-) the computer's clocks. The two last ones may only grow while the program runs."""
        self.now = real, monotonic, boot
        data = struct.pack("3q", *(round(x * 1e9) for x in (real, monotonic, boot)))
        with open(self.file, "r+b" if self.file.exists() else "wb") as f:
            f.write(data)
