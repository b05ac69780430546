"""One operation without the server: in a forked child that loads NVML itself, and that is killed when it takes too long."""

import os
import select
import time

from oci_hook.boundary import protocol
from oci_hook.boundary.keeper import Keeper
from oci_hook.boundary.nvml_limits import LimitError, open_nvml
from oci_hook.linux import limits
from oci_hook.linux.process import die_with_parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.boundary.nvml_limits import NvmlLimits
    from oci_hook.boundary.protocol import Packet
    from oci_hook.config.settings import Settings
    from oci_hook.core.inventory import Inventory

SECONDS = 10.0  # NVML's start takes about a second without persistence mode, more on nodes with many GPUs
PART = 0.8  # of the time, after which the child no longer waits for others' changes: its message then says who holds the lock


class NoAnswerError(LimitError):
    """The driver hangs, or is slow."""


def run(settings: "Settings", request: "Packet", seconds: float = SECONDS) -> "Packet":
    """Do what the request says (protocol.py), in at most so many seconds. Raises LimitError, NoAnswerError.

    A child that hangs in the driver may not even end when it is killed; nobody waits for it.
    """
    deadline = time.monotonic() + seconds
    reader, writer = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            limits.lift()  # NVML maps more than linux/limits.py allows
            die_with_parent(parent)
            keeper = Keeper(lambda: settings, _Connection(), deadline - seconds * (1 - PART))
            os.write(writer, protocol.answer(keeper, protocol.encode(request)))
        finally:
            os._exit(0)
    os.close(writer)
    try:
        data = _read(reader, deadline)
    finally:
        os.close(reader)
        os.kill(child, 9)
        os.waitpid(child, os.WNOHANG)
    if data is None:
        raise NoAnswerError(f"the driver did not answer within {seconds:.0f} s")
    if not data:
        raise LimitError("the program that asks the driver crashed")
    return protocol.result(data)


class _Connection:
    """NVML, started once, with success or without."""

    def __init__(self) -> None:
        self._nvml: NvmlLimits | None = None
        self._error: LimitError | None = None

    def __call__(self, inventory: "Inventory") -> "NvmlLimits":
        if self._error is not None:
            raise self._error
        if self._nvml is None:
            try:
                self._nvml = open_nvml(inventory)
            except LimitError as e:
                self._error = e
                raise
        return self._nvml


def _read(reader: int, deadline: float) -> bytes | None:
    """All that comes until the end; None where that does not come in time."""
    data, events = b"", select.poll()  # select(2) takes no descriptor from 1024 on: an engine may leave us many
    events.register(reader, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not events.poll(left * 1000):
            return None
        more = os.read(reader, protocol.ANSWER_MAX)
        if not more:
            return data
        data += more
