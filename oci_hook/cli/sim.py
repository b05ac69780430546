"""`gpu-hook sim up|down`: simulated cards for machines without a GPU; everything above the card is the real thing."""

import json
import os
import re
import shlex
from pathlib import Path

import click

from oci_hook.cli import output, sim_model
from oci_hook.core import units
from oci_hook.core.layout import INVENTORY, SETTINGS_YAML
from oci_hook.errors import refuse
from oci_hook.node import inventory as cache
from oci_hook.node import settings_compile, share, store
from oci_hook.node.discover import SIMULATED_MARK, discover
from oci_hook.node.settings import Settings
from oci_hook.node.settings import load as load_settings
from oci_hook.node.settings_template import quoted
from oci_hook.sim import driver_root

DRIVER_ROOT_LINE = re.compile(r"^driver_root:.*$", re.MULTILINE)


@click.group()
def sim() -> None:
    """Start or stop simulated cards."""


sim.add_command(sim_model.model)


@sim.command()
@click.option("--cards", default=1, show_default=True, type=click.IntRange(1, driver_root.MAX_CARDS), help="How many.")
@click.option("--memory", default="24Gi", show_default=True, metavar="SIZE", help="Memory of each card.")
@click.option(
    "--time-scale",
    default=1,
    show_default=True,
    type=click.IntRange(1, driver_root.MAX_TIME_SCALE),
    help="How many times slower than it says a card is; for machines with few cores.",
)
@click.option("--force", is_flag=True, help="Replace simulated cards that containers still use.")
@output.answers
def up(prefix: str, cards: int, memory: str, time_scale: int, force: bool) -> output.Report:
    """Make simulated cards and let this install use them instead of a real driver.

    Sets driver_root in the install's settings. Cards that were simulated before are replaced; the new ones have other
    UUIDs.
    """
    try:
        memory_mib = units.size(memory)
    except ValueError as e:
        raise refuse("GH-101", f"--memory {memory[:40]}: {e}; write a size as 24Gi") from None
    settings = load_settings(prefix)
    refuse_while_used(settings, "up", force)
    former = former_root(settings)
    drop_shared(settings)
    root = driver_root.make(prefix, settings.state_dir, cards, memory_mib, time_scale)
    mark = root / SIMULATED_MARK
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "former_driver_root": former}) + "\n")
    try:
        found = discover(str(root))
        settings = set_driver_root(prefix, str(root))
    except Exception:
        driver_root.remove(prefix, settings.state_dir)
        raise
    cache.save(settings, found)
    lines = [f"simulated driver {found.driver_version} in {root}; driver_root in {prefix}/{SETTINGS_YAML} is set to it"]
    lines += [f"simulated card {c.index}: {c.uuid}, {output.size(c.memory_mib)}" for c in found.cards]
    data = {"simulated": True, "driver_root": str(root), "cards": [card.fields() for card in found.cards]}
    return output.Report(data, lines)


@sim.command()
@click.option("--force", is_flag=True, help="Even while containers use simulated cards.")
@output.answers
def down(prefix: str, force: bool) -> output.Report:
    """Remove the simulated cards; driver_root becomes what it was before."""
    settings = load_settings(prefix)
    refuse_while_used(settings, "down", force)
    former = former_root(settings)
    if settings.driver_root == str(driver_root.root_of(prefix)):
        set_driver_root(prefix, former)
        try:
            os.unlink(f"{settings.state_dir}/{INVENTORY}")
        except FileNotFoundError:
            pass
    drop_shared(settings)
    there = driver_root.remove(prefix, settings.state_dir)
    line = f"simulated cards removed; driver_root is {former}" if there else "there are no simulated cards here"
    return output.Report({"removed": there, "driver_root": former}, [line])


def former_root(settings: Settings) -> str:
    """What driver_root was before the simulated driver: its setting now, or what the mark remembers."""
    root = driver_root.root_of(settings.prefix)
    if settings.driver_root != str(root):
        return settings.driver_root
    try:
        return str(json.loads((root / SIMULATED_MARK).read_text())["former_driver_root"])
    except (OSError, ValueError, KeyError):
        return "/"


def refuse_while_used(settings: Settings, command: str, force: bool) -> None:
    """Containers that run on simulated cards would lose them. Raises NodeError GH-306."""
    cards = driver_root.cards_of(settings.state_dir)
    if force or not cards.exists():
        return
    grants = [grant.who.id for grant in store.snapshot(settings.state_dir) if grant.shares]
    if grants:
        names = ", ".join(name[:40] for name in grants[:3])
        raise refuse(
            "GH-306",
            f"{len(grants)} container(s) use the simulated cards: {names}; stop them, or `gpu-hook sim {command}"
            f" --force --prefix {shlex.quote(settings.prefix)}`",
        )


def drop_shared(settings: Settings) -> None:
    """Take away what containers shared on cards that none uses now. Raises NodeError GH-303."""
    if not share.cards(settings.state_dir):
        return
    with store.open_ledger(settings.state_dir) as ledger:
        try:
            share.drop(settings.state_dir, tuple(held.uuid for grant in ledger.grants for held in grant.shares))
        except OSError as e:
            raise store.unusable(settings.state_dir, e) from None


def set_driver_root(prefix: str, root: str) -> Settings:
    """Change the one line of settings.yaml and compile it; comments and the other settings stay as they are."""
    path = Path(prefix) / SETTINGS_YAML
    try:
        old = path.read_text()
    except OSError as e:
        raise refuse("GH-501", f"{path}: {e.strerror}; run `gpu-hook install --prefix {prefix}`") from None
    line = f"driver_root: {quoted(root)}"
    new = DRIVER_ROOT_LINE.sub(lambda _: line, old, count=1) if DRIVER_ROOT_LINE.search(old) else f"{old}\n{line}\n"
    settings_compile.write(str(path), new)
    try:
        return settings_compile.compile(prefix)
    except Exception:
        settings_compile.write(str(path), old)
        raise
