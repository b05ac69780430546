"""`gpu-hook agent`: the node agent, in the foreground; systemd's or a person's."""

import os
from typing import Any

import click

from oci_hook.cli import output
from oci_hook.errors import GhError


@click.command()
@output.prefix_option
@click.option("--address", metavar="HOST:PORT", help="Where the web page and the metrics are; none: nowhere.")
@click.option("--token-file", metavar="FILE", help="Its first line must come with every request.")
@click.option("--textfile", metavar="FILE.prom", help="Write the metrics there as well.")
@click.option(
    "--policy", type=click.Choice(["protect", "report", "freeze", "kill"]), help="What a cheat is answered with."
)
@click.option("--tolerance", metavar="SIZE", help="What a container may be above its limit.")
@click.option(
    "--compute-tolerance", type=int, metavar="POINTS", help="By how much of a GPU it may be above its ceiling."
)
@click.option("--interval", type=click.FloatRange(0.1, 60), metavar="SECONDS", help="Between two looks at the GPUs.")
def agent(prefix: str, **flags: Any) -> None:
    """Watch this node: keep the ledger tidy, audit the GPUs, serve metrics.

    Containers do not need it. Flags win over the `agent.` lines of settings.yaml.
    """
    from oci_hook.agent import options  # not for every command
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
            raise click.UsageError("the agent looks into other users' containers: run it as root")
        raise SystemExit(Agent(prefix, options.load(prefix).replace(**given)).run())
    except GhError as e:
        output.fail(e, as_json=False)
