"""What each GPU's driver can do for preemption, as probed: STATE/tiers.json. discovery/survey_tiers.py probes and writes it.

A finding is valid for a GPU, a driver version and a boot. Anything else in the file, and a damaged file, counts as not
probed, which costs nothing but speed. Loaded at container starts only where there is such a file.
"""

import os

from oci_hook.core import tiers
from oci_hook.core.layout import TIERS
from oci_hook.linux.proc import read_file
from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oci_hook.config.settings import Settings
    from oci_hook.core.inventory import Inventory

FORMAT = 1
MAX_SIZE = 1 << 20


def load(settings: "Settings", inventory: "Inventory") -> "dict[str, dict[str, Any]]":
    """What was measured on each probed GPU, by UUID, and "bits", the judgement of it (core/tiers.py)."""
    path = f"{settings.state_dir}/{TIERS}"
    try:
        st = os.stat(path)
        if st.st_uid not in (0, os.geteuid()) or st.st_mode & 0o022:
            return {}
        data = fastjson.loads(read_file(path, MAX_SIZE))
        if (data["format"], data["boot_id"]) != (FORMAT, inventory.boot_id):
            return {}
        known = {gpu.uuid for gpu in inventory.gpus}
        found = {u: c for u, c in data["gpus"].items() if u in known and c["driver"] == inventory.driver_version}
        return {uuid: {**gpu, "bits": tiers.judge(gpu)} for uuid, gpu in found.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def usable(settings: "Settings", inventory: "Inventory") -> dict[str, int]:
    """Bits for the GPU page, by UUID."""
    return {uuid: gpu["bits"] for uuid, gpu in load(settings, inventory).items()}
