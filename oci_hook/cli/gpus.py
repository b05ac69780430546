"""`gpu-hook gpus`: the node's GPUs and how much of each is granted."""

from typing import Any

import click

from oci_hook.cli import named, output
from oci_hook.config.settings import load as load_settings
from oci_hook.core import tiers
from oci_hook.core.grant import Grant, booked_compute, booked_memory, memory_limits
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.terms import AUTO, DRIVER, SHIM
from oci_hook.discovery import survey_tiers as probed
from oci_hook.discovery.save import save_inventory
from oci_hook.errors import Problem
from oci_hook.ledger import inventory as cache
from oci_hook.ledger import store
from oci_hook.ledger import tier_file as tiers_seen

HEADER = ("INDEX", "UUID", "NAME", "MEMORY", "MINOR", "TIER", "GRANTED MEMORY", "GRANTED COMPUTE", "CONTAINERS")
UNWANTED = "the setting `boundary` is shim; the driver can hold that of a container that asks for it"
SPARE = ("MINOR", "NAME", "TIER", "UUID", "GRANTED COMPUTE", "GRANTED MEMORY")


@click.command()
@click.option(
    "--refresh", is_flag=True, help="Ask the driver again, and write the inventory that later containers use."
)
@click.option(
    "--probe", is_flag=True, help="Test what the GPUs without containers can do for preemption; takes seconds for each."
)
@output.answers
def gpus(prefix: str, refresh: bool, probe: bool) -> output.Report:
    """List the node's GPUs; --refresh detects them again.

    TIER is how online work gets a GPU back from offline work: 0 before launches, 0.5 also before a kernel that is
    launched already; "-" is not probed. docs/guide/compute-sharing.md

    GRANTED COMPUTE is of 100 % for the classes online and default; class offline has another 100 % of what those leave idle.

    The last line says who holds memory limits: the shim in the container alone, or the driver as well.
    """
    settings = load_settings(prefix)
    named.check_may_read(settings)
    if refresh:
        from oci_hook.discovery import char_links
        from oci_hook.discovery.discover import discover

        found = discover(settings.driver_root)
        save_inventory(settings, found)
        char_links.make(found)
    inventory = cache.load(settings)
    warnings = []
    if probe:
        held = {share.uuid for grant in store.snapshot(settings.state_dir) for share in grant.shares}
        for gpu in inventory.gpus:
            if gpu.uuid in held:  # the probe and the containers' work would distort each other's times
                left = (
                    f"GPU {gpu.address} ({gpu.uuid}) has containers and was not probed; probe it when they have ended"
                )
                warnings.append(Problem("GH-310", left))
            else:
                probed.save(settings, inventory, {gpu.uuid: probed.probe(inventory, gpu)})
    seen = tiers_seen.load(settings, inventory)
    return report(inventory, store.snapshot(settings.state_dir), seen, warnings, settings.rules.boundary)


def report(
    inventory: Inventory,
    grants: tuple[Grant, ...],
    seen: dict[str, dict[str, Any]] | None = None,
    warnings: list[Problem] | None = None,
    setting: str = AUTO,
) -> output.Report:
    """The list of GPUs. seen: what probes found, by UUID. setting: of the node, `boundary`."""
    gpus, rows = [], []
    for gpu in inventory.gpus:
        shares = [share for grant in grants for share in grant.shares if share.uuid == gpu.uuid]
        memory, (compute, offline) = booked_memory(gpu.uuid, grants), booked_compute(gpu.uuid, grants)
        limits = memory_limits(gpu.uuid, grants)
        tier = tier_of((seen or {}).get(gpu.uuid))
        fields = gpu.fields()
        why = fields.pop("no_limits")
        gpus.append(
            {
                **fields,
                "boundary": SHIM if why else DRIVER,
                "boundary_why": why,
                "tier": tier,
                "granted_mib": memory,
                "limits_mib": limits,
                "granted_compute": compute,
                "granted_offline_compute": offline,
                "containers": len(shares),
            }
        )
        name = gpu.name + (" (simulated)" if gpu.simulated and "imulated" not in gpu.name else "")
        lent = f" (limits {output.size(limits)})" if limits > memory else ""
        granted = (output.size(memory) + lent, output.compute(compute, offline), len(shares))
        shown = tier["name"] if tier else "-"
        rows.append((gpu.address, gpu.uuid, name, output.size(gpu.memory_mib), gpu.minor, shown, *granted))
    simulated = ", simulated" if inventory.simulated else ""
    where = f"driver {inventory.driver_version} in {inventory.driver_root}{simulated}"
    data = {
        "driver_version": inventory.driver_version,
        "driver_root": inventory.driver_root,
        "simulated": inventory.simulated,
        "gpus": gpus,
    }
    return output.Report(
        data, [where, *output.table(HEADER, rows, SPARE), *boundary_lines(inventory.gpus, setting)], warnings or ()
    )


def boundary_lines(gpus: tuple[Gpu, ...], setting: str) -> list[str]:
    """The holders of memory limits by GPU, with the reasons where it is not the driver: a line for each answer."""
    by_answer: dict[str, list[str]] = {}
    for gpu in gpus:
        why = gpu.no_limits or (UNWANTED if setting == SHIM else "")
        by_answer.setdefault(why, []).append(str(gpu.address))
    lines = []
    for why, names in by_answer.items():
        on = "" if len(by_answer) == 1 else f"GPU {', '.join(names)}: "
        lines.append(f"{on}memory limits held by {f'the shim alone: {why}' if why else 'the shim and the driver'}")
    return lines


def tier_of(seen: dict[str, Any] | None) -> dict[str, Any] | None:
    """The GPU's tier, and what the probe measured; None: not probed."""
    if seen is None:
        return None
    return {
        "name": tiers.name(seen["bits"]),
        **{part: seen[part] for part in ("memops", "error") if part in seen},
    }
