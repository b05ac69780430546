"""`gpu-hook explain`: what a container would get and why, by the functions that would grant it; changes nothing."""

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from oci_hook.apply import bundle_plan, to_text
from oci_hook.apply.sources import check_sources
from oci_hook.cli import output
from oci_hook.config import cluster, strictness
from oci_hook.config import settings as node_settings
from oci_hook.core import near_misses
from oci_hook.core.allocate import Allocation, Refusal, allocate, placement_of
from oci_hook.core.boundary import Boundary, expected
from oci_hook.core.change import lends_nothing
from oci_hook.core.collect import container_names
from oci_hook.core.decided import pinned
from oci_hook.core.dialects import native
from oci_hook.core.grant import Grant, Identity, Life
from oci_hook.core.inventory import Inventory
from oci_hook.core.layout import PAGES_DIR, PREFIX_KEY, SHARE_STATE
from oci_hook.core.nvidia_runtime_mode import own_steps
from oci_hook.core.plan import Bind, ImageFacts, Step, make_plan
from oci_hook.core.request import Request, parse
from oci_hook.core.request_data import as_data
from oci_hook.core.rules import Rules
from oci_hook.core.terms import AUTO, DRIVER, OFFLINE, GpuRequest
from oci_hook.core.units import show
from oci_hook.errors import NoRoomError, Problem
from oci_hook.ledger import inventory as node_inventory
from oci_hook.ledger import slot_files, store
from oci_hook.oci import annotations as oci_annotations
from oci_hook.oci import request_mounts, unclear
from oci_hook.oci import spec as oci_spec
from oci_hook.oci.spec_types import Mount

KEY = "KEY"  # in paths, in place of the key that a real grant would have


class ExplainedContainer:
    """The container to explain. doc: its config.json, or None if only options describe it. mounts: (destination,
    source) of the mounts that may carry a request. volumes: the mounts of the options."""

    def __init__(
        self,
        name: str,
        annotations: dict[str, str],
        env: dict[str, str],
        mounts: list[tuple[str, str]],
        bundle: str,
        doc: Any,
        volumes: Sequence[Mount] = (),
    ) -> None:
        self.name = name
        self.annotations = annotations
        self.env = env
        self.mounts = mounts
        self.bundle = bundle
        self.doc = doc
        self.volumes = volumes

    @property
    def who(self) -> Identity:
        return oci_annotations.identity("", "explained", self.bundle, self.annotations)


