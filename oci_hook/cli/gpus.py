"""`gpu-hook gpus`: the node's cards and what of them is granted; --refresh asks the driver anew."""

import click

from oci_hook.cli import output
from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Inventory
from oci_hook.node import inventory as cache
from oci_hook.node import store
from oci_hook.node.settings import load as load_settings

HEADER = ("INDEX", "UUID", "NAME", "MEMORY", "MINOR", "GRANTED MEMORY", "GRANTED COMPUTE", "CONTAINERS")


@click.command()
@click.option("--refresh", is_flag=True, help="Ask the driver, and remember its answer for the containers to come.")
@output.answers
def gpus(prefix: str, refresh: bool) -> output.Report:
    """List the node's cards; --refresh looks for them anew."""
    settings = load_settings(prefix)
    if refresh:
        from oci_hook.node import char_links
        from oci_hook.node.discover import discover

        found = discover(settings.driver_root)
        cache.save(settings, found)
        char_links.make(found)
    inventory = cache.load(settings)
    return report(inventory, store.snapshot(settings.state_dir))


def report(inventory: Inventory, grants: tuple[Grant, ...]) -> output.Report:
    cards, rows = [], []
    for card in inventory.cards:
        shares = [share for grant in grants for share in grant.shares if share.uuid == card.uuid]
        memory, compute = sum(s.memory_mib for s in shares), sum(s.compute for s in shares)
        cards.append(
            {**card.fields(), "granted_memory_mib": memory, "granted_compute": compute, "containers": len(shares)}
        )
        name = card.name + (" (simulated)" if card.simulated and "imulated" not in card.name else "")
        granted = (output.size(memory), f"{compute}%", len(shares))
        rows.append((card.address, card.uuid, name, output.size(card.memory_mib), card.minor, *granted))
    simulated = ", simulated" if inventory.simulated else ""
    where = f"driver {inventory.driver_version} in {inventory.driver_root}{simulated}"
    data = {
        "driver_version": inventory.driver_version,
        "driver_root": inventory.driver_root,
        "simulated": inventory.simulated,
        "cards": cards,
    }
    return output.Report(data, [where, *output.table(HEADER, rows)])
