"""kill -9 at random moments of `create` through the shipped runtime and real runc: the ledger keeps exactly the living containers."""

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from gpu_hook_simulator import driver_root
from oci_hook.discovery import discover
from oci_hook.discovery.save import save_inventory
from oci_hook.install import prefix as installs
from oci_hook.install import settings_edit
from oci_hook.ledger import slot_files, store
from oci_hook.linux.proc import start_time
from testbed import tiny_image

GPU_MIB, SHARE_MIB = 24576, 8192  # three containers fill the GPU
LATEST = 0.12  # seconds; a create takes about half of it


class Place:
    """An install with one simulated GPU and a runc root of its own below a temporary folder."""

    def __init__(self, folder: Path, memory: int = SHARE_MIB, runtime: str | None = None) -> None:
        self.folder, self.prefix, self.state = folder, folder / "prefix", folder / "state"
        self.root = folder / "runc"
        installs.lay(str(self.prefix), runtime=runtime, state_dir=str(self.state))
        driver_root.make(str(self.prefix), str(self.state), 1, GPU_MIB)
        root = driver_root.root_of(str(self.prefix))
        settings = settings_edit.set_driver_root(str(self.prefix), str(root))
        save_inventory(settings, discover.discover(settings.driver_root))
        tiny_image.busybox(folder / "rootfs")
        subprocess.run(["runc", "spec"], cwd=folder, check=True)
        self.spec = json.loads((folder / "config.json").read_text())
        self.spec["process"].update(terminal=False, args=["sleep", "1000"])
        self.spec["root"]["path"] = str(folder / "rootfs")
        self.spec["annotations"] = {"gpu-hook.io/memory": str(memory)}

    def bundle(self, id: str) -> Path:
        place = self.folder / id
        place.mkdir()
        spec = {**self.spec, "linux": {**self.spec["linux"], "cgroupsPath": f"/gpu-hook-crash-{os.getpid()}/{id}"}}
        (place / "config.json").write_text(json.dumps(spec))
        return place

    def create(self, id: str) -> "subprocess.Popen[bytes]":
        program = [str(self.prefix / "bin/gpu-hook-runtime"), "--root", str(self.root)]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([*program, "create", "--bundle", str(self.bundle(id)), id], **quiet)

    def delete(self, id: str) -> None:
        subprocess.run(["runc", "--root", str(self.root), "delete", "--force", id], capture_output=True)

    def living(self) -> set[str]:
        """Containers whose init lives, by runc's own state files."""
        found = set()
        for file in self.root.glob("*/state.json"):
            try:
                state = json.loads(file.read_text())
            except (OSError, ValueError):
                continue
            if start_time(state["init_process_pid"]) == state["init_process_start"]:
                found.add(file.parent.name)
        return found


def audit(place: Place) -> tuple[int, int]:
    """(containers that live without a grant or beyond the GPU, grants without a living container), when settled."""
    for _ in range(100):  # killed processes may take a moment to be gone
        living = place.living()
        with store.open_ledger(str(place.state)) as ledger:
            grants = {g.who.id: sum(s.memory_mib for s in g.shares) for g in ledger.grants}
        unbooked, leaked = living - set(grants), set(grants) - living
        if not unbooked and not leaked:
            break
        time.sleep(0.02)
    over = sum(grants.values()) > GPU_MIB
    return len(unbooked) + over, len(leaked)


def remove_cgroups() -> None:
    """Removes leftovers unknown to `runc delete`: runc was killed before it had written its state."""
    for top in Path("/sys/fs/cgroup").glob(f"*/gpu-hook-crash-{os.getpid()}"):
        for group in [*top.glob("*"), top]:
            if group.is_dir():
                for pid in (group / "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
                for _ in range(100):
                    try:
                        group.rmdir()
                        break
                    except OSError:
                        time.sleep(0.02)


def run(short: bool) -> dict[str, dict[str, object]]:
    kills = 20 if short else 200
    chance = random.Random(1)
    double = leaks = created = started = 0
    folder = Path(tempfile.mkdtemp(prefix="gpu-hook-crash-"))
    try:
        place = Place(folder)
        alive: list[str] = []
        for i in range(kills):
            id = f"c{i}"
            process = place.create(id)
            time.sleep(chance.uniform(0, LATEST))
            process.send_signal(signal.SIGKILL)
            created += process.wait() == 0  # it was done before
            d, k = audit(place)
            double, leaks = double + d, leaks + k
            alive.append(id)
            if len(alive) > 2:
                place.delete(alive.pop(chance.randrange(3)))
        for id in alive:
            place.delete(id)
        d, k = audit(place)
        double, leaks = double + d, leaks + k
        process = place.create("last")  # the node still works
        started = process.wait() == 0
        place.delete("last")
    finally:
        for file in folder.glob("c*"):
            if file.is_dir():
                subprocess.run(
                    ["runc", "--root", str(folder / "runc"), "delete", "--force", file.name], capture_output=True
                )
        slot_files.drop(str(folder / "state"))
        shutil.rmtree(folder, ignore_errors=True)
        remove_cgroups()

    def count(value: int, budget: int | None) -> dict[str, object]:
        return {"value": value, "unit": "", "budget": budget, "ok": budget is None or value == budget}

    return {
        "runc_kills": count(kills, None),
        "runc_created_before_the_kill": count(created, None),
        "runc_double_bookings": count(double, 0),
        "runc_leaks": count(leaks, 0),
        "create_works_after": count(int(started), 1),
    }
