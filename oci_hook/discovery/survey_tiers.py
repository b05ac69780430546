"""`gpu-hook gpus --probe`: finds out what each GPU's driver can do for preemption, and writes STATE/tiers.json.

ledger/tier_file.py reads it.
"""

import os

from oci_hook.core.layout import TIERS
from oci_hook.discovery.save import put_file
from oci_hook.ledger.tier_file import FORMAT, load
from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oci_hook.config.settings import Settings
    from oci_hook.core.inventory import Gpu, Inventory

SECONDS = 90.0  # for one GPU's probe: two programs start on it and take some measurements of a second each


def save(settings: "Settings", inventory: "Inventory", seen: "dict[str, dict[str, Any]]") -> None:
    """Add these findings, by UUID, to those that are still valid. Raises NodeError GH-303."""
    gpus = {uuid: {k: v for k, v in gpu.items() if k != "bits"} for uuid, gpu in load(settings, inventory).items()}
    gpus.update({uuid: {**what, "driver": inventory.driver_version} for uuid, what in seen.items()})
    put_file(settings, TIERS, {"format": FORMAT, "boot_id": inventory.boot_id, "gpus": gpus})


def probe(inventory: "Inventory", gpu: "Gpu", seconds: float = SECONDS) -> "dict[str, Any]":
    """Probe the GPU in programs that are killed after `seconds`; parts that they did not finish are missing."""
    import signal
    import subprocess
    import sys
    from pathlib import Path

    from oci_hook.discovery.discover import environment

    seen: dict[str, Any] = {}
    package = str(Path(__file__).resolve().parents[2])
    env = {**environment(inventory.driver_root)[0], "PYTHONPATH": package, "PYTHONSAFEPATH": "1"}
    env["CUDA_VISIBLE_DEVICES"] = gpu.uuid
    process = subprocess.Popen(
        [sys.executable, "-m", "oci_hook.discovery.tier_probe", inventory.libcuda, str(gpu.time_scale)],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as e:
        out, err = e.stdout or b"", b""
        seen["error"] = f"no answer within {seconds:.0f} s"
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # the group: also the load that it started
        except ProcessLookupError:
            pass
        process.communicate()
    try:
        for line in out.decode().splitlines():
            seen.update(fastjson.loads(line.encode()))
    except (ValueError, TypeError):
        pass
    if not seen:
        last = err.decode(errors="replace").strip().splitlines() or ["no answer"]
        seen["error"] = f"{last[-1][:100]} (exit status {process.returncode})"
    return seen
