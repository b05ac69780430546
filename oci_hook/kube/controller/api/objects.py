"""API objects as dicts of the fields that the controller needs. 50 000 whole pods would take gigabytes."""

from typing import Any, TypedDict

import msgspec

from oci_hook.core.layout import PREFIX_KEY

KEPT_ANNOTATIONS = (PREFIX_KEY, "kubernetes.io/config.source")  # prefixes

ListMeta = TypedDict("ListMeta", {"resourceVersion": str, "continue": str}, total=False)


class Owner(TypedDict, total=False):
    apiVersion: str
    kind: str
    name: str
    uid: str
    controller: bool


class Meta(TypedDict, total=False):
    name: str
    namespace: str
    uid: str
    resourceVersion: str
    creationTimestamp: str
    deletionTimestamp: str
    deletionGracePeriodSeconds: int
    labels: dict[str, str]
    annotations: dict[str, str]
    ownerReferences: list[Owner]


class ResourcesObject(TypedDict, total=False):
    limits: dict[str, Any]
    requests: dict[str, Any]


class ContainerObject(TypedDict, total=False):
    name: str
    restartPolicy: str
    resources: ResourcesObject


class PodSpec(TypedDict, total=False):
    nodeName: str
    priority: int
    priorityClassName: str
    preemptionPolicy: str
    terminationGracePeriodSeconds: int
    schedulerName: str
    runtimeClassName: str
    nodeSelector: dict[str, str]
    schedulingGates: list[Any]
    containers: list[ContainerObject]
    initContainers: list[ContainerObject]


class Why(TypedDict, total=False):
    reason: str
    message: str
    exitCode: int


class ContainerState(TypedDict, total=False):
    waiting: Why
    terminated: Why


class ContainerStatus(TypedDict, total=False):
    name: str
    state: ContainerState
    lastState: ContainerState


class PodStatus(TypedDict, total=False):
    phase: str
    reason: str
    containerStatuses: list[ContainerStatus]
    initContainerStatuses: list[ContainerStatus]


class PodObject(TypedDict, total=False):
    metadata: Meta
    spec: PodSpec
    status: PodStatus


class Taint(TypedDict, total=False):
    key: str
    value: str
    effect: str


class NodeSpec(TypedDict, total=False):
    unschedulable: bool
    taints: list[Taint]


class Condition(TypedDict, total=False):
    type: str
    status: str


class NodeStatus(TypedDict, total=False):
    capacity: dict[str, str]
    allocatable: dict[str, str]
    conditions: list[Condition]


class NodeObject(TypedDict, total=False):
    metadata: Meta
    spec: NodeSpec
    status: NodeStatus


class PodList(TypedDict, total=False):
    metadata: ListMeta
    items: list[PodObject]


class NodeList(TypedDict, total=False):
    metadata: ListMeta
    items: list[NodeObject]


class Namespace(TypedDict, total=False):
    metadata: Meta


class NamespaceList(TypedDict, total=False):
    metadata: ListMeta
    items: list[Namespace]


class BudgetSpec(TypedDict, total=False):
    selector: dict[str, Any] | None


class BudgetStatus(TypedDict, total=False):
    disruptionsAllowed: int
    observedGeneration: int
    disruptedPods: dict[str, Any] | None


class BudgetMeta(TypedDict, total=False):
    name: str
    namespace: str
    uid: str
    generation: int


class BudgetObject(TypedDict, total=False):
    metadata: BudgetMeta
    spec: BudgetSpec
    status: BudgetStatus


class BudgetList(TypedDict, total=False):
    metadata: ListMeta
    items: list[BudgetObject]


class WatchEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Version(msgspec.Struct):
    """The metadata of a bookmark's object."""

    resourceVersion: str = ""


class Bookmark(msgspec.Struct):
    metadata: Version


class StatusAnswer(msgspec.Struct):
    """The API server's error answer."""

    code: int = 0
    reason: str = ""
    message: str = ""


class Kind:
    """A kind of objects to list and watch. key: the metadata field that identifies an object."""

    def __init__(self, name: str, path: str, listed: Any, one: Any, key: str) -> None:
        self.name, self.path, self.key = name, path, key
        self.lists: msgspec.json.Decoder[Any] = msgspec.json.Decoder(listed)
        self.objects: msgspec.json.Decoder[Any] = msgspec.json.Decoder(one)


PODS = Kind("pods", "/api/v1/pods", PodList, PodObject, "uid")
NAMESPACES = Kind("namespaces", "/api/v1/namespaces", NamespaceList, Namespace, "name")
NODES = Kind("nodes", "/api/v1/nodes", NodeList, NodeObject, "name")
BUDGETS = Kind("poddisruptionbudgets", "/apis/policy/v1/poddisruptionbudgets", BudgetList, BudgetObject, "uid")
OLD_BUDGETS = Kind("poddisruptionbudgets", "/apis/policy/v1beta1/poddisruptionbudgets", BudgetList, BudgetObject, "uid")
EVENTS: msgspec.json.Decoder[WatchEvent] = msgspec.json.Decoder(WatchEvent)
BOOKMARKS: msgspec.json.Decoder[Bookmark] = msgspec.json.Decoder(Bookmark)
STATUSES: msgspec.json.Decoder[StatusAnswer] = msgspec.json.Decoder(StatusAnswer)


def slim(thing: dict[str, Any]) -> dict[str, Any]:
    """Removes the annotations that the controller does not use."""
    notes = thing.get("metadata", {}).get("annotations")
    if notes and not all(map(_kept, notes)):
        thing["metadata"]["annotations"] = {key: value for key, value in notes.items() if _kept(key)}
    return thing


def _kept(key: str) -> bool:
    return key.startswith(KEPT_ANNOTATIONS)
