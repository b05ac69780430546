"""`gpu-hook completion`: what a shell needs to complete commands and options; packages bring these scripts as files."""

import click
from click.shell_completion import ShellComplete, get_completion_class

SHELLS = ("bash", "zsh", "fish")


def script(shell: str) -> str:
    """The script of one of SHELLS. When the user presses Tab, it asks `gpu-hook` itself."""
    from oci_hook.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    # Not its own source(): for bash that starts the bash of this machine, to complain of an old one.
    return ShellComplete.source(kind(cli, {}, "gpu-hook", "_GPU_HOOK_COMPLETE"))


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of SHELL, for installs by pip; packages bring it as a file.

    bash: gpu-hook completion bash >~/.local/share/bash-completion/completions/gpu-hook

    zsh: gpu-hook completion zsh >DIR/_gpu-hook, with a DIR that is in $fpath

    fish: gpu-hook completion fish >~/.config/fish/completions/gpu-hook.fish
    """
    click.echo(script(shell))
