"""The variables that a grant gives to its container, kept for `exec`: STATE/pages/KEY/env, which goes with the grant.

The launcher reads it (launcher/exec_env.h). Each entry is NAME=VALUE, or NAME for a variable that is removed, and ends
with a zero byte.
"""

from oci_hook.core.layout import PAGES_DIR
from oci_hook.core.plan import EnvVar
from oci_hook.ledger.store import create, unusable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_hook.core.plan import Step

FILE = "env"


def write(state_dir: str, key: str, steps: "Iterable[Step]") -> None:
    """Keep the variables among these steps. Raises NodeError GH-303."""
    found = [step for step in steps if isinstance(step, EnvVar)]
    words = [step.name if step.value is None else f"{step.name}={step.value}" for step in found]
    data = "".join([word + "\0" for word in words]).encode("utf-8", "surrogateescape")
    try:
        create(f"{state_dir}/{PAGES_DIR}/{key}/{FILE}", data, 0o600)
    except OSError as e:
        raise unusable(state_dir, e) from None
