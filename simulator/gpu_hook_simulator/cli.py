"""`gpu-hook sim up|fault|down`: simulated GPUs for machines without one; all that is above the driver is real."""

import contextlib
import json
import os
import shlex

import click

from gpu_hook_simulator import cli_model, driver_root, topology
from gpu_hook_simulator import mig as sim_mig
from gpu_hook_simulator import release as releases
from oci_hook.cli import named, output
from oci_hook.config.settings import Settings
from oci_hook.config.settings import load as load_settings
from oci_hook.core import units, words
from oci_hook.core.layout import INVENTORY, SETTINGS_YAML, TIERS
from oci_hook.discovery import char_links
from oci_hook.discovery.discover import discover
from oci_hook.discovery.mark import MARK
from oci_hook.discovery.save import save_inventory
from oci_hook.errors import GhError, refuse
from oci_hook.install import settings_edit, state_owner
from oci_hook.ledger import events, slot_files, store
from oci_hook.ledger import inventory as cache


@click.group()
def sim() -> None:
    """Start or stop simulated GPUs."""


sim.add_command(cli_model.model)


@sim.command()
@click.option("--gpus", default=1, show_default=True, type=click.IntRange(1, driver_root.MAX_GPUS), help="How many.")
@click.option("--memory", default="24Gi", show_default=True, metavar="SIZE", help="Memory of each GPU.")
@click.option(
    "--time-scale",
    default=1,
    show_default=True,
    type=click.IntRange(1, driver_root.MAX_TIME_SCALE),
    help="How many times slower than it says a GPU is; for machines with few cores.",
)
@click.option("--mig", default="", metavar="PROFILES", help="Split GPU 0 into MIG devices: 3g.20gb,1g.5gb")
@click.option("--numa", default="", metavar="NODES", help="NUMA node of each GPU: 0,0,1,1")
@click.option("--nvlink", default="", metavar="PAIRS", help="GPUs that an NVLink joins: 0-1,2-3")
@click.option(
    "--driver",
    metavar="VERSION",
    help="470 to 615, such as 535, 580, 615.71; default: 550, with the functions of all versions.",
)
@click.option(
    "--limits",
    type=click.Choice([*releases.LIMITS]),
    default="dmem",
    show_default=True,
    help="What keeps memory limits of cgroups, from driver 615 on; dmem-keeps: parents keep soft limits of removed ones.",
)
@click.option(
    "--block-mib",
    type=click.IntRange(0, 32),
    default=0,
    metavar="N",
    help="The driver takes linear memory in blocks of so many MiB; default: of 512 bytes.",
)
@click.option(
    "--nodes",
    is_flag=True,
    help="Also make the GPUs' nodes in /dev where there are none: containers in user namespaces need the machine's.",
)
@click.option("--force", is_flag=True, help="Replace simulated GPUs that containers still use.")
@output.answers
def up(
    prefix: str,
    gpus: int,
    memory: str,
    time_scale: int,
    mig: str,
    numa: str,
    nvlink: str,
    driver: str | None,
    limits: str,
    block_mib: int,
    nodes: bool,
    force: bool,
) -> output.Report:
    """Make simulated GPUs and let this install use them instead of a real driver.

    Sets driver_root in the install's settings. GPUs that were simulated before are replaced; the new ones have other
    UUIDs. After a reboot, or `sim down`, they have those of the first time.
    """
    try:
        memory_mib = units.size(memory)
    except ValueError:
        raise refuse(
            "GH-101", f"--memory {units.show(memory)} is not a size from 1Mi to 16Ti; write it as 24Gi"
        ) from None
    try:
        devices = sim_mig.profiles(mig, memory_mib)
    except ValueError as e:
        raise refuse("GH-101", f"--mig {mig[:60]}: {e}; write profiles as 3g.20gb,1g.5gb") from None
    try:
        places = topology.parse(numa, nvlink, gpus)
    except ValueError as e:
        raise refuse("GH-101", f"--numa, --nvlink: {e}; write them as 0,0,1,1 and 0-1,2-3") from None
    try:
        release = releases.DEFAULT if driver is None else releases.release(driver, limits)
    except ValueError as e:
        raise refuse("GH-101", f"--driver {str(driver)[:20]}: {e}") from None
    settings = load_settings(prefix)
    state_owner.claim(prefix, settings.state_dir)
    refuse_while_used(settings, "up", force)
    former = former_root(settings)
    drop_shared(settings, force)
    root = driver_root.make(
        prefix, settings.state_dir, gpus, memory_mib, time_scale, devices, places, former, release, block_mib
    )
    try:
        found = discover(str(root))
        settings = settings_edit.set_driver_root(prefix, str(root))
    except Exception:
        driver_root.remove(prefix, settings.state_dir)
        raise
    save_inventory(settings, found)
    if nodes:
        driver_root.make_nodes(root, char_links.nodes(found))
    lines = [f"simulated driver {found.driver_version} in {root}; driver_root in {prefix}/{SETTINGS_YAML} is set to it"]
    lines += [f"simulated GPU {c.address}: {c.uuid}, {output.size(c.memory_mib)}" for c in found.gpus]
    data = {"simulated": True, "driver_root": str(root), "gpus": [gpu.fields() for gpu in found.gpus]}
    return output.Report(data, lines)


COUNT = click.IntRange(0, 1_000_000)


