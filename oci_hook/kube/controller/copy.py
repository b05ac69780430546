"""The controller's copy of the cluster: what the watches bring goes to the choosing state, and to whoever acts on changes."""

from collections.abc import Callable
from typing import Any

from oci_hook.kube import names
from oci_hook.kube.controller.beside import Beside
from oci_hook.kube.controller.evictor import Evictor
from oci_hook.kube.controller.taints import Tainter
from oci_hook.kube.overview import Waiting
from oci_hook.kube.state import ClusterState


class Copy:
    """waiting: UID of a pod that asked and got no place -> why. modes: T9k's mode of each node that has one. enabled: the
    namespaces whose pods get GPUs, by their label. beside: pods that are read on their own."""

    def __init__(self, state: ClusterState, evictor: Evictor | None, tainter: Tainter | None, now: Callable[[], float]):
        self.state = state
        self.waiting: dict[str, Waiting] = {}
        self.modes: dict[str, str] = {}
        self.enabled: set[str] = set()
        self.not_read = 0
        self.beside = Beside()
        self._evictor, self._tainter, self._now = evictor, tainter, now
        self.nodes = NodeSink(self)
        self.pods = PodSink(self)
        self.namespaces = NamespaceSink(self.enabled)

    def node(self, thing: Any) -> None:
        name = thing["metadata"]["name"]
        self.state.apply_node(thing)
        if mode := (thing["metadata"].get("labels") or {}).get(names.T9K_MODE):
            self.modes[name] = mode
        else:
            self.modes.pop(name, None)
        if self._tainter:
            self._tainter.look(thing)

    def pod(self, thing: Any) -> None:
        self.state.apply_pod(thing)
        uid, node = thing["metadata"]["uid"], (thing.get("spec") or {}).get("nodeName")
        if node:
            self.waiting.pop(uid, None)
            if self._evictor:
                known = self.state.nodes.get(node)
                self._evictor.look(thing, known.refused.get(uid, "") if known else "")

    def no_pod(self, uid: str) -> None:
        self.state.remove_pod(uid, self._now())
        self.waiting.pop(uid, None)
        if self._evictor:
            self._evictor.refusals.gone(uid)

    def no_node(self, name: str) -> None:
        self.state.remove_node(name)
        self.modes.pop(name, None)
        if self._tainter:
            self._tainter.gone(name)


class NodeSink:
    def __init__(self, copy: Copy) -> None:
        self._copy = copy

    def apply(self, thing: Any) -> None:
        self._copy.node(thing)

    def remove(self, key: str) -> None:
        self._copy.no_node(key)


class PodSink:
    def __init__(self, copy: Copy) -> None:
        self._copy = copy

    def apply(self, thing: Any) -> None:
        self._copy.pod(thing)

    def remove(self, key: str) -> None:
        self._copy.no_pod(key)


class NamespaceSink:
    def __init__(self, enabled: set[str]) -> None:
        self._enabled = enabled

    def apply(self, thing: Any) -> None:
        meta = thing["metadata"]
        if (meta.get("labels") or {}).get(names.NAMESPACE_LABEL) == names.ENABLED:
            self._enabled.add(meta["name"])
        else:
            self._enabled.discard(meta["name"])

    def remove(self, key: str) -> None:
        self._enabled.discard(key)
