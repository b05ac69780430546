#!/usr/bin/env -S .venv/bin/python
"""docs/reference/cli.md from the commands' own help. Run it after a change of a command; a test compares the page."""

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from oci_hook.cli.main import SUMMARIES, cli

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/cli.md"
WIDTH = 120
COMMON = ("--prefix DIR", "--json")
HEAD = """# Commands

What `gpu-hook COMMAND --help` says, for all commands. This page is written by `scripts/cli_page.py`.

Most commands have these options:

- `--prefix DIR`: The install to work on. [env var: GPU_HOOK_PREFIX; default: /opt/gpu-hook]
- `--json`: Print one JSON object ([keys](json.md)).
- `-h, --help`: Show this message and exit.

Exit status: 0 done; 1 refused, with a [code](errors.md) and what to do on standard error; 2 wrong usage. `doctor`,
`explain`, `set`, `freeze` and `resume` say more with theirs.
"""


def page() -> str:
    root = click.Context(cli, info_name="gpu-hook", help_option_names=["-h", "--help"])
    parts = [HEAD]
    for name in sorted(SUMMARIES):
        command = cli.get_command(root, name)
        assert command is not None
        parts += _sections(command, click.Context(command, parent=root, info_name=name), 2)
    return "\n".join(parts)


def _sections(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"{'#' * level} {context.command_path}\n\n    {context.command_path} {usage}\n"
    for paragraph in re.split(r"\n\s*\n", (command.help or "").replace("\b", "")):
        yield textwrap.fill(" ".join(paragraph.split()), WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"
    # Not get_params(): it adds the help option, as the context that asked first in this process named it.
    options = [p for p in command.params if isinstance(p, click.Option)]
    records = [record for p in options if (record := p.get_help_record(context))]
    lines = []
    for flags, text in records:
        if flags not in COMMON:
            item = f"- `{flags}`: {' '.join(text.split())}"
            lines += textwrap.wrap(item, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    if lines:
        yield "\n".join(lines) + "\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            part = command.get_command(context, name)
            assert part is not None
            yield from _sections(part, click.Context(part, parent=context, info_name=name), level + 1)
        return
    without = [flag for flag in COMMON if flag not in [flags for flags, _ in records]]
    if without:
        yield f"Without {' and '.join(f'`{flag}`' for flag in without)}.\n"


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(__doc__)
    PAGE.write_text(page())
