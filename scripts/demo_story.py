"""The story that scripts/demo tells: each chapter runs the shipped programs and prints what they print."""

import contextlib
import json
import os
import platform
import signal
import sys
import time
from pathlib import Path

from testbed import demo_folder
from testbed.demo_stage import Stage

REPO = Path(__file__).resolve().parent.parent
BUILD = REPO / "build" / platform.machine()
COLOUR = sys.stdout.isatty()
failures: list[str] = []


def title(text: str) -> None:
    print(f"\n\033[1m== {text}\033[0m" if COLOUR else f"\n== {text}", flush=True)


def say(text: str) -> None:
    print(f"   {text}", flush=True)


def show(output: str) -> None:
    for line in output.rstrip().splitlines():
        print(f"   | {line}", flush=True)


def expect(what: str, truth: bool) -> None:
    print(f"   {'ok  ' if truth else 'FAIL'} {what}", flush=True)
    if not truth:
        failures.append(what)


def wait_for(stage: Stage, name: str, word: str) -> str:
    """The detached container's output once it says `word` (20 s at most)."""
    for _ in range(400):
        with contextlib.suppress(OSError):
            if word in stage.log(name):
                break
        time.sleep(0.05)
    return stage.log(name)


def shares(stage: Stage, least: int) -> dict[str, list[int]]:
    """Per cent of the GPU that the programs of chapter 6 had in each second, once each has run for so many (60 s at most)."""
    for _ in range(1200):
        had: dict[str, list[int]] = {"large": [], "small": []}
        for name in had:
            with contextlib.suppress(OSError):
                had[name] = [int(word[:-1]) for word in stage.log(name).split() if word.endswith("%")]
        if min(map(len, had.values())) >= least:
            break
        time.sleep(0.05)
    return had


def story(stage: Stage) -> None:
    gpu = "simulated GPU" if stage.simulated else "GPU"
    no_driver = " (simulated: this machine has no NVIDIA driver)" if stage.simulated else ""
    title(f"1. An install of its own, and the node's GPUs{no_driver}")
    stage.cli("install", "--no-engines", "--state-dir", str(stage.state))
    if stage.simulated:
        show(stage.cli("sim", "up", "--gpus", "2", "--memory", "24Gi"))
    else:
        stage.cli("gpus", "--refresh")
    show(stage.cli("gpus"))

    title(f"2. Two containers share {gpu} 0: one asks for 30 % of its memory, one for 60 %")
    hold = "gpu-probe info; gpu-probe alloc 2048 hold 60"
    for name, percent in (("thirty", "30"), ("sixty", "60")):
        asked = {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": f"{percent}%"}
        status, output = stage.container(name, asked, hold, detach=True)
        if status != 0:
            show(output)
        say(f"container {name}, annotations {json.dumps(asked)}, sees:")
        show(wait_for(stage, name, "alloc") if status == 0 else output)
        expect(f"{name} started", status == 0)
    show(stage.cli("ps"))

    title("3. A third asks for 30 %, in another system's words, and only 10 % is left: it is refused before it starts")
    asked = {"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_PERCENT": "30"}
    say(f"container refused, annotations {json.dumps(asked)}:")
    status, output = stage.container("refused", asked, "echo started")
    show(output)
    expect(
        "not started, and the reason has a code",
        status != 0 and "GH-201" in output and "started" not in output.splitlines(),
    )

    title("4. A fourth gets 1 GiB, which includes what the driver takes for its context, and tries to take all it can")
    status, output = stage.container(
        "greedy", {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": "1Gi"}, "gpu-probe info fill 64"
    )
    show(output)
    expect("stopped at its limit by CUDA_ERROR_OUT_OF_MEMORY", status == 0 and "CUDA_ERROR_OUT_OF_MEMORY" in output)

    title("5. A container with GPU 0 makes itself a node of GPU 1 and tries to open it")
    script = (
        "ls -d /dev/nvidia[0-9]; mknod /dev/gpu1 c 195 1 && echo 'made /dev/gpu1 (c 195:1)'; "
        "echo 'opening GPU 0 (granted):'; cat 2>&1 </dev/nvidia0 && echo opened; "
        "echo 'opening GPU 1 (not granted):'; cat 2>&1 </dev/gpu1 && echo opened"
    )
    status, output = stage.container("curious", {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": "1Gi"}, script)
    show(output)
    if stage.simulated:
        say("(no driver answers for the simulated GPU's node, so a permitted open says 'No such device or address')")
    expect(
        "the kernel lets it open GPU 0 and not GPU 1",
        "gpu1: Operation not permitted" in output and "nvidia0: Operation not permitted" not in output,
    )

    other = f"{gpu} 1" if stage.simulated else "the same GPU"
    title(f"6. Two programs that never pause share the compute of {other}: 70 to 30, then the other way round")
    where = "1" if stage.simulated else "0"
    for name in stage.ids:
        stage.runtime("delete", "--force", name)
    for name, percent in (("large", "70"), ("small", "30")):
        asked = {"gpu-hook.io/devices": where, "gpu-hook.io/compute": percent}
        say(f"container {name}, annotations {json.dumps(asked)}")
        status, output = stage.container(name, asked, "gpu-probe run 500 100", detach=True)
        if status != 0:
            show(output)
    before = shares(stage, 6)
    say("gpu-hook set large --compute 30; gpu-hook set small --compute 70")
    for name, percent in (("large", "30"), ("small", "70")):
        stage.cli("set", name, "--compute", percent)
    after = shares(stage, 4 + max(map(len, shares(stage, 0).values())))
    say("what each had of the GPU, second by second:")
    for name in after:
        show(f"{name} {stage.log(name)}")
    # Shares count of the time that both had, since a busy machine leaves the GPU idle now and then.
    for words, expected, seconds in (("first about 70 to 30", 70, before), ("then about 30 to 70", 30, after)):
        large, small = (sum(had[-3:]) for had in seconds.values())
        expect(words, large + small > 0 and abs(100 * large / (large + small) - expected) < 8)

    title("7. Everything is released when the containers have ended")
    for name in stage.ids:
        stage.runtime("delete", "--force", name)
    stage.ids.clear()
    listing = stage.cli("ps")
    show(listing)
    expect("no grant is left", json.loads(stage.cli("ps", "--json"))["containers"] == [])


def busy(load: float, processors: int) -> str:
    """Advice after a failure on a machine that other work keeps busy; "" on an idle one."""
    if load <= 1.5 * processors:
        return ""
    return f"this machine is busy (load {load:.0f} on {processors} cores), which may be the cause; try again when it is idle"


def main() -> int:
    started = time.monotonic()
    for end in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(end, lambda number, frame: sys.exit(128 + number))  # clears up first
    for folder in demo_folder.sweep():
        say(f"removed what was left of a demo that was killed: {folder.name}")
    stage = Stage(simulated=not Path("/proc/driver/nvidia/version").exists())
    try:
        story(stage)
    finally:
        stage.close()
    title("Done" if not failures else f"{len(failures)} thing(s) went wrong")
    if failures and (advice := busy(os.getloadavg()[0], os.cpu_count() or 1)):
        say(advice)
    say(
        f"{time.monotonic() - started:.0f} s; nothing is left behind"
        + (" (the GPUs were simulated)" if stage.simulated else "")
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
