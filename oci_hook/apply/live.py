"""A share in a live container, one that its runtime has made but not started: planned, put into it, and verified."""

import os

from oci_hook.apply import to_container
from oci_hook.apply.image import check_destinations, look, warnings
from oci_hook.apply.image_search import command
from oci_hook.apply.sources import check_mount_points, check_sources
from oci_hook.apply.to_cgroup import DeviceCgroup
from oci_hook.core.layout import SHIM_DIR
from oci_hook.core.plan import Bind, make_plan
from oci_hook.oci import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.apply.to_container import LiveContainer
    from oci_hook.config.settings import Settings
    from oci_hook.core.grant import Grant
    from oci_hook.core.inventory import Inventory
    from oci_hook.oci.spec_types import Spec


def open_container(pid: int, rootfs: str) -> "LiveContainer":
    """The container whose init is pid, which must be a child of the process that called this hook.

    Raises ApplyError GH-404, GH-406.
    """
    container = to_container.open_container(pid, rootfs)
    to_container.check_child_of(container, os.getppid())
    return container


def put(
    grant: "Grant",
    inventory: "Inventory",
    config: "Spec",
    container: "LiveContainer",
    devices: DeviceCgroup,
    settings: "Settings",
) -> None:
    """Plan the grant for this container and change it accordingly. Raises NodeError and ApplyError."""
    mounts = config.get("mounts") or ()
    image = look(container.path(), mounts, command(config))
    for warning in warnings(image):
        log.journal(str(warning))
    plan = make_plan(grant, inventory, image, settings.prefix, settings.state_dir)
    steps = check_destinations(container.path(), mounts, plan)
    check_sources(plan, settings)
    check_mount_points(plan, settings)
    devices.check(grant, inventory)
    simulated = {
        os.path.dirname(gpu.file) for gpu in inventory.gpus if gpu.file
    }  # of a simulator with a state of its own
    to_container.apply(steps, container, (*_sources(settings), *((folder, "GH-302") for folder in simulated)))
    to_container.verify(plan, container)
    devices.apply(plan)


def verify(
    grant: "Grant", inventory: "Inventory", config: "Spec", container: "LiveContainer", settings: "Settings"
) -> None:
    """The share was put into the spec: check that the container has it. Raises ApplyError GH-405."""
    image = look(container.path(), config.get("mounts") or (), command(config))
    to_container.verify(make_plan(grant, inventory, image, settings.prefix, settings.state_dir), container)


def verify_beside(
    grant: "Grant", inventory: "Inventory", config: "Spec", container: "LiveContainer", settings: "Settings"
) -> None:
    """`verify` together with the NVIDIA runtime, which has brought the driver's files by the spec, or by a hook before
    this one: then the shims are mounted over them here. Raises NodeError, ApplyError."""
    from oci_hook.apply import nvidia_runtime_mode
    from oci_hook.apply.to_spec import own_hook
    from oci_hook.core.nvidia_runtime_mode import memory_words, own_steps
    from oci_hook.oci import nvidia_edits
    from oci_hook.oci.spec import cgroups_path

    image = look(container.path(), (), command(config))  # the rootfs as a program sees it, with all mounts
    plan = make_plan(grant, inventory, image, settings.prefix, settings.state_dir)
    late = settings.mode == "on-top" or nvidia_edits.has_legacy_hook(config)
    plan = own_steps(plan, inventory, image, settings.prefix, late)
    if late:
        words = memory_words(grant, inventory, settings.rules, cgroups_path(config))
        nvidia_edits.check_hooks(config, own_hook(settings.prefix), words)
        past = nvidia_edits.past_the_share(config, inventory) if nvidia_runtime_mode.shared(grant) else []
        covers = nvidia_runtime_mode.covers(container, image, inventory, past, settings)
        check_sources(covers, settings)
        to_container.apply(covers, container, _sources(settings), over=True)
        to_container.verify(covers, container)
        nvidia_runtime_mode.check_covered(container, inventory)
    # Where the spec edit put the shims was resolved by the image alone; the NVIDIA runtime's mounts may be there now.
    shims = f"{settings.prefix}/{SHIM_DIR}/"
    rest = tuple(step for step in plan if not (isinstance(step, Bind) and step.source.startswith(shims)))
    to_container.verify(rest, container)
    DeviceCgroup(container.pid).check(grant, inventory)


def _sources(settings: "Settings") -> tuple[tuple[str, str], ...]:
    """Where mounts may come from, and the code for what is wrong there."""
    return ((settings.prefix, "GH-305"), (settings.state_dir, "GH-303"), (settings.driver_root, "GH-302"))
