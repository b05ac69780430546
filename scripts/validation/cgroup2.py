"""Cgroup v2 at /sys/fs/cgroup for this program alone, where the machine has version 1 or both there."""

import os
import subprocess
import sys

MARK = "GPU_VALIDATE_CGROUP"  # in the environment: what was there before
SCRIPT = 'umount -R /sys/fs/cgroup 2>/dev/null; mount -t cgroup2 none /sys/fs/cgroup; exec "$@"'


def mount_here(argv: list[str]) -> None:
    """Run this program anew in a mount namespace that has cgroup v2 there; return if that is so already."""
    if MARK in os.environ or os.path.exists("/sys/fs/cgroup/cgroup.procs"):
        return
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        os.environ[MARK] = "no cgroup v2, and no mount namespace to be had"
        return
    os.environ[MARK] = "cgroup v2 was mounted for this run alone"
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", SCRIPT, "sh"]
    os.execvp("unshare", [*command, sys.executable, *argv])
