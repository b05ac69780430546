"""`gpu-hook run`: one command in front of docker or podman, which asks for a share as that engine's version can."""

import contextlib
import json
import os
import shlex
from collections.abc import Iterable, Sequence
from typing import NoReturn

import click

from oci_hook.cli import output
from oci_hook.cli.explain import keys_without_prefix, pairs, unlent_memory
from oci_hook.config import settings as node_settings
from oci_hook.config.settings import Settings
from oci_hook.core.collect import guessed
from oci_hook.core.layout import PREFIX_KEY
from oci_hook.core.request import parse
from oci_hook.core.units import show
from oci_hook.engines import run_line
from oci_hook.errors import GhError, RequestError
from oci_hook.ledger import inventory as node_inventory
from oci_hook.oci import request_mounts


class Front(click.Command):
    """Its options come first. From the first other word on, everything is the engine's, unread."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = self.own(ctx, args)
        rest = args[end + 1 :] if args[end : end + 1] == ["--"] else args[end:]
        return super().parse_args(ctx, [*args[:end], "--", *rest] if rest else args[:end])

    def own(self, ctx: click.Context, args: Sequence[str]) -> int:
        """The number of words at the beginning that are this command's options, and their values."""
        options = {name: p for p in self.get_params(ctx) if isinstance(p, click.Option) for name in p.opts}
        at = 0
        while at < len(args):
            word = args[at]
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            option = options.get(name)
            if option is None:
                break
            at += 1 if option.is_flag or option.is_eager or word != name else 2
        return at


@click.command(cls=Front)
@output.prefix_option
@click.option("--memory", "-m", metavar="SIZE", help="Memory on each of its GPUs: 4Gi, 512Mi, 2048 (MiB) or 30%.")
@click.option("--memory-request", metavar="SIZE", help="What of the memory is booked, where the node lends the rest.")
@click.option("--compute", "-c", metavar="N", help="Compute share on each of its GPUs, 1 to 100 per cent.")
@click.option("--compute-limit", metavar="N", help="With burst-share: a ceiling at or above --compute.")
@click.option("--gpus", metavar="N", help="How many GPUs: 1 to 16, all or none. [default: 1]")
@click.option("--devices", metavar="LIST", help="Exactly these GPUs: 0,2, UUIDs or all.")
@click.option("--policy", metavar="P", help="best-effort, fixed-share or burst-share (or be, fs, bs).")
@click.option("--class", "class_", metavar="C", help="online, default or offline.")
@click.option("--exclusive", is_flag=True, help="The whole GPU, no limits, nobody else on it.")
@click.option("--annotation", "-a", multiple=True, metavar="K=V", help="Any other annotation.")
@click.option("--engine", type=click.Choice(run_line.ENGINES), help="[default: docker if it answers, else podman]")
@click.option("--dry-run", is_flag=True, help="Print the engine's command line, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: print one JSON object.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[ENGINE'S OPTIONS] IMAGE [COMMAND]")
def run(
    prefix: str,
    annotation: tuple[str, ...],
    exclusive: bool,
    engine: str | None,
    dry_run: bool,
    as_json: bool,
    words: tuple[str, ...],
    **asked: str | None,
) -> None:
    """Run a container with a share of a GPU, by docker or podman.

    Options of gpu-hook come first. From the first other word on, everything goes to `docker run` or `podman run` as it
    is, such as -it, --rm and the engine's own -m, which is memory of the host. The request becomes annotations, or mounts
    for a docker before 24, which knows no annotations.
    """
    if as_json and not dry_run:
        raise click.UsageError("--json goes with --dry-run; the container's own output is not JSON")
    wanted = {
        PREFIX_KEY + name.rstrip("_").replace("_", "-"): value for name, value in asked.items() if value is not None
    }
    if exclusive:
        wanted[PREFIX_KEY + "exclusive"] = "true"
    others = pairs("--annotation", annotation)
    if twice := next((key for key in others if key in wanted), ""):
        raise click.UsageError(f"{twice} is asked for twice: by its own option and by --annotation")
    wanted |= others
    try:
        if bare := keys_without_prefix(others):
            raise RequestError(*bare)
        settings = node_settings.load(prefix)
        check(settings, wanted, words[0].partition("=")[0] if words else "", [*asked, "exclusive"])
        if not words:
            raise click.UsageError("name the IMAGE, after the options of gpu-hook")
        run_line.check_words(wanted, words)
        names = {name for name, _ in run_line.options(words)}
        if PREFIX_KEY + "memory" not in wanted and names & {"-m", "--memory"}:
            click.echo(
                "note: -m after the engine's first option is memory of the host; for the GPU's, put it first", err=True
            )
        taken = run_line.choose(engine)
        line = run_line.line(taken, wanted, words)
    except GhError as e:
        output.fail(e, as_json)
    if taken.instead:
        click.echo(f"note: podman is taken: {taken.instead}; --engine names one", err=True)
    if dry_run:
        click.echo(json.dumps({"command": line}, indent=2) if as_json else shlex.join(line))
        return
    become(line)


def check(settings: Settings, annotations: dict[str, str], first: str, own: Iterable[str]) -> None:
    """first: the first word that is the engine's. own: this command's options that ask.

    Raises RequestError for what no container could have, and UsageError for nothing. Says what is of no effect here."""
    request = parse(annotations, {}, "", settings.rules, (), request_mounts.decode)
    if request is None:
        names = [name.rstrip("_").replace("_", "-") for name in own]
        near = guessed(first[2:], names) if first.startswith("--") and first[2:] not in names else ""
        if near:
            raise click.UsageError(f"{show(first)} is no option of gpu-hook; did you mean --{near}?")
        raise click.UsageError(
            "say what the container may have of a GPU, before the engine's options: -m SIZE, -c N, --gpus N, --exclusive"
        )
    with contextlib.suppress(GhError):  # whoever cannot read the list of the GPUs; the start says more
        for problem in unlent_memory(request, node_inventory.load(settings), settings.rules):
            click.echo(f"warning: {problem}", err=True)


def become(line: list[str]) -> NoReturn:
    """The engine takes this process over: its terminal, its signals and its exit status are the container's."""
    os.execvp(line[0], line)
