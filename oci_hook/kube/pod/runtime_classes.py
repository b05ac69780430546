"""Which runtime classes a pod may name that asks for a share, for the webhook and `translate` alike."""

from oci_hook.core.units import show
from oci_hook.errors import refuse
from oci_hook.kube.formats.names import RUNTIME_CLASS

# NVIDIA's GPU Operator makes these; a handler of theirs would give the pod every GPU. HAMi's chart makes the last.
REPLACED = ("", "nvidia", "nvidia-cdi", "nvidia-legacy", "nvidia-experimental", "hami-nvidia", RUNTIME_CLASS)
# Runtimes whose containers have a kernel of their own, which no hook and no mounted library reaches from the host.
SANDBOXES = ("gvisor", "runsc", "kata", "firecracker", "peerpods", "confidential", "enclave", "wasm", "runhcs")


def check(there: str) -> str:
    """What to tell of a class that stays, since nobody knows it; "" for one that is replaced. Raises RequestError GH-103 for a
    sandbox."""
    if there in REPLACED:
        return ""
    if any(word.startswith(SANDBOXES) for word in there.lower().replace(".", "-").split("-")):
        why = f"its runtimeClassName {show(there)} is a sandbox, which no share reaches"
        raise refuse("GH-103", f"the pod asks for a GPU, and {why}; leave runtimeClassName out")
    return (
        f"runtimeClassName {show(there)} stays; the share holds if its handler is gpu-hook's, or runs hooks of gpu-hook"
    )
