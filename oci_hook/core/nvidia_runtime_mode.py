"""Which steps of a plan stay gpu-hook's where the NVIDIA runtime brings the driver's files.

The rest of these modes is in apply/nvidia_runtime_mode.py.
"""

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
    """The plan without the driver's files, except those that cover libraries of the image.

    late: the NVIDIA runtime acts after us. Then it also makes the device nodes, and our hook mounts the shims later, when
    its mounts are there: a file of ours would be in the way where it makes a link. The device rules stay in the plan,
    because `systemctl daemon-reload` drops rules that a hook adds.
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
