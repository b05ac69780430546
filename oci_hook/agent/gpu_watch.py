"""Samples the GPUs through the NVML process, and passes each sample on to the audit and to protection."""

import selectors
import time

from oci_hook.agent import journal, sampler
from oci_hook.agent.auditing import Auditing
from oci_hook.agent.driver_watch import DriverWatch
from oci_hook.agent.node import Node
from oci_hook.agent.protection import Protection
from oci_hook.ledger import events


class GpuWatch:
    """`tick` asks for a sample of all GPUs, which is taken when it comes. read_at: Unix time of the last one."""

    def __init__(
        self,
        node: Node,
        selector: selectors.BaseSelector,
        asked: sampler.Sampler,
        driver: DriverWatch,
        auditing: Auditing,
        protection: Protection,
    ) -> None:
        self.read_at: float | None = None
        self._node = node
        self._selector = selector
        self._sampler = asked
        self._driver = driver
        self._auditing = auditing
        self._protection = protection
        self._fd = -1

    def tick(self, now: float) -> None:
        node = self._node
        if node.inventory is not None:
            self._sampler.use(node.inventory)
            if not self._sampler.ask(now):
                node.gpus = {}  # the old samples are not valid any more
                self._auditing.audit({})  # account pages can be read without the driver
        self.follow()
        sick = self._sampler.state in ("slow", "down") and node.inventory is not None
        node.problem("nvml", self._sampler.error or "NVML is slow" if sick else "")

    def check(self, now: float) -> None:
        """Between ticks: give up an overdue answer, and follow the process that is started instead."""
        self._sampler.check(now)
        self.follow()

    def follow(self) -> None:
        """Wait for the NVML process that there is now."""
        if self._sampler.fd == self._fd:
            return
        if self._fd >= 0:
            try:
                self._selector.unregister(self._fd)
            except (KeyError, ValueError):
                pass
        self._fd = self._sampler.fd
        if self._fd >= 0:
            self._selector.register(self._fd, selectors.EVENT_READ, self._answered)

    def _answered(self, now: float) -> None:
        sample = self._sampler.receive(now)
        for uuid, gpu in self._sampler.looks.items():
            self._protection.look(uuid, gpu)
        if sample is None:
            self.follow()
        else:
            self._take(sample)
        self._sampler.watch(self._protection.guard.alarms)

    def _take(self, sample: dict[str, sampler.GpuSample]) -> None:
        node = self._node
        node.problem("nvml", self._sampler.error)
        if self._sampler.state == "ok":
            self.read_at = time.time()
            self._driver.compare(sample)
        for uuid, gpu in sample.items():
            before = node.gpus.get(uuid)
            if gpu.error and (before is None or not before.error):
                gone = " (the GPU has fallen off the bus: look for Xid in dmesg)" if sampler.lost(gpu.error) else ""
                journal.write(f"GPU {uuid}: NVML: {gpu.error}{gone}", journal.ERROR)
                events.record(node.state_dir, "gpu-error", uuid=uuid, error=gpu.error)
        node.gpus = sample
        self._auditing.audit({uuid: gpu for uuid, gpu in sample.items() if not gpu.error})
