"""The mark of a simulated driver: all that gpu-hook knows of a simulator.

A driver root with the file MARK at its top is a simulated one. The program that makes simulated GPUs writes the mark,
JSON with these keys:

environment   what a program on the host needs in its environment, so that the root's libraries find the GPUs
files         UUID -> the host file behind this GPU or MIG device; containers get it at layout.SIM_GPUS/<its name>
folders       what `gpu-hook uninstall` removes with the install, if it is below the prefix or the state directory
time_scale    how many times longer everything takes on these GPUs than their own figures say; 1 if it is missing
"""

import json
from pathlib import Path

from oci_hook.errors import refuse

MARK = "gpu-hook-simulated.json"


class Mark:
    """The content of the mark. Raises ValueError, KeyError, TypeError, AttributeError for a damaged text."""

    def __init__(self, text: str) -> None:
        said = json.loads(text)
        self.environment = {str(name): str(value) for name, value in said["environment"].items()}
        self.files = {str(uuid): str(path) for uuid, path in said["files"].items()}
        self.folders = tuple(Path(path) for path in said.get("folders", ()))
        self.time_scale = max(1, int(said.get("time_scale", 1)))


def read(driver_root: str) -> Mark | None:
    """The root's mark; None for a real driver. Raises NodeError GH-306 when it is damaged."""
    path = Path(driver_root) / MARK
    if not path.exists():
        return None
    try:
        return Mark(path.read_text())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise refuse("GH-306", f"{path} is damaged ({e}); run `gpu-hook sim down` and `sim up`") from None
