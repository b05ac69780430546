"""An install with a simulated driver 615, in a mount namespace where cgroup v2 is at /sys/fs/cgroup."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from oci_hook.boundary import limit_records
from oci_hook.boundary.nvml_limits import LimitError, NvmlLimits
from oci_hook.cli.main import cli
from oci_hook.config import settings
from oci_hook.core.grant import Grant
from oci_hook.install import settings_edit
from oci_hook.ledger import inventory, slot_files, store
from testbed import REPO, installs
from testbed.containers import Runc
from testbed.installs import as_text
from testbed.namespaces import Namespaces
from testbed.stage import CC, GLIBC

GPU_MIB = 8192
NO_LIMIT = (1 << 64) - 1
SCRIPT = "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup"
ASK = {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": "1Gi"}
DRIVER = {**ASK, "gpu-hook.io/boundary": "driver"}


def figures(library: Path, files: str, cgroup: str, uuids: Sequence[str]) -> list[int]:
    """The hard limits in MiB that the driver has for this cgroup; -1: none, -2: it knows no such cgroup."""
    nvml = NvmlLimits(str(library), (("GPU_HOOK_SIM_GPUS", files),))
    found = []
    for uuid in uuids:
        try:
            hard = nvml.get(uuid, cgroup).hard
        except LimitError:
            found.append(-2)
        else:
            found.append(-1 if hard == NO_LIMIT else hard >> 20)
    return found


def set_up(words: list[str]) -> None:
    """Runs gpu-hook in this process. Raises AssertionError if it fails."""
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output


class Node:
    """A node with cgroup v2. Programs run there by `enter`; `run` waits for them."""

    def __init__(self, folder: Path, driver: str = "615", limits: str = "dmem", gpus: int = 2, mig: str = "") -> None:
        self.folder = folder
        self.prefix, self.state = folder / "prefix", folder / "state"
        self.python, self.cwd = (sys.executable, "-m", "oci_hook"), REPO
        self.settings = installs.lay(str(self.prefix), runtime="/usr/sbin/runc", state_dir=str(self.state))
        self.program = str(self.prefix / "bin/gpu-hook-runtime")
        self.hook = str(self.prefix / "bin/oci-gpu-hook")
        self.place = Namespaces(SCRIPT)
        self.runc = Runc(folder)
        self.server: subprocess.Popen[str] | None = None
        options = ("--driver", driver, "--limits", limits, "--gpus", str(gpus), "--memory", f"{GPU_MIB}Mi")
        self.sim = ("sim", "up", *options, *(("--mig", mig) if mig else ()))
        self.place.call(set_up, [*self.sim, "--prefix", str(self.prefix)])
        self.settings = settings.load(str(self.prefix))
        self.uuids = [gpu.uuid for gpu in inventory.load(self.settings).gpus]
        self.library = next((self.prefix / "sim/root").rglob("libnvidia-ml.so.1"))

    def set(self, **changes: object) -> None:
        self.settings = settings_edit.change(str(self.prefix), **{key: as_text(v) for key, v in changes.items()})

    def run(self, *command: str, **more: Any) -> "subprocess.CompletedProcess[str]":
        out = self.folder / f"out{time.monotonic_ns()}"
        with out.open("w+") as file, open(f"{out}.err", "w+") as err:
            done = subprocess.run(
                self.place.enter(*command), stdout=file, stderr=err, stdin=subprocess.DEVNULL, timeout=120, **more
            )
        return subprocess.CompletedProcess(command, done.returncode, out.read_text(), Path(f"{out}.err").read_text())

    def cli(self, *args: str, status: int = 0) -> str:
        done = self.run(*self.python, *args, "--prefix", str(self.prefix), cwd=REPO)
        assert done.returncode == status, (args, done)
        return done.stdout + done.stderr

    def runtime(self, *args: str, program: str = "") -> "subprocess.CompletedProcess[str]":
        return self.run(program or self.program, "--root", str(self.runc.root), *args)

    def create(self, bundle: Path, id: str = "") -> "subprocess.CompletedProcess[str]":
        return self.runtime("create", "--bundle", str(bundle), id or self.runc.new_id())

    def start(self, bundle: Path, id: str = "") -> str:
        done = self.create(bundle, id)
        assert done.returncode == 0, done
        made = id or self.runc.ids[-1]
        assert self.runtime("start", made).returncode == 0
        return made

    def delete(self, id: str) -> "subprocess.CompletedProcess[str]":
        return self.runtime("delete", "--force", id)

    def pid(self, id: str) -> int:
        return self.runc.pid(id)

    def cgroup(self, id: str) -> str:
        """As programs on the node see it."""
        lines = Path(f"/proc/{self.pid(id)}/cgroup").read_text().splitlines()
        return "/sys/fs/cgroup" + next(line[3:] for line in lines if line.startswith("0::"))

    def limits(self, cgroup: str, *uuids: str) -> list[int]:
        """The hard limits in MiB that the driver has for this cgroup; -1: none, -2: it knows no such cgroup."""
        files = str(self.state / "sim/gpus")
        found: list[int] = self.place.call(figures, self.library, files, cgroup, uuids or self.uuids[:1])
        return found

    def serve(self) -> "subprocess.Popen[str]":
        command = self.place.enter(sys.executable, "-m", "oci_hook.boundary.server", str(self.prefix))
        pipe = subprocess.PIPE
        self.server = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=REPO)
        assert self.server.stdout is not None
        assert self.server.stdout.readline() == "ready\n"
        return self.server

    def stop_server(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.communicate()
            self.server = None

    def records(self) -> list[limit_records.LimitRecord]:
        return limit_records.every(str(self.state))

    def grants(self) -> tuple[Grant, ...]:
        return store.snapshot(str(self.state))

    def events(self, kind: str) -> list[dict[str, Any]]:
        file = self.state / "events"
        found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [event for event in found if event["event"] == kind]

    def close(self) -> None:
        self.stop_server()
        for id in self.runc.ids:
            if (self.runc.root / id).exists():
                self.runtime("delete", "--force", id, program="runc")
        self.place.close()
        self.runc.close()
        slot_files.drop(str(self.state))


class Stub:
    """A driver whose calls go wrong where a test says so (boundary_stub.c), in place of the simulated one's NVML."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.folder = node.folder / "stub"
        (self.folder / "limits").mkdir(parents=True)
        library = self.folder / "libnvidia-ml.so.1"
        source = str(Path(__file__).with_name("boundary_stub.c"))
        subprocess.run([*CC, *GLIBC, "-shared", "-fPIC", "-o", str(library), source], check=True)
        file = node.state / "inventory.json"
        data = json.loads(file.read_text())
        self.real = data["libnvml"]
        data["environment"] = [["STUB", str(self.folder)]]
        shutil.copy(library, self.real)  # in its place, since containers get it mounted as well
        data["stamp"] = [list(inventory.stamp(entry[0])) for entry in data["stamp"]]
        file.write_text(json.dumps(data))

    def fault(self, words: str) -> None:
        """WORD FUNCTION [N]; "" for none."""
        (self.folder / "fault").write_text(words)

    def limits(self) -> list[str]:
        """ "UUID MIB" of each limit that is set, in any cgroup."""
        found = []
        for file in sorted((self.folder / "limits").iterdir()):
            uuid = next(uuid for uuid in self.node.uuids if file.name.startswith(uuid))
            if words := file.read_text().split():  # else a helper was killed before it wrote it
                found.append(f"{uuid} {int(words[1]) >> 20}")
        return found

    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().split() if file.exists() else []
