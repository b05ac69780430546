"""What will be done to a bundle, before it is done: for the wrapper, for precreate, and for `gpu-hook explain`."""

from oci_hook.apply import to_spec
from oci_hook.apply.image import check_destinations, look
from oci_hook.apply.image import warnings as image_warnings
from oci_hook.apply.image_search import command
from oci_hook.core.device_rules import bounds, reachable_gpus, reachable_nodes
from oci_hook.core.plan import make_plan
from oci_hook.core.value import Value
from oci_hook.errors import GhError, Problem, refuse
from oci_hook.oci import nvidia_hooks, spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from oci_hook.config.settings import Settings
    from oci_hook.core.grant import Grant
    from oci_hook.core.inventory import Inventory
    from oci_hook.core.plan import Step
    from oci_hook.oci.spec_types import Spec


class BundlePlan(Value):
    """spec: config.json that the steps are to be applied to. warnings: what the container's owner should know.

    late: the NVIDIA runtime puts driver libraries into the container after its spec is edited, so that our
    createRuntime hook mounts the shims over them, at places which only the made container shows.
    """

    spec: "Spec"
    steps: "tuple[Step, ...]"
    warnings: "list[Problem]"
    late: bool


def unedited(found: "Spec", settings: "Settings") -> "Spec":
    """The spec as it was before gpu-hook, and with it the NVIDIA runtime, edited it; `found` itself if they did not."""
    doc = to_spec.scrub(found)
    if settings.mode != "standalone":
        from oci_hook.oci import nvidia_edits

        if doc is not found:
            doc = nvidia_edits.without_hooks(doc)
        if nvidia_edits.injected(found):
            doc = nvidia_edits.without_void(doc)
    return doc


def for_no_request(doc: "Spec", settings: "Settings", load: "Callable[[Settings], Inventory]") -> "Spec":
    """The spec of a container that asks for nothing. An NVIDIA runtime beside us is kept from giving it GPUs.

    load: gives the inventory, or raises GhError.
    """
    if settings.mode == "standalone":
        return doc
    from oci_hook.oci import nvidia_edits

    try:
        inventory = load(settings)
    except GhError:
        inventory = None
    return nvidia_edits.decline(doc, inventory)


def plan_for(doc: "Spec", bundle: str, grant: "Grant", inventory: "Inventory", settings: "Settings") -> BundlePlan:
    """The plan for this grant and this unedited spec. bundle: its directory.

    Raises ApplyError GH-402, GH-403, GH-409, NodeError GH-302.
    """
    beside = None
    if settings.mode == "standalone":
        nvidia_hooks.check(doc)
    else:
        from oci_hook.apply import nvidia_runtime_mode

        beside = nvidia_runtime_mode.narrow(doc, grant, inventory, settings)
        doc = beside.spec
    _check_rules(doc, grant, inventory)
    rootfs, mounts = spec.rootfs(doc, bundle), doc.get("mounts") or ()
    image = look(rootfs, mounts, command(doc))
    if beside is not None:
        image = nvidia_runtime_mode.with_copies(image, beside)
    steps = make_plan(grant, inventory, image, settings.prefix, settings.state_dir)
    if beside is not None:
        doc, steps = nvidia_runtime_mode.own_part(doc, steps, grant, beside, inventory, image, settings)
    steps = check_destinations(rootfs, mounts, steps)
    notes = image_warnings(image)
    if beside is not None and beside.unknown:
        notes.append(Problem("GH-409", f"gpu-hook does not know what {beside.unknown[0]} does, and left it out"))
    return BundlePlan(doc, steps, notes, beside is not None and beside.late)


def _check_rules(doc: "Spec", grant: "Grant", inventory: "Inventory") -> None:
    """Raises ApplyError GH-403 when the spec's own device rules reach a GPU that is not granted."""
    resources = (doc.get("linux") or {}).get("resources") or {}
    rules = resources.get("devices") or ()
    granted, others = bounds(grant, inventory)
    if reachable := reachable_gpus(rules, granted) + reachable_nodes(rules, others):
        raise refuse(
            "GH-403",
            f"the container's device rules reach {', '.join(reachable)} beside its share; "
            "run it without --privileged, --device of GPUs and CDI devices",
        )
