"""containerd without another runtime: a handler of our name runs the usual one, and its base_runtime_spec, the spec from
which the CRI plugin makes each container's, has our OCI hooks.

base_runtime_spec replaces the plugin's default, so the file is what `ctr oci spec` prints, with the hooks. containerd 1.5
and newer.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

from oci_hook.apply.to_spec import HOOK_TIMEOUT
from oci_hook.engines import json_text
from oci_hook.engines.edits import Notes, Registration, Target
from oci_hook.errors import refuse

FILE = "etc/containerd-base-spec.json"  # below the prefix
STAGES = ("prestart", "createRuntime", "poststop")  # the second finds the work of the first
LIMITS = (
    "by hooks, a container gets its GPUs and limits, but no environment variables (NVIDIA_VISIBLE_DEVICES, GPU_HOOK_*,"
    " TRITON_LIBCUDA_PATH): no hook can set them"
)


def path(registration: Registration) -> Path:
    return Path(registration.prefix, FILE)


def is_used(registration: Registration) -> bool:
    """True if containerd is, or is to be, registered by hooks. Raises SettingsError GH-508 for the other way than the
    one in which it is."""
    there = path(registration).exists()
    if there and registration.way == "runtime":
        raise refuse("GH-508", "containerd is registered by hooks; `gpu-hook uninstall --engine containerd` first")
    return there or registration.way == "hook"


def target(registration: Registration) -> Target:
    return Target(path(registration), lambda text, notes: document(registration), _strip, json_text.parse)


def _strip(text: str, notes: Notes) -> None:
    return None


def document(registration: Registration) -> str:
    """containerd's default spec with our hooks. Raises SettingsError GH-505."""
    try:
        done = subprocess.run(["ctr", "oci", "spec"], capture_output=True, text=True, timeout=20)
        spec = json.loads(done.stdout)
        if not isinstance(spec, dict):
            raise ValueError("no object")
    except (OSError, ValueError, subprocess.TimeoutExpired) as e:
        raise refuse(
            "GH-505", f"`ctr oci spec` of containerd gives no spec to add hooks to ({e}); install ctr"
        ) from None
    return json.dumps({**spec, "hooks": hooks(registration.hook)}, indent=2) + "\n"


def hooks(program: str, stages: tuple[str, ...] = STAGES) -> dict[str, Any]:
    """The member `hooks` of a spec, with our program alone."""
    return {stage: [entry(program, stage)] for stage in stages}


def entry(program: str, stage: str) -> dict[str, Any]:
    return {
        "path": program,
        "args": ["oci-gpu-hook", stage],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        "timeout": HOOK_TIMEOUT,
    }
