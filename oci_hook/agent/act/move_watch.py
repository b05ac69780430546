"""Has what a crash has cut off of a suspend or resume ended, one container at a time, by the command that a person would use."""

from oci_hook.agent.node import Node
from oci_hook.agent.watch.child import Child
from oci_hook.suspend.hold import cut_off

RETRY_SECONDS, RETRY_MAX = 10.0, 300.0


class MoveWatch:
    """tick: at each of the agent's ticks."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._child = Child("oci_hook", RETRY_SECONDS, RETRY_MAX)

    def tick(self, now: float) -> None:
        status = self._child.status()
        if status:
            self._child.failed(now)
        elif status == 0:
            self._child.worked()
            self._child.stop()
        cut = [grant for grant in self._node.grants.values() if cut_off(self._node.state_dir, grant)]
        names = ", ".join(grant.who.id[:64] for grant in cut)
        self._node.problem("suspend", f"half moved between GPU and host memory: {names}" if cut else "")
        if cut and self._child.due(now):
            self._child.start(now, "resume", cut[0].key, "--prefix", self._node.prefix)

    def stop(self) -> None:
        """What it has begun ends by itself: the next agent finds it."""
        self._child.stop()
