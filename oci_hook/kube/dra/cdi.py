"""The CDI file of a claim (Container Device Interface, SPEC.md): what its container gets from the engine itself, without a handler
of ours: variables, and our hook, which does the rest."""

from typing import Any

from oci_hook.apply.to_spec import HOOK_TIMEOUT, own_hook
from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Inventory
from oci_hook.core.plan import variables
from oci_hook.kube.formats.claim_words import DRIVER
from oci_hook.ledger.resource_claims import PreparedClaim, valid_uid

CLASS = "claim"
STAGES = ("createRuntime", "poststop")
BEGIN, END = f"{DRIVER}-{CLASS}-", ".json"


def file_name(uid: str) -> str:
    return f"{BEGIN}{uid}{END}"


def uid_of(file: str) -> str:
    """The claim of a file, "" for no file of ours."""
    uid = file[len(BEGIN) : -len(END)] if file.startswith(BEGIN) and file.endswith(END) else ""
    return uid if valid_uid(uid) else ""


def half_written(file: str) -> bool:
    """Whether a process that was killed has left it (install/files.py write)."""
    return file.startswith(BEGIN) and file.endswith(".new")


def device_id(uid: str, number: int) -> str:
    """What the kubelet gives to the engine for the claim's device of this number."""
    return f"{DRIVER}/{CLASS}={_device(uid, number)}"


def content(claim: PreparedClaim, grant: Grant, inventory: Inventory, prefix: str) -> dict[str, Any]:
    """Whichever of the claim's devices a container has, it gets all: what is beside the devices is applied once for a file."""
    environment = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)
    hooks = [
        {
            "hookName": stage,
            "path": own_hook(prefix),
            "args": ["oci-gpu-hook", stage, claim.uid],
            "env": list(environment),
            "timeout": HOOK_TIMEOUT,
        }
        for stage in STAGES
    ]
    env = [f"{name}={value}" for name, value in variables(grant, inventory).items()]
    own = {"env": [f"GPU_HOOK_CLAIM={claim.namespace}/{claim.name}"]}  # a device must have something
    return {
        "cdiVersion": "0.5.0",
        "kind": f"{DRIVER}/{CLASS}",
        "devices": [{"name": _device(claim.uid, i), "containerEdits": own} for i in range(len(claim.devices))],
        "containerEdits": {"env": env, "hooks": hooks},
    }


def _device(uid: str, number: int) -> str:
    return f"{uid}-{number}"
