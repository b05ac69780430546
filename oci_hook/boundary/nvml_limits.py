"""NVML's calls for memory limits per cgroup (nvidia-ml-py 13.615, nvmlDeviceSetMemoryLimits_v1), by ctypes.

Only a process that may hang or crash with the driver loads this library: the server, or a child that is killed in time.
"""

import ctypes
import os

from oci_hook.core.boundary import NO_LIMIT, Limit
from oci_hook.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_hook.core.inventory import Inventory

SUCCESS = 0
INVALID_ARGUMENT = 2
NOT_FOUND = 6


class LimitError(Exception):
    """The driver did not do what it was asked for; str() is one line for people. code: NVML's, 0 where it has none."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class LimitFigures(Value):
    """The driver's figures for one cgroup on one GPU, in bytes. used: charged to the cgroup."""

    soft: int
    hard: int
    used: int


class _Set(ctypes.Structure):  # nvmlSetMemoryLimits_v1_t
    _fields_ = [("name", ctypes.c_char_p), ("soft", ctypes.c_ulonglong), ("hard", ctypes.c_ulonglong)]


class _Get(ctypes.Structure):  # nvmlGetMemoryLimits_v1_t
    _fields_ = [*_Set._fields_, ("used", ctypes.c_ulonglong)]


class NvmlLimits:
    """An initialised NVML. Raises LimitError. Handles are asked for once."""

    def __init__(self, library: str, environment: "tuple[tuple[str, str], ...]" = ()) -> None:
        """environment: of simulated GPUs (Inventory.environment), which the library reads."""
        os.environ.update(environment)
        try:
            self._library = ctypes.CDLL(library)
        except OSError as e:
            raise LimitError(f"NVML cannot be loaded: {e}") from None
        self._handles: dict[str, ctypes.c_void_p] = {}
        self._call("nvmlInit_v2", (), "NVML does not start")

    def close(self) -> None:
        try:
            self._call("nvmlShutdown", (), "")
        except LimitError:
            pass

    def find(self, uuids: "Iterable[str]") -> None:
        """Raises LimitError for a GPU that the driver does not know."""
        for uuid in uuids:
            self._handle(uuid)

    def set(self, limit: Limit, cgroup: str) -> None:
        """Set the limit of this cgroup (its directory) and read it back; with the soft limits of those below, the soft one
        may be larger. Raises LimitError."""
        wanted = _Set(os.fsencode(cgroup), limit.soft, limit.hard)
        what = f"setting the limit of {cgroup[-80:]}"
        self._call("nvmlDeviceSetMemoryLimits_v1", (self._handle(limit.uuid), ctypes.byref(wanted)), what)
        found = self.get(limit.uuid, cgroup)
        if found.hard != limit.hard or found.soft < limit.soft:
            raise LimitError(f"{what}: {limit.hard} bytes were asked for, {found.hard} are set")

    def clear(self, uuid: str, cgroup: str) -> None:
        """Remove the limit. Raises LimitError, also where it is still set afterwards."""
        self.set(Limit(uuid, 0, NO_LIMIT), cgroup)

    def get(self, uuid: str, cgroup: str) -> LimitFigures:
        """Raises LimitError."""
        asked = _Get(os.fsencode(cgroup), 0, 0, 0)
        what = f"reading the limit of {cgroup[-80:]}"
        self._call("nvmlDeviceGetMemoryLimits_v1", (self._handle(uuid), ctypes.byref(asked)), what)
        return LimitFigures(asked.soft, asked.hard, asked.used)

    def knows(self, function: str) -> bool:
        return hasattr(self._library, function)

    def _handle(self, uuid: str) -> "ctypes.c_void_p":
        if uuid not in self._handles:
            handle = ctypes.c_void_p()
            arguments = (ctypes.c_char_p(uuid.encode()), ctypes.byref(handle))
            self._call("nvmlDeviceGetHandleByUUID", arguments, f"GPU {uuid}")
            self._handles[uuid] = handle
        return self._handles[uuid]

    def _call(self, function: str, arguments: "tuple[object, ...]", what: str) -> None:
        try:
            call = getattr(self._library, function)
        except AttributeError:
            raise LimitError(f"{what}: the driver has no {function}; it is older than 615") from None
        code = int(call(*arguments))
        if code != SUCCESS:
            raise LimitError(f"{what}: {self._text(code)}", code)

    def _text(self, code: int) -> str:
        try:
            words = self._library.nvmlErrorString
            words.restype = ctypes.c_char_p
            return (words(ctypes.c_int(code)) or b"").decode("utf-8", "replace") or f"NVML error {code}"
        except AttributeError:
            return f"NVML error {code}"


def open_nvml(inventory: "Inventory") -> NvmlLimits:
    """NVML as the inventory knows it. Raises LimitError."""
    return NvmlLimits(inventory.libnvml, inventory.environment)
