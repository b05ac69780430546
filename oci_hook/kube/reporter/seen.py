"""The watchers' present view of this node, its pods, and the cluster's settings."""

from oci_hook.kube.link.watcher import Change
from oci_hook.kube.reporter.views import SeenNode, SeenPod

NODE, PODS, CONFIG, CA = "node", "pods", "config", "ca"


class SeenObjects:
    """node: None if missing or not known yet. pods: by uid. pods, config, ca: None if not known yet. failures: text, by the kind
    that cannot be watched. ca_changed: the number of changes of ca."""

    def __init__(self) -> None:
        self.node: SeenNode | None = None
        self.pods: dict[str, SeenPod] | None = None
        self.config: dict[str, str] | None = None
        self.ca: dict[str, str] | None = None
        self.failures: dict[str, str] = {}
        self.ca_changed = 0

    def take(self, change: Change) -> None:
        if change.how == "failure":
            self.failures[change.what] = change.value
            return
        self.failures.pop(change.what, None)
        if change.what == PODS:
            self._pods(change)
        else:
            self._one(change)

    def _pods(self, change: Change) -> None:
        if change.how == "all":
            self.pods = {pod.uid: pod for pod in change.value}
        elif self.pods is not None and change.how == "put":
            self.pods[change.value.uid] = change.value
        elif self.pods is not None:
            self.pods.pop(change.value.uid, None)

    def _one(self, change: Change) -> None:
        there = change.value if change.how == "put" else None
        if change.how == "all":
            there = change.value[0] if change.value else None
        if change.what == NODE:
            self.node = there
        elif change.what == CONFIG:
            self.config = there or {}
        else:
            self.ca_changed += there is not None and there != self.ca
            self.ca = there or {}
