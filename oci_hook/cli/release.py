"""`gpu-hook release`: take back the grant of a container that is gone."""

import click

from oci_hook.cli import output
from oci_hook.config import settings as node_settings
from oci_hook.core.grant import Grant
from oci_hook.errors import refuse
from oci_hook.ledger import admit, store

MIN_PREFIX = 6


@click.command()
@click.argument("container", default="")
@click.option(
    "--key", default="", metavar="KEY", help="The grant's key, as `ps --json` and the ledger's files name it."
)
@click.option(
    "--force", is_flag=True, help="Even if its container lives (it runs on, unaccounted) or its file is damaged."
)
@output.answers
def release(prefix: str, container: str, key: str, force: bool) -> output.Report:
    """Take back the share of CONTAINER, which must be gone.

    CONTAINER is the id, or at least six characters of its beginning. Dead containers' shares are taken back by
    themselves whenever anybody looks; this says so, and --force is for what that cannot settle.
    """
    if bool(container) == bool(key):
        raise click.UsageError("name a CONTAINER or give --key, not both")
    settings = node_settings.load(prefix)
    if key:
        found = admit.release(key, settings, force=force)
        return answer([key] if found else [], f"grant {key}")
    with store.open_ledger(settings.state_dir) as ledger:
        gone, living = match(ledger.swept, container), match(ledger.grants, container)
    for grant in living:
        if not force:
            raise refuse(
                "GH-407", f"container {grant.who.id} lives and holds grant {grant.key}; stop it, or use --force"
            )
        if len(living) > 1:
            keys = ", ".join(g.key for g in living)
            raise refuse("GH-407", f"{len(living)} living containers match {container}; choose one with --key: {keys}")
        admit.release(grant.key, settings, force=True)
    return answer([grant.key for grant in (*gone, *living)], f"container {container}")


def match(grants: tuple[Grant, ...], container: str) -> list[Grant]:
    """Those with this id, or else those whose ids begin so."""
    exact = [grant for grant in grants if grant.who.id == container]
    if exact or len(container) < MIN_PREFIX:
        return exact
    return [grant for grant in grants if grant.who.id.startswith(container)]


def answer(keys: list[str], what: str) -> output.Report:
    return output.Report({"released": keys}, [f"released {key}" for key in keys] or [f"{what} holds nothing"])
