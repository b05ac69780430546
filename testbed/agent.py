"""The agent as a process of its own beside real containers on simulated GPUs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.ledger import store
from oci_hook.linux.proc import boot_id, process_life
from oci_hook.observe import account
from testbed import REPO, tiny_image
from testbed.stage import CC, GLIBC, Stage
from testbed.until import until

HERE = Path(__file__).resolve().parent
UNIT = REPO / "packaging/systemd/gpu-hook-agent.service"
T = TypeVar("T")


def capabilities() -> list[str]:
    """As setpriv(1) has them: +kill."""
    lines = UNIT.read_text().splitlines()
    (names,) = [line.partition("=")[2] for line in lines if line.startswith("CapabilityBoundingSet=")]
    return ["+" + name.removeprefix("CAP_").lower() for name in names.split()]


class Agent:
    """A running one. `node` is its JSON, None while it does not answer."""

    def __init__(self, stage: Stage, *flags: str, env: Mapping[str, str] | None = None) -> None:
        self.log = stage.folder / f"agent{time.monotonic_ns()}.log"
        # With no more rights than its unit gives it.
        command = ["setpriv", "--no-new-privs", "--bounding-set", ",".join(("-all", *capabilities())), sys.executable]
        command += ["-m", "oci_hook", "agent", "--prefix", str(stage.prefix)]
        command += ["--interval", "0.2", "--address", "127.0.0.1:0", *flags]
        environment = {k: v for k, v in os.environ.items() if k not in ("JOURNAL_STREAM", "NOTIFY_SOCKET")}
        environment |= env or {}
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, cwd=REPO, stderr=log, env=environment)
        self.port = 0
        self.killed = False

    def kill(self) -> None:
        self.killed = True
        self.process.kill()
        self.process.wait()

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return bytes(answer.read())

    def node(self) -> Any:
        return json.loads(self.get("/api/node"))

    def ready(self) -> None:
        def port() -> int:
            assert self.process.poll() is None, self.log.read_text()
            return int((self.log.read_text().partition("http://127.0.0.1:")[2].partition("/")[0]) or 0)

        self.port = until(port)
        until(lambda: self.node()["gpus"] and self.node()["agent"]["nvml"] == "ok")

    def looks(self, count: int) -> None:
        """Wait until it has sampled the GPUs so many times."""
        for _ in range(count + 1):  # the one under way may have begun before
            last = self.node()["agent"]["nvml_read"]
            until(lambda last=last: self.node()["agent"]["nvml_read"] != last)  # type: ignore[misc]

    def container(self, id: str) -> Any:
        """None: it does not know it."""
        return next((c for c in self.node()["containers"] if c["id"] == id), None)

    def kinds(self, id: str) -> set[str]:
        found = self.container(id)
        return {f["kind"] for f in found["findings"]} if found else set()


@contextmanager
def running(stage: Stage, *flags: str, env: Mapping[str, str] | None = None) -> Iterator[Agent]:
    agent = Agent(stage, *flags, env=env)
    try:
        agent.ready()
        yield agent
        assert agent.killed or agent.process.poll() is None, agent.log.read_text()
    finally:
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(60) == 0 or agent.killed, agent.log.read_text()


def image(folder: Path) -> Path:
    root = tiny_image.with_c_library(folder / "rootfs")
    shutil.copy(REPO / "build" / os.uname().machine / "sim/gpu-probe", root / "bin/gpu-probe")
    shutil.copy(REPO / "build" / os.uname().machine / "bench/liar", root / "bin/liar")
    subprocess.run([*CC, *GLIBC, "-o", str(root / "bin/bypass"), str(HERE / "bypass.c"), "-ldl"], check=True)
    return root


def grant_of(pid: int, key: str = "a" * 32) -> Grant:
    """A share of one GPU, of a container that lives as long as this process."""
    who = Identity("/run/runc", key[:3], "/b")
    return Grant(key, who, Life(boot_id(), process_life(pid)), (Share("GPU-0", 1024),))


def grant(stage: Stage, id: str) -> Grant | None:
    return next((g for g in store.snapshot(str(stage.state)) if g.who.id == id), None)


def surcharge(stage: Stage, id: str) -> int:
    """MiB, as the container's shim reads it."""
    found = grant(stage, id)
    assert found and found.life.init
    with account.Account(*found.life.init) as page:
        usage = page.read(1)
    return usage.surcharges[0] >> 20 if usage else -1


def events(stage: Stage) -> list[dict[str, Any]]:
    file = stage.state / "events"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