@click.command()
@click.option(
    "--spec",
    metavar="CONFIG.JSON",
    type=click.Path(dir_okay=False),
    help="Explain the container of this config.json and its bundle.",
)
@click.option("--annotation", "-a", multiple=True, metavar="K=V", help="Explain a container with this annotation.")
@click.option("--env", "-e", multiple=True, metavar="K=V", help="... and with this environment variable.")
@click.option(
    "--volume",
    "-v",
    multiple=True,
    metavar="/dev/null:PATH",
    help="... and with this mount, which may carry a request.",
)
@click.option(
    "--container", default="", metavar="NAME", help="... with this name in its pod. [default: the name in the spec]"
)
@click.option("--label", "-l", multiple=True, metavar="K=V", help="... and with this label, which asks for nothing.")
@click.option("--pod", default="", metavar="NAMESPACE/NAME", help="Explain a pod of the cluster instead.")
@click.option(
    "--manifest",
    default="",
    type=click.Path(dir_okay=False),
    metavar="FILE.yaml",
    help="Explain whether all pods of this workload would have room in the cluster at once.",
)
@output.cluster_options("--pod or --manifest")
@output.answers
def explain(
    prefix: str,
    spec: str | None,
    annotation: tuple[str, ...],
    env: tuple[str, ...],
    volume: tuple[str, ...],
    container: str,
    label: tuple[str, ...],
    pod: str,
    manifest: str,
    dump: str | None,
    kubeconfig: str | None,
) -> output.Report:
    """Show what a container would get, and why; change nothing.

    With --spec, the image is examined as well. Without it, the plan assumes an image without symbolic links and CUDA
    libraries. The other options add to the spec. Exit status 1: the container would be refused. Words that seem to ask
    for a GPU and are not understood are refused or a warning, as `near_misses` says for a runtime chosen by name.

    With --pod: shows the controller's choice, the figures of each node and GPU of the cluster, and the smallest changes
    that would give a waiting pod room. Exit status 1: no node has room.

    With --manifest: places the pods of a Job, Deployment or other workload on the cluster's GPUs one after another, as a
    dry run. Exit status 1: not all have room.
    """
    if (pod or manifest) and (spec or annotation or env or volume or container or label or (pod and manifest)):
        raise click.UsageError("--pod and --manifest take only --dump, --kubeconfig and --json")
    if manifest:
        from oci_hook.cli import cluster_objects, explain_manifest  # as below

        read_claims = partial(cluster_objects.claims, dump, kubeconfig)
        return explain_manifest.report(manifest, cluster_objects.read(dump, kubeconfig), read_claims)
    if pod:
        from oci_hook.cli import cluster_objects, explain_pod  # the cluster's part: not for every use

        objects = cluster_objects.read_with_budgets(dump, kubeconfig)
        return explain_pod.report(pod, *objects, partial(cluster_objects.claims, dump, kubeconfig))
    settings = node_settings.load(prefix)
    given = describe(settings, spec, pairs("--annotation", annotation), pairs("--env", env), volumes(volume), container)
    labels = pairs("--label", label)
    grants = store.snapshot(settings.state_dir)
    named = container_names(given.annotations, request_mounts.decode)
    warnings = unseen_names(given, named, grants)
    data: dict[str, Any] = {
        "name": given.name,
        "annotated_containers": {name: list(keys) for name, keys in named.items()},
    }

    request = None
    if not oci_annotations.is_sandbox(given.annotations):
        request = parse(given.annotations, given.env, given.name, settings.rules, given.mounts, request_mounts.decode)
    warnings += unclear_words(given, labels, settings, request is not None)
    if request is None:
        nothing: dict[str, Any] = {
            "request": None,
            "gpus": [],
            "plan": [],
            "chosen_by": "",
            "boundary": None,
            "boundary_why": "",
        }
        return output.Report({**data, **nothing}, [*heading(given, named), "requests nothing"], warnings)
    inventory = node_inventory.load(settings)
    request, chooser = chosen(request, given, inventory, settings)
    bounds = (
        slot_files.preempt_bounds(settings.state_dir, grants) if request.terms.preempt_tolerance_us is not None else ()
    )
    found = allocate(request, inventory, grants, settings.rules, bounds, given.who)
    if isinstance(found, Refusal):
        raise NoRoomError(*found.problems)
    warnings += tight_shares(found, inventory) + unlent_memory(request, inventory, settings.rules)
    steps, late = plan_for(given, request, found, inventory, settings, warnings)
    plan = to_text.lines(steps, late)
    held = expected(Grant(KEY, given.who, Life(""), found.shares, request.terms), inventory)
    gpus = [gpu_data(uuid, why, inventory, found) for uuid, why in found.notes]
    lines = [
        *heading(given, named),
        "request",
        *(f"  {name:<13}{value}" for name, value in request_lines(request, settings.rules)),
        *([f"chosen by {chooser}"] if chooser else []),
        "GPUs" + (" (simulated)" if inventory.simulated else ""),
        *(f"  {gpu_line(gpu)}" for gpu in gpus),
        *([f"memory limit held by {boundary_words(held)}"] if any(not share.whole for share in found.shares) else []),
        "plan",
        *(f"  {step}" for step in plan),
    ]
    data |= {"request": as_data(request), "gpus": gpus, "plan": list(plan)}
    data |= {"chosen_by": chooser, "boundary": held.name, "boundary_why": held.why}
    return output.Report(data, lines, warnings)


def chosen(
    request: Request, given: ExplainedContainer, inventory: Inventory, settings: node_settings.Settings
) -> tuple[Request, str]:
    """The request, pinned to the GPUs of the controller's decision if there is one; and the name of the chooser, "" outside
    a cluster. Raises ClusterError, NoRoomError."""
    if settings.cluster == node_settings.OFF:
        return request, ""
    doc: Any = given.doc or {}
    request, decided = cluster.obeyed(request, doc, given.annotations, settings)
    if decided is None:
        return request, "this node"
    return pinned(request, decided, inventory, settings.rules), "the cluster's controller"


def describe(
    settings: node_settings.Settings,
    spec: str | None,
    annotations: dict[str, str],
    env: dict[str, str],
    mounts: list[Mount],
    container: str,
) -> ExplainedContainer:
    """The container that the options describe; they override the spec. Raises ApplyError GH-401."""
    if spec is None:
        name = container or oci_annotations.container_name(annotations)
        return ExplainedContainer(name, annotations, env, request_mounts.mounts({"mounts": mounts}), "", None, mounts)
    doc = bundle_plan.unedited(oci_spec.load(spec), settings)
    annotations = {**(doc.get("annotations") or {}), **annotations}
    env = {**oci_spec.environment(doc), **env}
    name = container or oci_annotations.container_name(annotations)
    found = request_mounts.mounts({"mounts": [*(doc.get("mounts") or ()), *mounts]})
    return ExplainedContainer(name, annotations, env, found, os.path.dirname(os.path.abspath(spec)), doc, mounts)


