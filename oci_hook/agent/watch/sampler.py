"""The agent's side of the NVML process (nvml_process.py): it asks, and does not wait for the answer.

States: "starting", "ok", "slow" (an answer is overdue, the process will be killed), "down" (it will be started again).
"""

import json
import selectors
from collections.abc import Callable
from typing import Any

from oci_hook.agent.judge.gpu_sample import GpuSample
from oci_hook.agent.watch import child
from oci_hook.core.inventory import Inventory
from oci_hook.errors import GhError

ANSWER_SECONDS = 10.0
RETRY_SECONDS = 5.0  # doubled with each failure
RETRY_MAX = 300.0
MAX_ANSWER = 4 << 20
DEAF = "its process ended or hangs"


def gpu(c: "dict[str, Any]") -> GpuSample:
    """Raises KeyError, TypeError, ValueError."""
    return GpuSample(
        int(c["used"]),
        int(c["total"]),
        int(c["busy"]),
        tuple((int(p), None if used is None else int(used), int(busy)) for p, used, busy in c["processes"]),
        str(c["error"])[:200],
        float(c["at"]),
        bool(c["steady"]),
        {str(key): int(used) for key, used in c["charged"].items()},
    )


def parse(line: bytes) -> "tuple[dict[str, GpuSample], str] | tuple[str, GpuSample | None]":
    """(a sample of all GPUs by UUID, the error of NVML as a whole or ""), or (a GPU's UUID, a look at that GPU or None).
    Raises ValueError for anything else."""
    try:
        data = json.loads(line)
        if "look" in data:
            return str(data["look"]), None if data["gpu"] is None else gpu(data["gpu"])
        return {str(uuid): gpu(c) for uuid, c in data["gpus"].items()}, str(data["error"])[:200]
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"not a sample: {e}") from None


class Sampler:
    """Call `ask` for a sample, `receive` when `hear` is called or `fd` is readable, and `check` regularly; times are monotonic seconds.
    looks: the looks at single GPUs that the last `receive` brought, requested by `look` or caused by `watch`.

    answer_seconds: how long an answer may take. There is one process at a time, since a second one would hang, too.
    """

    def __init__(
        self,
        answer_seconds: float = ANSWER_SECONDS,
        selector: selectors.BaseSelector | None = None,
        hear: Callable[[float], None] | None = None,
    ) -> None:
        self.state = "down"
        self.error = "not started"
        self._answer_seconds = answer_seconds
        self._child = child.Child("oci_hook.agent.watch.nvml_process", RETRY_SECONDS, RETRY_MAX, selector, hear)
        self._inventory: Inventory | None = None
        self._asked = 0.0  # 0: no answer is awaited
        self._deaf = False  # the process did not take a request
        self._buffer = b""
        self._watched: dict[str, int] = {}
        self._cgroups: dict[str, dict[str, list[str]]] = {}
        self.looks: dict[str, GpuSample | None] = {}

    @property
    def fd(self) -> int:
        return self._child.fd

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def exists(self) -> bool:
        return self._child.exists

    def use(self, inventory: Inventory) -> None:
        """Use this inventory's library from now on."""
        if self._inventory is None or (inventory.libnvml, inventory.stamp) != (
            self._inventory.libnvml,
            self._inventory.stamp,
        ):
            self.stop("the driver's library changed")
        self._inventory = inventory

    def ask(self, now: float) -> bool:
        """Ask for a sample of all GPUs unless one is awaited; whether one is awaited now."""
        if not self.pid and not self._start(now):
            return False
        if self._asked:
            return True
        self._say("")
        if self._deaf:
            self._fail(now, DEAF)
            return False
        self._asked = now
        return True

    def receive(self, now: float) -> dict[str, GpuSample] | None:
        """Read what has come; a sample of all GPUs if one is complete."""
        self.looks = {}
        data = self._child.read(1 << 20)
        if data is None:
            return None
        self._buffer += data
        if not data or len(self._buffer) > MAX_ANSWER:
            self._fail(now, "its process ended" if not data else "its answer has no end")
            return None
        *lines, self._buffer = self._buffer.split(b"\n")
        sample = None
        for line in lines:
            try:
                first, second = parse(line)
            except ValueError as e:
                self._fail(now, str(e)[:100])
                return None
            if isinstance(first, str):
                self._watched.pop(first, None)
                self.looks[first] = second if isinstance(second, GpuSample) else None
                continue
            sample, self._asked = first, 0.0
            self.state, self.error = ("down", str(second)) if second else ("ok", "")
            if not second:
                self._child.worked()
        return sample

    def look(self, uuid: str) -> None:
        """Ask for a look at one GPU."""
        if self.state == "ok":
            self._say(f"look {uuid}")

    def watch(self, alarms: dict[str, int]) -> None:
        """Have these GPUs watched instead of the previous ones: each is looked at when fewer bytes are free."""
        if self.state == "ok" and alarms != self._watched:
            self._say(f"watch {json.dumps(alarms)}")
            self._watched = dict(alarms)

    def charge(self, cgroups: dict[str, dict[str, list[str]]]) -> None:
        """Have samples and looks say what the driver charges to these cgroups: their paths by GPU and key."""
        if self.state == "ok" and cgroups != self._cgroups:
            self._say(f"cgroups {json.dumps(cgroups)}")
            self._cgroups = cgroups

    def _say(self, line: str) -> None:
        if not self._child.write(line.encode() + b"\n"):
            self._deaf = True

    def check(self, now: float) -> None:
        """Kill the process if it did not take a request, or its answer is overdue."""
        if self._deaf:
            self._fail(now, DEAF)
        elif self._asked and now - self._asked > self._answer_seconds:
            self._fail(now, f"NVML gave no answer within {self._answer_seconds:.0f} s")
        elif self._asked and now - self._asked > self._answer_seconds / 2:
            self.state = "slow"

    def stop(self, why: str = "") -> None:
        self.state, self.error = "down", why
        self._asked, self._deaf, self._buffer = 0.0, False, b""
        self._watched, self._cgroups = {}, {}
        self._child.stop()

    def _fail(self, now: float, why: str) -> None:
        self.stop(why)
        self._child.failed(now)

    def _start(self, now: float) -> bool:
        if self._inventory is None or not self._child.due(now):
            return False
        environment = {"LD_PRELOAD": self._inventory.libnvml}
        if self._inventory.simulated:
            environment |= simulated(self._inventory.driver_root)
        why = self._child.start(now, environment=environment)
        self.state, self.error = ("down", f"its process {why}") if why else ("starting", "")
        return not why


def simulated(driver_root: str) -> dict[str, str]:
    """The environment by which a simulated driver finds its GPUs; {} while its mark is damaged."""
    from oci_hook.discovery import mark

    try:
        found = mark.read(driver_root)
    except GhError:
        return {}
    return found.environment if found else {}


def lost(error: str) -> bool:
    """True if NVML says that the GPU is gone (NVML_ERROR_GPU_IS_LOST: fallen off the bus, Xid 79) or needs a reset."""
    return "lost" in error.lower() or "reset" in error.lower()
