"""The answers of commands: the options --prefix and --json, one place that prints and one that exits.

A command returns a Report or raises GhError; it neither prints nor exits itself:

    @click.command()
    @output.answers
    def ps(prefix: str) -> output.Report:
        ...
"""

import functools
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from oci_hook.core.layout import DEFAULT_PREFIX
from oci_hook.core.words import CUT
from oci_hook.core.words import cut as cut
from oci_hook.core.words import size as size
from oci_hook.errors import GhError, Problem
from oci_hook.install import places
from oci_hook.ledger.events import short as short


class Report:
    """A command's findings.

    data: the object that --json prints. lines: the same for people. warnings: printed on standard error, and under
    the key "warnings" of the object if there are any. exit_status: of the process.

    The same thing has the same key in every command's object: a container's `id`, grant `key`, `namespace`, `pod` and
    `name`; a GPU's `index` and `uuid`; sizes in MiB (`..._mib`), compute in per cent, times in seconds since 1970.
    """

    def __init__(
        self, data: dict[str, Any], lines: Iterable[str], warnings: Sequence[Problem] = (), exit_status: int = 0
    ) -> None:
        self.data = data
        self.lines = tuple(lines)
        self.warnings = tuple(warnings)
        self.exit_status = exit_status


class Prefix(click.Path):
    """An absolute path: of an empty or relative one it is not clear which folder was meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.path.isabs(value):
            self.fail(f"'{value}' is not an absolute path", param, ctx)
        return super().convert(value, param, ctx)


prefix_option = click.option(
    "--prefix",
    envvar="GPU_HOOK_PREFIX",
    default=places.found,
    show_default=f"{DEFAULT_PREFIX}, or the place where one is",
    show_envvar=True,
    metavar="DIR",
    type=Prefix(resolve_path=True),
    help="Prefix of the install to work on.",
)


def prefix_is_default() -> bool:
    return click.get_current_context().get_parameter_source("prefix") == ParameterSource.DEFAULT


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def cluster_options(option: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a command: add --dump and --kubeconfig, the two sources of the cluster's objects. option: the one that needs them."""
    dump = (
        f"With {option}: read the cluster from this output of `kubectl get nodes,pods,pdb -A -o json`, or with claims of"
        " nodes,pods,pdb,resourceclaims,resourceslices,deviceclasses."
    )

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        command = kubeconfig_option(option)(command)
        return click.option("--dump", type=click.Path(dir_okay=False), metavar="FILE", help=dump)(command)

    return add


def kubeconfig_option(option: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    config = f"With {option}: how to reach the API server. [default: as kubectl, or the pod's service account]"
    return click.option("--kubeconfig", type=click.Path(dir_okay=False), metavar="FILE", help=config)


def answers(command: Callable[..., Report]) -> Callable[..., None]:
    """Decorate a command: add --prefix and --json, print its report or its problems, and exit."""

    @prefix_option
    @json_option
    @functools.wraps(command)
    def run(*args: Any, as_json: bool, **options: Any) -> None:
        try:
            report = command(*args, **options)
        except GhError as e:
            fail(e, as_json)
        show(report, as_json)
        raise SystemExit(report.exit_status)

    return run


def show(report: Report, as_json: bool) -> None:
    for problem in report.warnings:
        click.echo(f"warning: {problem}", err=True)
    if as_json:
        warnings = {"warnings": [as_data(p) for p in report.warnings]} if report.warnings else {}
        click.echo(json.dumps({**report.data, **warnings}, indent=2))
        return
    for line in report.lines:
        click.echo(line)


def fail(error: GhError, as_json: bool) -> NoReturn:
    """One line per problem on standard error, or one JSON object on standard output; exit status 1."""
    if as_json:
        click.echo(json.dumps({"errors": [as_data(p) for p in error.problems]}, indent=2))
    else:
        click.echo(str(error), err=True)
    raise SystemExit(error.exit_status)


def as_data(problem: Problem) -> dict[str, str]:
    return {"code": problem.code, "message": str(problem).removeprefix(f"{problem.code}: ")}


def columns() -> int:
    """The terminal's width; 0 if standard output is no terminal, where nothing is to be shortened."""
    if not sys.stdout.isatty():
        return 0
    import shutil  # the agent, which has no terminal, needs none of it

    return shutil.get_terminal_size().columns


def folded(line: str, width: int) -> list[str]:
    """A line of prose, wrapped at blanks with an indent. Not for text that users copy, such as commands and paths."""
    if not width or len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line, width, subsequent_indent=f"{indent}  ", break_on_hyphens=False) or [line]


def table(
    header: Sequence[str], rows: Iterable[Sequence[object]], spare: Sequence[str] = (), width: int | None = None
) -> list[str]:
    """A table for eyes, grep and awk: columns as wide as their widest cell, two blanks between, no rule lines.

    spare: columns to shorten or leave out, in this order, until the table fits into `width` columns (None: the
    terminal's). A column's cells are first cut to CUT characters, and then the column goes. If that is not enough, the
    end of each line is cut.
    """
    cells = [tuple(header), *(tuple(printable(c) for c in row) for row in rows)]
    width = columns() if width is None else width
    left = list(spare)
    while width and left and least(cells, left) > width:
        at = cells[0].index(left[0])
        if max((len(row[at]) for row in cells[1:]), default=0) > CUT + 1:
            cells = [cells[0], *((*row[:at], cut(row[at]), *row[at + 1 :]) for row in cells[1:])]
        else:
            cells = [(*row[:at], *row[at + 1 :]) for row in cells]
            left.pop(0)
    return [line if not width or len(line) <= width else line[: width - 1] + "…" for line in aligned(cells)]


def least(cells: Sequence[Sequence[str]], spare: Sequence[str]) -> int:
    """The width that these cells need; CUT counts for the last column if it is not spare, since it can be cut."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if cells[0][-1] not in spare:
        widths[-1] = min(widths[-1], CUT)
    return sum(widths) + 2 * (len(widths) - 1)


def aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]


def printable(value: object) -> str:
    """A table's cell; "-" if it is empty. Names come from tenants, so escape sequences are not passed on."""
    return "".join(c if c.isprintable() else "?" for c in str(value)) or "-"


def compute(booked: int, offline: int) -> str:
    """A GPU's booked compute, for people."""
    return f"{booked}%" + (f" and {offline}% offline" if offline else "")


def count(n: int, noun: str, plural: str = "") -> str:
    """1 container, 2 containers."""
    return f"{n} {noun if n == 1 else plural or noun + 's'}"


def unix_time(text: str) -> float | None:
    """A date, with or without a time, as people and the API server write it (RFC 3339, ISO 8601); None for anything else."""
    from datetime import datetime  # few commands need it

    if text[-1:] in ("z", "Z"):  # Python 3.10 reads none
        text = f"{text[:-1]}+00:00"
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
