"""kill -9 at random moments of `create` through the shipped runtime and real runc: the ledger keeps exactly the living containers."""

import contextlib
import json
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from oci_hook.ledger import store
from oci_hook.linux.proc import start_time
from testbed import tiny_image
from testbed.stage import Stage

GPU_MIB, SHARE_MIB = 24576, 8192  # three containers fill the GPU
MEMORY = ("--memory", f"{GPU_MIB}Mi")
LATEST = 0.12  # seconds; a create takes about half of it


def living(stage: Stage) -> set[str]:
    """Containers whose init lives, by runc's own state files."""
    found = set()
    for file in stage.runc.root.glob("*/state.json"):
        try:
            state = json.loads(file.read_text())
        except (OSError, ValueError):
            continue
        if start_time(state["init_process_pid"]) == state["init_process_start"]:
            found.add(file.parent.name)
    return found


def audit(stage: Stage) -> tuple[int, int]:
    """(containers that live without a grant or beyond the GPU, grants without a living container), when settled."""
    for _ in range(100):  # killed processes may take a moment to be gone
        alive = living(stage)
        with store.open_ledger(str(stage.state)) as ledger:
            grants = {g.who.id: sum(s.memory_mib for s in g.shares) for g in ledger.grants}
        unbooked, leaked = alive - set(grants), set(grants) - alive
        if not unbooked and not leaked:
            break
        time.sleep(0.02)
    over = sum(grants.values()) > GPU_MIB
    return len(unbooked) + over, len(leaked)


def run(short: bool) -> dict[str, dict[str, object]]:
    kills = 20 if short else 200
    chance = random.Random(1)
    double = leaks = created = started = 0
    with contextlib.closing(Stage(Path(tempfile.mkdtemp(prefix="gpu-hook-crash-")), "--gpus", "1", *MEMORY)) as stage:
        rootfs = tiny_image.busybox(stage.folder / "rootfs")

        def create() -> "subprocess.Popen[str]":
            """The id of its container is the last of `ids`."""
            bundle = stage.bundle(rootfs, ["sleep", "1000"], {"gpu-hook.io/memory": str(SHARE_MIB)})
            command = ("create", "--bundle", str(bundle), stage.runc.new_id())
            quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            return stage.runc.popen(*command, program=stage.program, **quiet)

        alive: list[str] = []
        for _ in range(kills):
            process = create()
            time.sleep(chance.uniform(0, LATEST))
            process.send_signal(signal.SIGKILL)
            created += process.wait() == 0  # it was done before
            d, k = audit(stage)
            double, leaks = double + d, leaks + k
            alive.append(stage.runc.ids[-1])
            if len(alive) > 2:
                stage.runc("delete", "--force", alive.pop(chance.randrange(3)))
        for id in alive:
            stage.runc("delete", "--force", id)
        d, k = audit(stage)
        double, leaks = double + d, leaks + k
        started = create().wait() == 0  # the node still works

    def count(value: int, budget: int | None) -> dict[str, object]:
        return {"value": value, "unit": "", "budget": budget, "ok": budget is None or value == budget}

    return {
        "runc_kills": count(kills, None),
        "runc_created_before_the_kill": count(created, None),
        "runc_double_bookings": count(double, 0),
        "runc_leaks": count(leaks, 0),
        "create_works_after": count(int(started), 1),
    }
