"""This program anew in a mount namespace of its own, so that nothing it mounts is seen outside or left behind."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile

FOLDER = "GPU_VALIDATE_FOLDER"  # in the environment of the one inside


def again() -> int:
    """The exit status of this program inside. Its folder is removed out here, where what it mounted there is not to be seen:
    files of this machine are mounted below it, to be written."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        print("gpu-validate: needs a mount namespace of its own; `unshare -m` fails here", file=sys.stderr)
        return 2
    folder = tempfile.mkdtemp(prefix="gpu-validate-")
    try:
        signal.signal(signal.SIGINT, lambda *_: None)  # a terminal sends it to both
        command = ["unshare", "-m", "--propagation", "private", sys.executable, *sys.argv]
        inside = subprocess.Popen(command, env={**os.environ, FOLDER: folder})
        for end in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(end, lambda number, frame: inside.send_signal(number))
        return inside.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cgroup2() -> str:
    """Mounts cgroup v2 at /sys/fs/cgroup, where the machine has version 1 or both there; says what is there now."""
    if os.path.exists("/sys/fs/cgroup/cgroup.procs"):
        return "cgroup2"
    subprocess.run(["umount", "-R", "/sys/fs/cgroup"], capture_output=True)
    if subprocess.run(["mount", "-t", "cgroup2", "none", "/sys/fs/cgroup"]).returncode:
        return "no cgroup v2"
    return "cgroup v2 was mounted for this run alone"
