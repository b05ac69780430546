"""`gpu-hook agent`: the node agent, in the foreground, started by systemd or by hand."""

import os
from typing import Any

import click

from oci_hook.cli import output
from oci_hook.errors import GhError


@click.command()
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
def agent(prefix: str, **flags: Any) -> None:
    """Run the node agent: release exited containers' shares, audit the GPUs, serve metrics and a web page.

    Containers do not need it. Options override the agent's settings in settings.yaml.
    """
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
