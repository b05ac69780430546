"""A node's grants and GPUs for tests of the agent's parts."""

from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import DeviceFile, Gpu, Inventory


def inventory(simulated: bool = True, gpus: int = 2, control: tuple[DeviceFile, ...] = ()) -> Inventory:
    found = tuple(Gpu(f"GPU-{i}", i, 300 + i, 8192, simulated=simulated) for i in range(gpus))
    return Inventory("boot", "550", "/", simulated, found, control, (), "", "")


def grant(key: str, id: str, **who: str) -> Grant:
    return Grant(key, Identity("/run", id, "/", **who), Life("b"), (Share("GPU-0", 1024, 30, 80), Share("GPU-1", 2)))
