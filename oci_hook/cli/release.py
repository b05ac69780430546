"""`gpu-hook release`: release the grant of a container that is gone."""

import click

from oci_hook.boundary import running
from oci_hook.cli import named, output
from oci_hook.config import settings as node_settings
from oci_hook.core.grant import Grant
from oci_hook.errors import GhError, refuse
from oci_hook.ledger import admit, events, store
from oci_hook.observe import engine_names


@click.command()
@click.argument("container", default="", shell_complete=named.complete)
@click.option(
    "--key", default="", metavar="KEY", help="The grant's key, as shown by `ps --json` and by the ledger's file names."
)
@click.option(
    "--force",
    is_flag=True,
    help="Even if the container is alive (it keeps running, unaccounted) or its grant file is damaged.",
)
@output.answers
def release(prefix: str, container: str, key: str, force: bool) -> output.Report:
    """Release the share of CONTAINER, which must be gone. Exit status 1: it holds none.

    CONTAINER is an id, at least six characters of its beginning, or a name. Shares of exited containers are released
    automatically whenever the ledger is read, so this command is rarely needed; --force is for grants that remain.
    """
    if bool(container) == bool(key):
        raise click.UsageError("name a CONTAINER or give --key, not both")
    settings = node_settings.load(prefix)
    if key:
        found = by_force(settings, key, living(settings)) if force else admit.release(key, settings)
        return answer([key] if found else [], f"grant {key}", running.drop(settings, [key]))
    with store.open_ledger(settings.state_dir) as ledger:
        swept, grants = ledger.swept, ledger.grants
    swept, grants = engine_names.named(swept), engine_names.named(grants)
    matching = admit.going_by((*swept, *grants), container)
    alive = [grant for grant in matching if grant.key in {other.key for other in grants}]
    if not matching and (short := admit.too_short((*swept, *grants), container)):
        raise refuse("GH-410", short)
    for grant in alive:
        if not force:
            raise refuse(
                "GH-407",
                f"container {events.title(grant.who)} is alive and holds grant {grant.key}; stop it, or use --force",
            )
        if grant.off_gpu:
            why = "is suspended, and nobody could resume it then; run `gpu-hook resume` first, or stop it"
            raise refuse("GH-411", f"container {events.title(grant.who)} {why}")
        if len(matching) > 1:
            keys = ", ".join(g.key for g in alive)
            how = f"{len(alive)} living" if len(alive) == len(matching) else f"{len(matching)} (living: {len(alive)})"
            raise refuse("GH-407", f"{how} containers match {container[:100]}; choose one by --key: {keys}")
        by_force(settings, grant.key, (grant,))
    released = [grant.key for grant in matching]
    return answer(released, f"container {container}", running.drop(settings, released))


def living(settings: node_settings.Settings) -> tuple[Grant, ...]:
    try:
        return named.snapshot(settings)
    except GhError:  # --force is for a damaged grant file, too
        return ()


def by_force(settings: node_settings.Settings, key: str, grants: tuple[Grant, ...]) -> bool:
    """admit.release by force; recorded as `released` if the grant is among these, whose containers live."""
    found = admit.release(key, settings, force=True)
    for grant in grants:
        if found and grant.key == key:
            events.moved(settings.state_dir, "released", grant)
    return found


def answer(keys: list[str], what: str, limited: str) -> output.Report:
    """limited: why the driver still keeps a limit of theirs; "" where it does not. Raises GH-410 where nothing was released."""
    if not keys:
        raise refuse("GH-410", f"{what[:100]} holds no share; `gpu-hook ps` lists those that do")
    lines = [f"released {key}" for key in keys]
    lines += [f"  the driver's memory limit is not cleared yet: {limited}"] if limited else []
    return output.Report({"released": keys}, lines)
