"""A container's stage for display (starting, running or paused): a grant is made before its container."""

import os
import time

from oci_hook.core.grant import Grant
from oci_hook.ledger.life import NO_END
from oci_hook.linux.cgroup_tree import devices
from oci_hook.linux.proc import read_file


def stage(grant: Grant) -> tuple[str, int | None]:
    """("running", None), ("paused", None), or ("starting", seconds): its process does not run yet. seconds: how much
    longer the grant waits for a container whose creation has not begun; None: it is being made, or a ResourceClaim waits for its
    container."""
    life = grant.life
    if life.init is None:
        left = life.deadline - time.monotonic()
        return "starting", max(0, round(left)) if 0 < life.deadline < NO_END else None
    # runc and crun keep this file from `create` to `start`.
    made = os.path.isabs(grant.who.root) and os.path.exists(f"{grant.who.root}/{grant.who.id}/exec.fifo")
    if made:
        return "starting", None
    return "paused" if paused(grant) else "running", None


def stopped(grant: Grant) -> str:
    """By which command its work on its GPUs is stopped: "suspended", "moving" (its memory, either way) or "frozen"; else ""."""
    if grant.off_gpu:
        return "suspended" if grant.suspended else "moving"
    return "frozen" if grant.frozen else ""


def paused(grant: Grant) -> bool:
    """True if the container's cgroup is frozen, as by `docker pause`, `runc pause` or the agent's policy freeze."""
    cgroup, v1 = grant.life.cgroup, devices()
    try:
        if v1 and cgroup.startswith(v1 + "/"):
            return b"FROZEN" in read_file(f"{os.path.dirname(v1)}/freezer{cgroup[len(v1) :]}/freezer.state")
        return bool(cgroup) and b"frozen 1" in read_file(f"{cgroup}/cgroup.events")
    except OSError:
        return False


def in_words(grant: Grant) -> str:
    state, seconds = stage(grant)
    return state if seconds is None else f"{state}, waits {seconds} s more for its container"
