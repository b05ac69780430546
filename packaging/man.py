"""Man page of `gpu-hook`, made from its commands; the other programs' man pages are in man/."""

import datetime
from collections.abc import Iterator
from pathlib import Path

import click
from payload import VERSION, epoch

from oci_hook.cli.main import PACKAGED, SUMMARIES, Absent, cli, without_simulator

ABOUT = """\
.SH EXIT STATUS
0: done. 1: refused; standard error has a line with a code GH\\-xxx and what to do. 2: wrong usage.
3: recorded, but not yet in effect in the container
.RB ( set ,
.BR freeze ,
.BR resume ).
.B doctor
exits with 0 if all is well, 1 if there are warnings, 2 if containers will not start or not as they should.
.SH FILES
.TP
.I /opt/gpu\\-hook/etc/settings.yaml
the settings of the default install, each with an explanation
.TP
.I /run/gpu\\-hook
ledger and inventory; empty after a reboot
.SH SEE ALSO
.BR gpu\\-hook\\-runtime (8),
.BR oci\\-gpu\\-hook (8)
"""


def pages() -> dict[str, str]:
    """Name with section -> roff."""
    texts = {"gpu-hook.1": _cli()}
    for path in (Path(__file__).parent / "man").glob("*.8"):
        texts[path.name] = path.read_text()
    return {name: dated(text) for name, text in texts.items()}


def dated(text: str) -> str:
    date = datetime.datetime.fromtimestamp(epoch(), datetime.timezone.utc).strftime("%Y-%m-%d")
    return text.replace("@DATE@", date).replace("@VERSION@", VERSION)


def _cli() -> str:
    lines = [
        '.TH GPU\\-HOOK 1 "@DATE@" "gpu\\-hook @VERSION@"',
        ".SH NAME",
        "gpu\\-hook \\- share one NVIDIA GPU among containers by annotations",
        ".SH SYNOPSIS",
        ".B gpu\\-hook",
        ".I COMMAND",
        "[options]",
        ".SH DESCRIPTION",
        roff(cli.help or ""),
        ".SH COMMANDS",
    ]
    root = click.Context(cli, info_name="gpu-hook")
    for name in sorted(SUMMARIES):
        command = Absent(name, "") if name == "sim" else cli.get_command(root, name)
        assert command is not None
        lines += commands(command, click.Context(command, parent=root, info_name=name))
        if name == "sim":
            lines.append(roff(f"See gpu-hook-{name}(1). Where it is missing: {without_simulator(PACKAGED)}."))
    return "\n".join(lines) + "\n" + ABOUT


def commands(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f".SS {roff(context.command_path)}"
    for paragraph in (command.help or "").split("\n\n"):
        yield roff(" ".join(paragraph.split()))
        yield ".PP"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            part = command.get_command(context, name)
            assert part is not None
            yield from commands(part, click.Context(part, parent=context, info_name=name))
        return
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record:
            yield ".TP"
            yield f"\\fB{roff(record[0])}\\fR"
            yield roff(" ".join(record[1].split()))


def roff(text: str) -> str:
    """Text escaped for roff."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in text.splitlines())
