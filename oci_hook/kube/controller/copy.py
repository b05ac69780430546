"""The controller's copy of the cluster. Passes changes from the watches to the placing state, the evictor and the tainter."""

from collections.abc import Callable
from typing import Any

from oci_hook.kube.answers.overview import Waiting
from oci_hook.kube.controller.act.evictor import Evictor
from oci_hook.kube.controller.act.taints import ModeTaints
from oci_hook.kube.controller.api.beside import Beside
from oci_hook.kube.controller.api.reflector import Sink
from oci_hook.kube.formats import names
from oci_hook.kube.placing.cluster_state import ClusterState


class Copy:
    """waiting: UID of a pod that found no node -> the reason. modes: node -> its T9k mode. enabled: namespaces whose label lets
    their pods have GPUs. beside: pods read by a single GET."""

    def __init__(
        self,
        state: ClusterState,
        now: Callable[[], float],
        evictor: Evictor | None = None,
        mode_taints: ModeTaints | None = None,
        enabled: set[str] | None = None,
    ) -> None:
        self.state = state
        self.waiting: dict[str, Waiting] = {}
        self.modes: dict[str, str] = {}
        self.enabled: set[str] = set() if enabled is None else enabled
        self.not_read = 0
        self.beside = Beside()
        self._evictor, self._mode_taints, self._now = evictor, mode_taints, now
        self.nodes = Sink(self.node, self.no_node)
        self.pods = Sink(self.pod, self.no_pod)
        self.namespaces = Sink(self.namespace, self.enabled.discard)

    def node(self, thing: dict[str, Any]) -> None:
        name = thing["metadata"]["name"]
        self.state.apply_node(thing)
        if mode := (thing["metadata"].get("labels") or {}).get(names.T9K_MODE):
            self.modes[name] = mode
        else:
            self.modes.pop(name, None)
        if self._mode_taints:
            self._mode_taints.look(thing)
        if self._evictor:
            self._evictor.told(self.state.nodes[name].refused)

    def namespace(self, thing: dict[str, Any]) -> None:
        meta = thing["metadata"]
        if (meta.get("labels") or {}).get(names.NAMESPACE_LABEL) == names.ENABLED:
            self.enabled.add(meta["name"])
        else:
            self.enabled.discard(meta["name"])

    def pod(self, thing: dict[str, Any]) -> None:
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
            self._evictor.gone(uid)

    def no_node(self, name: str) -> None:
        self.state.remove_node(name)
        self.modes.pop(name, None)
        if self._mode_taints:
            self._mode_taints.gone(name)
