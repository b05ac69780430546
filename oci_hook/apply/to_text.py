"""Plan -> text, a line per step in the order of the plan: for `gpu-hook explain` and for people who compare plans."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_hook.core.plan import Step


def lines(plan: "Iterable[Step]") -> tuple[str, ...]:
    """Each step's own description."""
    return tuple(step.describe() for step in plan)
