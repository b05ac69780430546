"""A container's request -> the ResourceClaim that asks for the same. Pure."""

from collections.abc import Mapping
from typing import Any

import yaml

from oci_hook.core.collect import is_addressed, split
from oci_hook.core.layout import NO_REQUEST, PREFIX_KEY
from oci_hook.core.request import Request
from oci_hook.core.terms import GpuRequest
from oci_hook.core.units import show
from oci_hook.errors import Problem, RequestError
from oci_hook.kube.formats.claim_words import (
    API,
    COMPUTE,
    DRIVER,
    GPU_CLASS,
    GROUP,
    KIND,
    MEMORY,
    SHARE_CLASS,
    UNPLACED,
    WORDS,
)

MAX_NAME, MAX_LABEL = 253, 63
BEGIN = "gpu-"  # of the pod's name of a claim
DROPPED = tuple(key for key in UNPLACED if key != "node")  # a claim for a whole node is refused


def spec(request: Request, words: Mapping[str, str], container: str) -> dict[str, Any]:
    """The spec of a claim. words: the container's annotations of ours. Raises RequestError GH-107 for what no claim can say."""
    why = _no_claim(request, words)
    if why:
        raise RequestError(Problem("GH-107", f"container {container}: {why}"))
    whole = all(gpu.whole for gpu in request.gpus)
    if all(gpu == request.gpus[0] for gpu in request.gpus) and request.gpus[0].device is None:
        requests = [{"name": "gpu", "exactly": _exactly(request.gpus[0], whole, len(request.gpus))}]
    else:
        requests = [
            {"name": f"gpu-{number}", "exactly": _exactly(gpu, whole, 1)} for number, gpu in enumerate(request.gpus)
        ]
    found: dict[str, Any] = {"requests": requests}
    if len(request.gpus) > 1:  # a claim has one part of each GPU
        found["constraints"] = [{"distinctAttribute": f"{DRIVER}/uuid"}]
    if said := {key: words[key] for key in WORDS if key in words and key != "exclusive"}:
        parameters = {"apiVersion": API, "kind": KIND, **said}
        found["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    return {"devices": found}


class Templates:
    """The ResourceClaimTemplates of a manifest. taken: (namespace, name) of those that it has already."""

    def __init__(self) -> None:
        self.taken: set[tuple[str, str]] = set()
        self.objects: list[dict[str, Any]] = []

    def add(self, namespace: str, workload: str, claim: str, wanted: dict[str, Any]) -> str:
        """Adds one for a claim of a workload's pods. namespace: "" for the one that it is applied to. Returns its name."""
        first = name = f"{workload}-{claim}"[:MAX_NAME]
        number = 1
        while (namespace, name) in self.taken:
            number += 1
            name = f"{first[: MAX_NAME - 10]}-{number}"
        self.taken.add((namespace, name))
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        head = {"apiVersion": GROUP, "kind": "ResourceClaimTemplate", "metadata": meta}
        self.objects.append({**head, "spec": {"spec": wanted}})
        return name

    def text(self, before: str) -> str:
        """The documents that follow a manifest's text."""
        end = "\r\n" if "\r\n" in before else "\n"
        written = "".join(f"---\n{yaml.safe_dump(one, sort_keys=False)}" for one in self.objects)
        return ("" if before.endswith("\n") or not written else end) + written.replace("\n", end)


def of_container(name: str, taken: set[str]) -> str:
    """The pod's name of a container's claim, a DNS label that is not among `taken`, where it is then."""
    found, number = f"{BEGIN}{name}"[:MAX_LABEL].rstrip("-"), 1
    while found in taken:
        number += 1
        found = f"{BEGIN}{name}"[: MAX_LABEL - 4] + f"-{number}"
    taken.add(found)
    return found


def own_words(annotations: dict[str, str], container: str) -> dict[str, str]:
    """Key -> value of our annotations for a container, those with its name first. annotations: of `asked.each`."""
    shared, own = {}, {}
    addressed = is_addressed(annotations, container, [])
    for key, text in annotations.items():
        name, suffix = split(key)
        if suffix is None and addressed:
            shared[name] = text
        elif suffix == container:
            own[name] = text
    return {**shared, **own}


def gone(annotations: Mapping[str, str]) -> list[str]:
    """The keys of ours that ask, which a claim replaces."""
    return [key for key in annotations if key.startswith(PREFIX_KEY) and key not in NO_REQUEST]


def notes(words: Mapping[str, str]) -> list[str]:
    return [f"{key}: {words[key]} has no equivalent in a claim, and is left out" for key in DROPPED if key in words]


def _no_claim(request: Request, words: Mapping[str, str]) -> str:
    if request.every_gpu or "node" in words:
        return "a claim cannot ask for every GPU of a node; say how many"
    for gpu in request.gpus:
        if gpu.memory is not None and gpu.memory[0] != "mib":
            said = "memory" in words or "request" in words  # the latter may have both
            alone = not said and gpu.memory == ("percent", gpu.compute)
            what = "compute alone means as much memory" if alone else "memory"
            return f"{what}, in per cent of the GPU, which a claim cannot say; write memory in MiB"
        if gpu.device is not None and not (gpu.device.isdecimal() or _is_uuid(gpu.device)):
            return f"a claim cannot name the device {show(gpu.device)}; write its UUID"
    return ""


def _exactly(gpu: GpuRequest, whole: bool, count: int) -> dict[str, Any]:
    """whole: the container has whole GPUs alone; a MIG device is none, but may be all that is asked for."""
    of_gpu = whole and not (gpu.device or "").startswith("MIG-")
    found: dict[str, Any] = {"deviceClassName": GPU_CLASS if of_gpu else SHARE_CLASS}
    if count > 1:
        found["count"] = count
    if gpu.device is not None:
        found["selectors"] = [{"cel": {"expression": _device(gpu.device)}}]
    amounts = {}
    if gpu.memory is not None:
        mib = gpu.memory[1]
        amounts[MEMORY] = f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"
    if gpu.compute is not None:
        amounts[COMPUTE] = str(gpu.compute)
    if amounts:
        found["capacity"] = {"requests": amounts}
    return found


def _device(name: str) -> str:
    """CEL for one GPU, or MIG device."""
    attributes = f'device.attributes["{DRIVER}"]'
    if name.isdecimal():
        return f'{attributes}.type == "gpu" && {attributes}.index == {int(name)}'
    return f'{attributes}.uuid == "{name}"'


def _is_uuid(name: str) -> bool:
    return name.startswith(("GPU-", "MIG-")) and all(c.isalnum() or c == "-" for c in name) and name.isascii()
