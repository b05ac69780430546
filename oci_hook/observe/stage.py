"""How far a container is, for those who are shown it: its grant counts from before it is made."""

import os
import time

from oci_hook.core.grant import Grant


def stage(grant: Grant) -> tuple[str, int | None]:
    """("running", None), or ("starting", seconds): its process does not run yet. seconds: the grant waits so much
    longer for a container that nobody has begun to make; None: it is being made."""
    life = grant.life
    if life.init is None:
        left = life.deadline - time.monotonic()
        return "starting", max(0, round(left)) if life.deadline and life.creator is None else None
    # runc and crun keep this where `create` is done and `start` is not.
    made = os.path.isabs(grant.who.root) and os.path.exists(f"{grant.who.root}/{grant.who.id}/exec.fifo")
    return "starting" if made else "running", None


def in_words(grant: Grant) -> str:
    state, seconds = stage(grant)
    return state if seconds is None else f"{state}, waits {seconds} s more for its container"
