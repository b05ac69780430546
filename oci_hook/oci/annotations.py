"""Engines' own annotations of a container: its pod in Kubernetes, and the mark of a pod's sandbox."""

from oci_hook.core.grant import Identity

CRI = "io.kubernetes.cri."  # containerd
CRIO = "io.kubernetes.cri-o."
STATIC = "kubernetes.io/config.source"  # the kubelet writes it over whatever the pod says: api, or where a manifest was
STATIC_SOURCES = ("file", "http")
UID = frozenset("0123456789abcdef-")


def container_name(annotations: dict[str, str]) -> str:
    """The container's name in its pod from the engine alone, "" outside Kubernetes."""
    if is_crio(annotations):
        return _crio_names(annotations)[0] or annotations.get("io.kubernetes.container.name") or ""
    return annotations.get(CRI + "container-name") or annotations.get("io.kubernetes.container.name") or ""


def is_crio(annotations: dict[str, str]) -> bool:
    """True if CRI-O made the container. It passes on a pod's own annotations, and so containerd's keys that a user wrote."""
    return CRIO + "ContainerType" in annotations


def _crio_names(annotations: dict[str, str]) -> "list[str]":
    """[container, pod, namespace, uid], each "" where it is not known. CRI-O writes the name that it makes of them over
    whatever the pod says: k8s_CONTAINER_POD_NAMESPACE_UID_ATTEMPT; Kubernetes has no _ in a name (RFC 1123)."""
    words = annotations.get(CRIO + "Name", "").split("_")
    return words[1:5] if len(words) == 6 else [""] * 4


def is_static(annotations: dict[str, str]) -> bool:
    """True if the kubelet has the pod from a manifest on the node, not from the API server."""
    return annotations.get(STATIC) in STATIC_SOURCES


def pod_uid(annotations: dict[str, str], cgroups_path: str) -> str:
    """The uid of the container's pod, "" where it is not known.

    cgroups_path: linux.cgroupsPath of its spec, below the cgroup that the kubelet made for the pod: .../podUID/ID, or
    ...-podUID.slice:PREFIX:ID with _ for -. It counts first, since only the kubelet and the engine choose it; containerd
    1.6 has no annotation for the uid.
    """
    slice_name, colon, _ = cgroups_path.partition(":")
    names = [slice_name.removesuffix(".slice").replace("_", "-")] if colon else cgroups_path.split("/")[:-1]
    for name in reversed(names):
        uid = name.rpartition("-pod")[2] if colon else name.removeprefix("pod") if name.startswith("pod") else ""
        if len(uid) >= 32 and UID.issuperset(uid):
            return uid
    return _crio_names(annotations)[3] if is_crio(annotations) else annotations.get(CRI + "sandbox-uid", "")


def is_sandbox(annotations: dict[str, str]) -> bool:
    """True if this is the pause container, which has its pod's annotations and never uses a GPU."""
    return "sandbox" in (annotations.get(CRI + "container-type"), annotations.get(CRIO + "ContainerType"))


def identity(root: str, id: str, bundle: str, annotations: dict[str, str], cgroups_path: str = "") -> Identity:
    """The receiver of the grant. The ledger relies on (root, id) and the bundle alone; the other names are for people, and
    pod_uid for the cluster's controller. cgroups_path: linux.cgroupsPath of its spec."""
    crio = is_crio(annotations)
    _, pod, namespace, _ = _crio_names(annotations)
    return Identity(
        root=root,
        id=id,
        bundle=bundle,
        engine="crio" if crio else "containerd" if CRI + "container-type" in annotations else "",
        pod_uid=pod_uid(annotations, cgroups_path),
        namespace=namespace if crio else annotations.get(CRI + "sandbox-namespace", ""),
        pod=pod if crio else annotations.get(CRI + "sandbox-name", ""),
        container=container_name(annotations),
    )
