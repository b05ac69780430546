"""The pod templates in objects of Kubernetes and of other projects: API group and kind -> their paths. Pure.

A kind is here where a path is all that is needed: its template is a PodTemplateSpec whose annotations reach the pods. Argo's Workflow,
KServe's InferenceService, Kubeflow's TrainJob and Notebook are not: their pods get their words from the create webhook.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

Path = tuple[str, ...]  # of keys; EACH: every item of a list, every value of a mapping
Node = TypeVar("Node")
EACH = "*"


def _path(text: str) -> Path:
    return tuple(filter(None, text.split(".")))


def _paths(*texts: str) -> tuple[Path, ...]:
    return tuple(map(_path, texts))


TEMPLATE = _paths("spec.template")
RAY = ("headGroupSpec.template", "workerGroupSpecs.*.template")
JOBS = "replicatedJobs.*.template.spec.template"  # of a JobSet's spec
KUBERNETES: dict[tuple[str, str], tuple[Path, ...]] = {
    ("", "Pod"): _paths(""),
    ("", "PodTemplate"): _paths("template"),
    ("apps", "Deployment"): TEMPLATE,
    ("apps", "StatefulSet"): TEMPLATE,
    ("apps", "DaemonSet"): TEMPLATE,
    ("apps", "ReplicaSet"): TEMPLATE,
    ("", "ReplicationController"): TEMPLATE,
    ("batch", "Job"): TEMPLATE,
    ("batch", "CronJob"): _paths("spec.jobTemplate.spec.template"),
}
OTHERS: dict[tuple[str, str], tuple[Path, ...]] = {
    **{("extensions", kind): TEMPLATE for kind in ("Deployment", "DaemonSet", "ReplicaSet")},  # before Kubernetes 1.16
    ("apps.openshift.io", "DeploymentConfig"): TEMPLATE,
    ("argoproj.io", "Rollout"): TEMPLATE,
    **{("apps.kruise.io", kind): TEMPLATE for kind in ("CloneSet", "StatefulSet", "DaemonSet", "BroadcastJob")},
    **{("serving.knative.dev", kind): TEMPLATE for kind in ("Service", "Configuration")},
    ("ray.io", "RayCluster"): _paths(*(f"spec.{each}" for each in RAY)),
    ("ray.io", "RayJob"): _paths(*(f"spec.rayClusterSpec.{each}" for each in RAY), "spec.submitterPodTemplate"),
    ("ray.io", "RayService"): _paths(*(f"spec.rayClusterConfig.{each}" for each in RAY)),
    ("ray.io", "RayCronJob"): _paths(*(f"spec.jobTemplate.rayClusterSpec.{each}" for each in RAY)),
    **{
        ("kubeflow.org", f"{kind}Job"): _paths(f"spec.{field}ReplicaSpecs.*.template")
        for kind, field in {
            "MPI": "mpi",
            "PyTorch": "pytorch",
            "TF": "tf",
            "XGBoost": "xgb",
            "Paddle": "paddle",
        }.items()
    },
    ("kubeflow.org", "JAXJob"): _paths("spec.jaxReplicaSpecs.*.template"),
    **{
        ("trainer.kubeflow.org", kind): _paths(f"spec.template.spec.{JOBS}")
        for kind in ("TrainingRuntime", "ClusterTrainingRuntime")
    },
    ("jobset.x-k8s.io", "JobSet"): _paths(f"spec.{JOBS}"),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _paths(
        "spec.leaderWorkerTemplate.leaderTemplate", "spec.leaderWorkerTemplate.workerTemplate"
    ),
    ("batch.volcano.sh", "Job"): _paths("spec.tasks.*.template"),
    ("batch.volcano.sh", "CronJob"): _paths("spec.jobTemplate.spec.tasks.*.template"),
    ("flow.volcano.sh", "JobTemplate"): _paths("spec.tasks.*.template"),
}
# Their objects make no pods, or one on each node.
NOT_COUNTED = ("PodTemplate", "DaemonSet", "JobTemplate", "TrainingRuntime", "ClusterTrainingRuntime")
NAMES = ("groupName", "name")  # of a list's item


def group_of(api_version: object) -> str:
    return str(api_version or "").rpartition("/")[0]


def paths(api_version: object, kind: object) -> tuple[Path, ...]:
    """The paths of a kind's pod templates; () for an unknown kind. Without apiVersion, Kubernetes' own kind is meant."""
    if not api_version:
        return next((found for (_, name), found in KUBERNETES.items() if name == kind), ())
    key = (group_of(api_version), str(kind))
    return KUBERNETES.get(key) or OTHERS.get(key, ())


def is_optional(api_version: object, kind: object) -> bool:
    """True for a kind that may stand without a template: a part of it is left out, or lies in another object."""
    return bool(api_version) and (group_of(api_version), str(kind)) not in KUBERNETES


def walk(
    root: Node,
    path: Path,
    get: Callable[[Node, str], "Node | None"],
    each: Callable[[Node], Iterable[tuple[str, Node]]],
    above: tuple[Node, ...] = (),
    part: str = "",
) -> Iterator[tuple[str, tuple[Node, ...], Node]]:
    """What lies at a path: (the names on the way that EACH stands for, what lies above it, the node). get: the node at a key, None if
    it is missing or null. each: the named parts of a list or a mapping."""
    if not path:
        yield part, above, root
    elif path[0] == EACH:
        for name, node in each(root):
            yield from walk(node, path[1:], get, each, above, f"{part}/{name}" if part else name)
    else:
        found = get(root, path[0])
        if found is not None:
            yield from walk(found, path[1:], get, each, (*above, root), part)


def templates(
    root: Node,
    found: tuple[Path, ...],
    get: Callable[[Node, str], "Node | None"],
    each: Callable[[Node], Iterable[tuple[str, Node]]],
) -> Iterator[tuple[str, tuple[Node, ...], Node]]:
    """Those of an object with these paths, as of `walk`; each of several has a name: the head's template is `head`."""
    for path in found:
        own = "" if len(found) == 1 or EACH in path else next(key for key in reversed(path) if key != "template")
        for part, above, node in walk(root, path, get, each):
            yield part or own.removesuffix("GroupSpec").removesuffix("Template").removesuffix("Pod"), above, node


def count(above: Sequence[Mapping[str, Any]], template: object, number: Callable[[Mapping[str, Any], str], int]) -> int:
    """The number of pods of a template that run at the same time, by what lies above it. number: reads a number; 1 where there is
    none."""
    total = 1
    for one in above:
        total *= number(one, "replicas") * number(one, "numOfHosts")
        parallel = number(one, "parallelism")
        total *= parallel if one.get("completions") is None else min(parallel, number(one, "completions"))
    if above and above[-1].get("workerTemplate") is template:  # a LeaderWorkerSet's; its leader is one of the group
        total *= max(0, number(above[-1], "size") - (above[-1].get("leaderTemplate") is not None))
    return total