@sim.command()
@click.option("--gpu", type=click.IntRange(0, driver_root.MAX_GPUS - 1), help="Only this one; default: all.")
@click.option("--fail-every", type=COUNT, default=0, metavar="N", help="Every N-th driver call fails,")
@click.option("--fail-code", type=click.IntRange(1, 999), default=999, show_default=True, help="with this CUresult.")
@click.option("--block-every", type=COUNT, default=0, metavar="N", help="Every N-th driver call blocks,")
@click.option("--block-ms", type=click.IntRange(0, 50), default=50, show_default=True, help="for 0 to so long.")
@click.option("--nvml-ms", type=click.IntRange(0, 5000), default=0, help="How long NVML's answers on load take.")
@click.option(
    "--nvml-without",
    type=click.Choice(["utilisation", "processes", "memory"]),
    multiple=True,
    help="NVML does not support these.",
)
@click.option("--lost", is_flag=True, help="The GPU has fallen off the bus.")
@output.answers
def fault(
    prefix: str,
    gpu: int | None,
    fail_every: int,
    fail_code: int,
    block_every: int,
    block_ms: int,
    nvml_ms: int,
    nvml_without: tuple[str, ...],
    lost: bool,
) -> output.Report:
    """Make the simulated driver fail, to test programs that run on it; without options, end all faults."""
    settings = load_settings(prefix)
    state_dir = settings.state_dir
    named.check_may_read(settings)
    state_owner.check(prefix, state_dir)
    gpus = driver_root.gpus_of(state_dir)
    files = sorted(gpus.glob("[0-9]*"), key=lambda file: int(file.name))
    chosen = [file for file in files if gpu is None or file.name == str(gpu)]
    if not chosen:
        raise refuse("GH-306", f"there is no simulated GPU{'' if gpu is None else f' {gpu}'}; run `gpu-hook sim up`")
    without = ("utilisation" in nvml_without) | ("processes" in nvml_without) << 1 | ("memory" in nvml_without) << 2
    faults = {
        "fail_every": fail_every,
        "fail_code": fail_code if fail_every else 0,
        "block_every": block_every,
        "block_us": block_ms * 1000 if block_every else 0,
        "nvml_call_us": nvml_ms * 1000,
        "nvml_without": without,
        "lost": int(lost),
    }
    for file in chosen:
        driver_root.set_faults(file, faults)
    on = ", ".join(f"{name} {value}" for name, value in faults.items() if value) or "no faults"
    data = {"simulated": True, "gpus": [int(file.name) for file in chosen], "faults": faults}
    return output.Report(data, [f"simulated GPU {file.name}: {on}" for file in chosen])


@sim.command()
@click.option("--force", is_flag=True, help="Even while containers use simulated GPUs.")
@output.answers
def down(prefix: str, force: bool) -> output.Report:
    """Remove the simulated GPUs; driver_root becomes what it was before."""
    settings = load_settings(prefix)
    named.check_may_read(settings)
    state_owner.check(prefix, settings.state_dir)
    refuse_while_used(settings, "down", force)
    drop_shared(settings, force)
    former = former_root(settings)
    if settings.driver_root == str(driver_root.root_of(prefix)):
        settings_edit.set_driver_root(prefix, former)
        for name in (INVENTORY, TIERS):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{settings.state_dir}/{name}")
    there = driver_root.remove(prefix, settings.state_dir)
    line = f"simulated GPUs removed; driver_root is {former}" if there else "there are no simulated GPUs here"
    return output.Report({"removed": there, "driver_root": former}, [line])


def former_root(settings: Settings) -> str:
    """What driver_root is without the simulated driver: the setting, or what the mark says it was before."""
    root = driver_root.root_of(settings.prefix)
    if settings.driver_root != str(root):
        return settings.driver_root
    try:
        return str(json.loads((root / MARK).read_text())["former_driver_root"])
    except (OSError, ValueError, KeyError):
        return "/"


def refuse_while_used(settings: Settings, command: str, force: bool) -> None:
    """Raises NodeError GH-306 if containers use simulated GPUs: they would lose them."""
    gpus = driver_root.gpus_of(settings.state_dir)
    if force or not gpus.exists():
        return
    grants = [events.title(grant.who) for grant in store.snapshot(settings.state_dir) if grant.shares]
    if grants:
        names = words.first(grants, 3)
        raise refuse(
            "GH-306",
            f"{len(grants)} container(s) use the simulated GPUs: {names}; stop them, or `gpu-hook sim {command}"
            f" --force --prefix {shlex.quote(settings.prefix)}`",
        )


def drop_shared(settings: Settings, force: bool) -> None:
    """Remove the slot files of GPUs that no container uses; with force, those of all simulated GPUs. Raises NodeError
    GH-303."""
    if not slot_files.gpus(settings.state_dir):
        return
    going = set()
    if force:
        with contextlib.suppress(GhError):  # without an inventory it is not known which GPUs are simulated
            going = {gpu.uuid for gpu in cache.load(settings).gpus if gpu.simulated}
    with store.open_ledger(settings.state_dir) as ledger:
        used = {held.uuid for grant in ledger.grants for held in grant.shares}
        try:
            slot_files.drop(settings.state_dir, tuple(used - going))
        except OSError as e:
            raise store.unusable(settings.state_dir, e) from None
