"""What engines write into a container's annotations: its pod in Kubernetes, and whether it is the pod's sandbox."""

from oci_hook.core.grant import Identity

CRI = "io.kubernetes.cri."  # containerd
CRIO = "io.kubernetes.cri-o."


def container_name(annotations: dict[str, str]) -> str:
    """The container's name in its pod, "" outside Kubernetes."""
    return annotations.get(CRI + "container-name") or annotations.get("io.kubernetes.container.name") or ""


def is_sandbox(annotations: dict[str, str]) -> bool:
    """Whether this is the pause container, which has its pod's annotations and never uses a GPU."""
    return "sandbox" in (annotations.get(CRI + "container-type"), annotations.get(CRIO + "ContainerType"))


def identity(root: str, id: str, bundle: str, annotations: dict[str, str]) -> Identity:
    """Who gets the grant. The ledger relies on (root, id) and the bundle alone; the other names are for people."""
    return Identity(
        root=root,
        id=id,
        bundle=bundle,
        engine="containerd"
        if CRI + "container-type" in annotations
        else "crio"
        if CRIO + "Name" in annotations
        else "",
        pod_uid=annotations.get(CRI + "sandbox-uid", ""),
        namespace=annotations.get(CRI + "sandbox-namespace", ""),
        pod=annotations.get(CRI + "sandbox-name", ""),
        container=container_name(annotations),
    )
