"""`gpu-hook install|uninstall`: the install under a prefix. Engines are not told; that is done by hand for now."""

import click

from oci_hook.cli import output
from oci_hook.engines import prefix as installs

BY_HAND = "no engine was changed: runtime-config/ has what docker, containerd and runc need to be told"
NOT_UNDONE = "no engine was changed: take gpu-hook out of the configuration of docker, containerd, podman by hand"


@click.command()
@click.option("--runtime", metavar="PATH", help="The real runtime. [default: this machine's runc, else crun]")
@click.option("--python", metavar="PATH", help="Python 3.10 or newer. [default: /usr/bin/python3]")
@click.option("--state-dir", metavar="DIR", help="Ledger and inventory, on tmpfs. [default: /run/gpu-hook]")
@output.answers
def install(prefix: str, runtime: str | None, python: str | None, state_dir: str | None) -> output.Report:
    """Put gpu-hook under a prefix, or renew what is there.

    Programs, libraries and settings, in one directory. An existing settings.yaml is kept. No engine's configuration
    is changed: see runtime-config/ for what to add there.
    """
    settings = installs.lay(prefix, runtime, python, state_dir)
    return output.Report(
        {"prefix": prefix, "runtime": settings.runtime, "state_dir": settings.state_dir, "engines": []},
        [f"installed in {prefix}: runtime {settings.runtime}, state in {settings.state_dir}", BY_HAND],
    )


@click.command()
@click.option("--force", is_flag=True, help="Even while containers hold shares; they run on, unaccounted.")
@output.answers
def uninstall(prefix: str, force: bool) -> output.Report:
    """Remove an install with its settings and ledger.

    Takes away only what `install` put there. No engine's configuration is changed: take gpu-hook out of it first.
    """
    left = installs.remove(prefix, force)
    lines = [f"removed {prefix}", *(f"not ours, left: {path}" for path in left), NOT_UNDONE]
    return output.Report({"prefix": prefix, "left": left, "engines": []}, lines)
