"""The plan where the NVIDIA runtime brings the driver's files: which of the steps stay gpu-hook's."""

from oci_hook.core.layout import SHIM_DIR
from oci_hook.core.plan import Bind, DeviceNode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_hook.core.inventory import Inventory
    from oci_hook.core.plan import ImageFacts, Step


def own_steps(
    plan: "Iterable[Step]", inventory: "Inventory", image: "ImageFacts", prefix: str, late: bool
) -> "tuple[Step, ...]":
    """The plan without the driver's files, but for what covers the image's own.

    late: the NVIDIA runtime acts after us. It brings the nodes too, and the shims are mounted by our hook, when its
    mounts are there; a file of ours where it wants to make a link would be in its way. Rules stay: `systemctl
    daemon-reload` loses those that a hook makes.
    """
    shims = f"{prefix}/{SHIM_DIR}/"
    files = {file.path for file in inventory.files} - {inventory.libcuda, inventory.libnvml}
    out = []
    for step in plan:
        if isinstance(step, Bind):
            if step.source in files and step.destination not in image.cover_other:
                continue
            if late and step.source.startswith(shims):
                continue
        elif late and isinstance(step, DeviceNode):
            continue
        out.append(step)
    return tuple(out)
