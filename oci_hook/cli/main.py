"""`gpu-hook`: the table of commands. Each command has its own file, which is imported only when it is called."""

import contextlib
import errno
import os
import sys

import click

from oci_hook import __version__

COMMANDS = {
    "agent": "oci_hook.cli.agent:agent",
    "bundle": "oci_hook.cli.bundle:bundle",
    "completion": "oci_hook.cli.completion:completion",
    "controller": "oci_hook.cli.controller:controller",
    "doctor": "oci_hook.cli.doctor:doctor",
    "events": "oci_hook.cli.events:events",
    "explain": "oci_hook.cli.explain:explain",
    "freeze": "oci_hook.cli.freeze:freeze",
    "gpus": "oci_hook.cli.gpus:gpus",
    "install": "oci_hook.cli.install:install",
    "probe": "oci_hook.cli.probe:probe",
    "ps": "oci_hook.cli.ps:ps",
    "release": "oci_hook.cli.release:release",
    "resume": "oci_hook.cli.freeze:resume",
    "run": "oci_hook.cli.run:run",
    "set": "oci_hook.cli.set:set_",
    "settings": "oci_hook.cli.settings:settings",
    "sim": "gpu_hook_simulator.cli:sim",
    "suspend": "oci_hook.cli.suspend:suspend",
    "top": "oci_hook.cli.top:top",
    "translate": "oci_hook.cli.translate:translate",
    "uninstall": "oci_hook.cli.install:uninstall",
    "why": "oci_hook.cli.why:why",
}

# Stands here and not in the commands, so that --help imports none of them.
SUMMARIES = {
    "agent": "Run the node agent: ledger, audit, metrics, web page.",
    "bundle": "Add the OCI hooks to an OCI bundle, for plain runc.",
    "completion": "Print the completion script of a shell.",
    "controller": "Run the cluster's controller.",
    "doctor": "List what is wrong on this node, with the command that fixes it.",
    "events": "List what happened: grants, refusals, findings.",
    "explain": "Show what a container would get, and why; change nothing.",
    "freeze": "Stop a container's GPU work until `resume`.",
    "gpus": "List the node's GPUs; --refresh detects them again.",
    "install": "Install under a prefix and register with the container engines.",
    "probe": "Print the path of a program that shows a container's limit.",
    "ps": "List the containers that hold a share.",
    "release": "Release the share of a container that is gone.",
    "resume": "Continue a container that `freeze` or `suspend` stopped.",
    "run": "Run a container with a share, by docker or podman.",
    "set": "Change the share of a running container.",
    "settings": "Check, show or change the settings of an install.",
    "sim": "Start or stop simulated GPUs.",
    "suspend": "Move a container's GPU memory to the host's until `resume`.",
    "top": "Show GPUs and containers live.",
    "translate": "Rewrite a manifest of another sharing system.",
    "uninstall": "Unregister from the engines and remove an install.",
    "why": "Explain why a container was refused or is slow, and what helps.",
}

# Other tools' names for these commands: no spelling leads from one to the other.
OTHER_WORDS = {
    "apply": "set", "attach": "top", "check": "doctor", "config": "settings", "continue": "resume", "convert": "translate",
    "delete": "release", "devices": "gpus", "dry-run": "explain", "gpu": "gpus", "limit": "set",
    "list": "ps", "log": "events", "logs": "events", "ls": "ps", "monitor": "top", "nvidia-smi": "gpus", "pause": "freeze",
    "remove": "uninstall", "resize": "set", "setup": "install", "show": "ps", "simulate": "sim",
    "simulator": "sim", "stats": "top", "status": "ps", "thaw": "resume", "unfreeze": "resume",
    "unpause": "resume", "update": "set", "validate": "doctor", "watch": "top",
}  # fmt: skip

ENGINES_WORDS = (
    "build",
    "cp",
    "create",
    "exec",
    "images",
    "inspect",
    "kill",
    "pull",
    "push",
    "restart",
    "rm",
    "start",
    "stop",
)

HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGED = "/usr/lib/gpu-hook"  # where the packages for Debian and Red Hat have their Python code


def without_simulator(home: str) -> str:
    """How this install gets the simulator: no index of packages has it."""
    if os.path.exists(os.path.join(home, "scripts/setup")):
        how = "run scripts/setup"
    else:
        kinds = (
            "`scripts/package simulator-deb` or simulator-rpm"
            if home == PACKAGED
            else "`scripts/package simulator-wheel`"
        )
        how = f"install the package gpu-hook-simulator, which {kinds} builds in a checkout of gpu-hook's sources"
    return f"the simulator is not installed: {how}"


class Absent(click.Command):
    """Stands for a command that lacks a package: whatever follows it, the answer is what it lacks, and how to get it."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, help=SUMMARIES[name], add_help_option=False)
        self.why = why
        self.context_settings = {"ignore_unknown_options": True, "allow_extra_args": True}

    def invoke(self, ctx: click.Context) -> None:
        raise click.UsageError(self.why)


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        where = COMMANDS.get(cmd_name)
        if where is None:
            return None
        module, _, attribute = where.partition(":")
        try:
            command = getattr(__import__(module, fromlist=[attribute]), attribute)
        except ModuleNotFoundError as e:
            missing = (e.name or "").partition(".")[0]
            if cmd_name == "sim" and missing == module.partition(".")[0]:
                return Absent(cmd_name, without_simulator(HOME))
            if missing in ("", "oci_hook", "gpu_hook_simulator"):
                raise
            why = f"it needs the Python package {missing}, which is missing here"
            return Absent(cmd_name, why)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in COMMANDS and not word.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command '{word}'.{suggestion(word)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(SUMMARIES.items()))


def suggestion(word: str) -> str:
    """ " Did you mean 'ps'?", or "" where no command resembles the word."""
    from difflib import get_close_matches

    word = word.lower()
    if word in ENGINES_WORDS:
        return f" The engine does that: docker {word}, podman {word}."
    near = get_close_matches(word, COMMANDS, n=2, cutoff=0.7)
    if other := OTHER_WORDS.get(word):
        near = [other, *(name for name in near if name != other)]
    names = [f"'{name}'" for name in near]
    return f" Did you mean {' or '.join(names)}?" if names else ""


def say_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        click.echo(f"gpu-hook {version()}")
        ctx.exit()


def version() -> str:
    """The version, and the commit and its date: of the package, or of the checkout that runs."""
    import json
    import subprocess

    here = os.path.dirname(os.path.dirname(__file__))
    try:
        with open(os.path.join(here, "made.json")) as file:  # packaging/payload.py writes it
            made = json.load(file)
    except OSError:
        git = ["git", "-C", os.path.dirname(here), "log", "-1", "--format=%h %cs", "--abbrev=12", "--", "."]
        said = ""
        if os.path.exists(os.path.join(os.path.dirname(here), ".git")):
            with contextlib.suppress(OSError):
                said = subprocess.run(git, capture_output=True, text=True).stdout
        made = dict(zip(("commit", "date"), said.split(), strict=False))
    known = ", ".join(filter(None, (made.get("commit"), made.get("date"))))
    return f"{__version__} ({known})" if known else __version__


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=say_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Share one NVIDIA GPU among containers: memory limits and compute shares by annotations."""


def main() -> None:
    try:
        cli(prog_name="gpu-hook")
    except BrokenPipeError:
        # The reader (such as `head`) closed the pipe. Without this, Python complains again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as e:
        if e.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        click.echo(f"the answer cannot be written: {e.strerror}", err=True)
        sys.exit(1)
