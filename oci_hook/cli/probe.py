"""`gpu-hook probe`: the path of the program that shows a container's memory limit."""

import os

import click

from oci_hook.cli import output
from oci_hook.errors import refuse


@click.command()
@output.answers
def probe(prefix: str) -> output.Report:
    """Print the path of a program that takes GPU memory until it is refused.

    Mounted into a container it shows that the limit holds; the image needs the C library of GNU.

    docker run --rm --runtime=gpu-hook --annotation gpu-hook.io/memory=1Gi -v "$(gpu-hook probe)":/probe ubuntu /probe
    """
    path = os.path.join(prefix, "bin/gpu-hook-probe")
    if not os.path.exists(path):
        raise refuse("GH-501", f"{path} does not exist; `gpu-hook install`, or name the install by --prefix")
    return output.Report({"path": path}, [path])