def pairs(option: str, given: tuple[str, ...]) -> dict[str, str]:
    """The K=V of an option that may be given several times; the last value of a K counts."""
    for pair in given:
        if "=" not in pair:
            raise click.UsageError(f"{option} {pair}: write it as K=V")
    return dict(pair.split("=", 1) for pair in given)


def volumes(given: tuple[str, ...]) -> list[Mount]:
    """Mounts in the form of docker's -v."""
    found: list[Mount] = []
    for text in given:
        source, _, destination = text.partition(":")
        if not destination.startswith("/"):
            raise click.UsageError(f"--volume {text}: write it as /dev/null:/run/gpu-hook/request/KEY=VALUE")
        found.append({"source": source, "destination": destination.removesuffix(":ro")})
    return found


def plan_for(
    given: ExplainedContainer,
    request: Request,
    found: Allocation,
    inventory: Inventory,
    settings: node_settings.Settings,
    warnings: list[Problem],
) -> tuple[tuple[Step, ...], bool]:
    """The steps that the runtime would take, and whether the hook adds some in the made container; the runtime's
    warnings are appended to `warnings`.

    Raises ApplyError GH-402, GH-403, NodeError GH-302, GH-305.
    """
    grant = Grant(
        KEY,
        given.who,
        Life(""),
        found.shares,
        request.terms,
        found.exclusive,
        driver_version=inventory.driver_version,
    )
    if given.doc is None:
        image = ImageFacts("/usr/lib64")
        plan = make_plan(grant, inventory, image, settings.prefix, settings.state_dir)
        late = settings.mode == "on-top"
        if late:
            plan = own_steps(plan, inventory, image, settings.prefix, late)
    else:
        found_plan = bundle_plan.plan_for(given.doc, given.bundle, grant, inventory, settings)
        plan, late = found_plan.steps, found_plan.late
        warnings += found_plan.warnings
    made = (f"{settings.state_dir}/{PAGES_DIR}/", f"{settings.state_dir}/{SHARE_STATE}/")  # created with the grant
    check_sources([step for step in plan if not (isinstance(step, Bind) and step.source.startswith(made))], settings)
    return plan, late


def unseen_names(
    given: ExplainedContainer, named: dict[str, tuple[str, ...]], grants: tuple[Grant, ...]
) -> list[Problem]:
    """A warning for each container name in a key that neither this container nor a living one of its pod has."""
    pod = (given.who.namespace, given.who.pod)
    seen = {grant.who.container for grant in grants if (grant.who.namespace, grant.who.pod) == pod} | {given.name}
    return [
        Problem("GH-102", f"{keys[0]} is for container {show(name)}, which was not seen in this pod; check the name")
        for name, keys in named.items()
        if name not in seen
    ]


def tight_shares(found: Allocation, inventory: Inventory) -> list[Problem]:
    """A warning for each share in which one program's context leaves less than a second one would take."""
    tight = []
    for share in found.shares:
        gpu = inventory.gpu(share.uuid)
        left = share.memory_mib - gpu.context_mib
        if not share.whole and left < gpu.context_mib:
            text = f"GPU {gpu.address}: one program's context takes {gpu.context_mib} of these {share.memory_mib} MiB"
            tight.append(Problem("GH-408", f"{text}; {left} MiB are left for its data, and no second program fits"))
    return tight


def unlent_memory(request: Request, inventory: Inventory, rules: Rules) -> list[Problem]:
    """A warning where the node books all of the limit although less is requested."""
    why = lends_nothing(rules, inventory)
    if not why or all(gpu.memory_request in (None, gpu.memory) for gpu in request.gpus):
        return []
    return [Problem("GH-103", f"memory-request says what of the memory is booked, and {why}; all of it is booked")]


def unclear_words(
    given: ExplainedContainer, labels: dict[str, str], settings: node_settings.Settings, asks: bool
) -> list[Problem]:
    """A warning for each word that seems to ask for a GPU and is not understood. Raises RequestError where the runtime,
    chosen by name, would refuse the container."""
    doc: Any = {**(given.doc or {}), "mounts": [*((given.doc or {}).get("mounts") or ()), *given.volumes]}
    found = unclear.misses(doc, given.annotations, settings.rules, asks, name=given.name)
    found += near_misses.in_environment(given.env, settings.rules, asks, by_hand=True)
    found += near_misses.in_labels(labels, asks)
    warnings = unclear.judge(list(dict.fromkeys(found)), strictness.refuses(settings, named=True))
    return [*warnings, *([] if asks else keys_without_prefix(given.annotations))]


def keys_without_prefix(annotations: dict[str, str]) -> list[Problem]:
    """A problem for each key that gpu-hook would know if it had its prefix. The runtime cannot say so: other programs have
    keys of these names, too."""
    known = (*native.KEYS, "containers", "request")
    keys = [key for key in annotations if key.partition(".")[0] in known and not near_misses.is_suspect(key)]
    return [
        Problem("GH-108", f"{show(key)} is no key of gpu-hook without the prefix {PREFIX_KEY}; add it") for key in keys
    ]


