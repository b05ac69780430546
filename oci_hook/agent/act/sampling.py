"""Samples the GPUs through the NVML process, and passes each sample on to the audit and to protection."""

import time

from oci_hook.agent import journal
from oci_hook.agent.act.auditing import Auditing
from oci_hook.agent.act.driver_changes import DriverChanges
from oci_hook.agent.act.protection import Protection
from oci_hook.agent.judge.gpu_sample import GpuSample
from oci_hook.agent.node_state import NodeState
from oci_hook.agent.watch import sampler
from oci_hook.ledger import events


class Sampling:
    """`tick` asks for a sample of all GPUs, which is taken when it comes. read_at: Unix time of the last one."""

    def __init__(
        self,
        node: NodeState,
        asked: sampler.Sampler,
        driver: DriverChanges,
        auditing: Auditing,
        protection: Protection,
    ) -> None:
        self.read_at: float | None = None
        self._node = node
        self._sampler = asked
        self._driver = driver
        self._auditing = auditing
        self._protection = protection

    def tick(self, now: float) -> None:
        node = self._node
        if node.inventory is not None:
            self._sampler.use(node.inventory)
            if not self._sampler.ask(now):
                node.gpus = {}  # the old samples are not valid any more
                self._auditing.audit({})  # account pages can be read without the driver
        sick = self._sampler.state in ("slow", "down") and node.inventory is not None
        node.problem("nvml", self._sampler.error or "NVML is slow" if sick else "")

    def answered(self, now: float) -> None:
        sample = self._sampler.receive(now)
        for uuid, gpu in self._sampler.looks.items():
            self._protection.look(uuid, gpu)
        if sample is not None:
            self._take(sample)
        self._sampler.watch(self._protection.guard.alarms)

    def _take(self, sample: dict[str, GpuSample]) -> None:
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
