"""`gpu-hook agent`: the node agent, in the foreground, started by systemd or by hand; and what it is told while it runs."""

import os
import time
from typing import Any

import click

from oci_hook.cli import named, output
from oci_hook.config import settings as node_settings
from oci_hook.core.layout import AGENT_LOCK
from oci_hook.errors import GhError, refuse

RELEASE_SECONDS = 90.0  # a program that lists the GPUs takes a minute at most


@click.group(invoke_without_command=True)
@click.pass_context
@output.prefix_option
@click.option("--address", metavar="HOST:PORT", help="Address of the web page and the metrics; none: do not listen.")
@click.option("--token-file", metavar="FILE", help="Require the first line of FILE as a token with every request.")
@click.option("--textfile", metavar="FILE.prom", help="Also write the metrics to this file.")
@click.option(
    "--policy",
    type=click.Choice(["protect", "report", "freeze", "kill"]),
    help="What to do about containers that take more than their share.",
)
@click.option("--tolerance", metavar="SIZE", help="Memory that a container may use above its limit.")
@click.option("--compute-tolerance", type=int, metavar="POINTS", help="Compute that it may use above its ceiling.")
@click.option(
    "--interval", type=click.FloatRange(0.1, 60), metavar="SECONDS", help="Time between two samples of the GPUs."
)
def agent(ctx: click.Context, /, prefix: str, **flags: Any) -> None:
    """Run the node agent: release exited containers' shares, audit the GPUs, serve metrics and a web page.

    Containers do not need it. Options override the agent's settings in settings.yaml.
    """
    if ctx.invoked_subcommand is not None:
        return
    from oci_hook.agent import options  # only here: other commands need not load it
    from oci_hook.agent.agent import Agent
    from oci_hook.install import agent_settings

    readers: dict[str, Any] = {**agent_settings.AGENT, "interval": float}
    try:
        given = {}
        for name, value in flags.items():
            if value is not None:
                try:
                    given[name] = readers[name](value)
                except ValueError as e:
                    raise click.UsageError(f"--{name.replace('_', '-')} {value}: {e}") from None
        if os.geteuid() != 0:
            raise click.UsageError("the agent reads other users' containers: run it as root")
        raise SystemExit(Agent(prefix, options.load(prefix).replace(**given)).run())
    except GhError as e:
        output.fail(e, as_json=False)


@agent.command("release-driver")
@output.answers
def release_driver(prefix: str) -> output.Report:
    """Have the running agent let go of the driver, so that its kernel module can be unloaded. SIGUSR1 does the same.

    It uses the driver again when another one is there, or after `take-driver`. Programs in containers are not ended:
    the lines name those that hold a share.
    """
    from oci_hook.agent.agent import RELEASE
    from oci_hook.agent.serve import whereabouts

    settings = node_settings.load(prefix)
    pid = _tell(settings, RELEASE)
    end = time.monotonic() + RELEASE_SECONDS
    while pid and not whereabouts.is_off(settings.state_dir):
        if time.monotonic() > end:
            raise refuse("GH-322", f"the agent, process {pid}, still asks the driver after {RELEASE_SECONDS:.0f} s")
        time.sleep(0.05)
        pid = _running(settings)
    ids = [grant.who.id for grant in named.snapshot(settings)]
    lines = [f"the agent, process {pid}, keeps off the driver" if pid else "no agent runs"]
    if ids:
        lines.append(
            "containers hold a share, and programs in them may use the driver: " + ", ".join(map(output.short, ids))
        )
    return output.Report({"agent": pid, "containers": ids}, lines)


@agent.command("take-driver")
@output.answers
def take_driver(prefix: str) -> output.Report:
    """Have the running agent use the driver again after `release-driver`. SIGUSR2 does the same."""
    from oci_hook.agent.agent import TAKE

    pid = _tell(node_settings.load(prefix), TAKE)
    return output.Report({"agent": pid}, [f"the agent, process {pid}, uses the driver" if pid else "no agent runs"])


def _running(settings: node_settings.Settings) -> int:
    from oci_hook.agent.serve import whereabouts

    return whereabouts.holder(f"{settings.state_dir}/{AGENT_LOCK}")


def _tell(settings: node_settings.Settings, signal: int) -> int:
    """Send the agent a signal; its process, or 0 where none runs."""
    if os.geteuid() != 0:
        raise click.UsageError("only root can tell the agent something")
    pid = _running(settings)
    if pid:
        try:
            os.kill(pid, signal)
        except ProcessLookupError:
            return 0
    return pid