def heading(given: ExplainedContainer, named: dict[str, tuple[str, ...]]) -> list[str]:
    lines = [f"container {output.printable(given.name) if given.name else '(the engine gives no name)'}"]
    if named:
        lines.append(f"annotations name {', '.join(map(output.printable, named))}")
    return lines


def request_lines(request: Request, rules: Rules) -> list[tuple[str, str]]:
    """(label, value) of the request as it was understood, with the defaults filled in."""
    gpus = request.gpus
    names = [gpu.device or "any" for gpu in gpus]
    if not gpus:
        wanted = "none: driver files only"
    elif request.every_gpu:
        wanted = "every GPU of the node"
    else:
        wanted = f"{len(gpus)}: {each(names)}"
    lines = [("GPUs", wanted)]
    if gpus:
        memory = each([memory_words(gpu) for gpu in gpus])
        compute = each([compute_words(gpu, request) for gpu in gpus])
        ceiling = f", at most {request.compute_limit}%" if request.compute_limit is not None else ""
        lines += [
            ("memory", memory),
            ("compute", compute + ceiling),
            ("policy", request.terms.policy),
            ("class", class_words(request, rules)),
            ("exclusive", "yes" if request.exclusive else "no"),
            ("placement", request.placement or f"{placement_of(request, rules)} (the node's setting)"),
        ]
    if request.terms.preempt_tolerance_us is not None:
        lines.append(("tolerance", f"{request.terms.preempt_tolerance_us} us until lower classes release the GPU"))
    lines.append(("capabilities", ", ".join(request.terms.capabilities)))
    if request.terms.imex_channels:
        lines.append(("IMEX", "channels " + ", ".join(map(str, request.terms.imex_channels))))
    if request.terms.boundary != AUTO:
        lines.append(("boundary", request.terms.boundary))
    if request.terms.apart_from:
        lines.append(("apart from", f"other pods' containers with {request.terms.apart_from}"))
    if request.narrow_to is not None:
        lines.append(("narrowed to", ", ".join(request.narrow_to) or "no GPU"))
    return lines


def boundary_words(held: Boundary) -> str:
    return "the shim and the driver" if held.name == DRIVER else f"the shim alone: {held.why}"


def memory_words(gpu: GpuRequest) -> str:
    if gpu.memory is None:
        return "all of it"
    request = f", of which {amount_words(gpu.memory_request)} are requested" if gpu.memory_request else ""
    return amount_words(gpu.memory) + request


def amount_words(memory: tuple[str, int]) -> str:
    kind, amount = memory
    return output.size(amount) if kind == "mib" else f"{amount}% of the GPU"


def compute_words(gpu: GpuRequest, request: Request) -> str:
    if gpu.compute is not None:
        if request.terms.policy == "best-effort":
            return f"{gpu.compute}% is booked, none guaranteed"
        idle = " among offline containers, of what is idle" if request.terms.priority_class == OFFLINE else ""
        return f"{gpu.compute}%{idle}"
    return "all of it" if gpu.whole else "no guarantee"


def class_words(request: Request, rules: Rules) -> str:
    """The class, and a note if its compute is only booked."""
    name = request.terms.priority_class
    if not rules.competes(name) or not any(gpu.compute for gpu in request.gpus):
        return name
    return f"{name}: its compute is booked, and it competes with others of class online for all of the GPU"


def each(words: list[str]) -> str:
    """A value per GPU; only once if it is the same for every GPU."""
    return words[0] if len(set(words)) == 1 else ", ".join(words)


def gpu_data(uuid: str, why: str, inventory: Inventory, found: Allocation) -> dict[str, Any]:
    gpu = inventory.gpu(uuid)
    share = next((share for share in found.shares if share.uuid == uuid), None)
    return {
        "index": gpu.index,
        "address": gpu.address,
        "uuid": uuid,
        "name": gpu.name,
        "memory_mib": gpu.memory_mib,
        "simulated": gpu.simulated,
        "reason": why,
        "share": share.fields() if share else None,
    }


def gpu_line(gpu: dict[str, Any]) -> str:
    share = gpu["share"]
    line = f"{gpu['address']}  {gpu['uuid']}  {gpu['reason']}"
    if share is None:
        return line
    if share["whole"]:
        return f"{line}: the whole GPU"
    compute = f", compute {share['compute']}%" if share["compute"] else ""
    if share["compute"] < share["compute_limit"] and compute:
        compute += f" and up to {share['compute_limit']}%"
    return f"{line}: {output.size(share['memory_mib'])} of {output.size(gpu['memory_mib'])}{compute}"
