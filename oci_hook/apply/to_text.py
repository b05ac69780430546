"""Plan -> text, a line per step in the order of the plan: for `gpu-hook explain` and for people who compare plans."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_hook.core.plan import Step

LATE = "in the made container: the hook mounts the shims over each libcuda and libnvidia-ml of the NVIDIA runtime"


def lines(plan: "Iterable[Step]", late: bool = False) -> tuple[str, ...]:
    """Each step's own description. late: steps follow that only the made container shows; see BundlePlan."""
    found = tuple(step.describe() for step in plan)
    return (*found, LATE) if late else found
