"""`gpu-hook translate`: rewrite a Kubernetes manifest of another sharing system for gpu-hook."""

from typing import IO, Any

import click

from oci_hook.cli import output
from oci_hook.core import dialects
from oci_hook.core.dialects import qgpu
from oci_hook.core.rules import Rules
from oci_hook.errors import GhError, refuse
from oci_hook.kube.manifests import translate as kube
from oci_hook.kube.pod.translate_pod import TranslatedPod


@click.command()
@click.argument("file", type=click.File("rb"), metavar="FILE.yaml|-")
@click.option(
    "--dialect",
    multiple=True,
    type=click.Choice(dialects.NAMES),
    help="Translate only this system's words; may be given several times. [default: all]",
)
@click.option("--qgpu-memory-unit", type=click.Choice(tuple(qgpu.UNITS)), help="Unit of qgpu-memory in this manifest.")
@click.option(
    "--to",
    type=click.Choice(("annotations", "dra")),
    default="annotations",
    show_default=True,
    help="dra: write ResourceClaimTemplates, for Kubernetes 1.36; of gpu-hook's own annotations, too.",
)
@output.json_option
def translate(file: IO[bytes], dialect: tuple[str, ...], qgpu_memory_unit: str | None, to: str, as_json: bool) -> None:
    """Rewrite a manifest of another sharing system to gpu-hook's annotations and runtime class, or to claims.

    The new manifest goes to standard output, with its comments and order unchanged; a note on standard error names
    each part that has no equivalent. With --json, one object holds both. Needs no install. Exit status 1: the manifest
    cannot be translated; only the reason is printed.
    """
    rules = Rules(dialects=dialect or dialects.NAMES, qgpu_memory_unit=qgpu_memory_unit or "none")
    try:
        done = kube.translate(text_of(file), rules, to == "dra")
    except GhError as e:
        output.fail(e, as_json)
    notes = [f"{one}: {note}" for one in (*done.pods, *done.quotas) for note in one.notes] + done.notes
    if as_json:
        output.show(output.Report({"manifest": done.text, "objects": as_data(done.pods), "notes": notes}, []), True)
        return
    made = [*(pod.annotations or pod.claims for pod in done.pods), *(any(one.made) for one in done.quotas)]
    if not done.notes and not any(made):
        notes.append("nothing requests a GPU in the words of " + ", ".join(rules.dialects))
    for note in notes:
        click.echo(f"note: {output.printable(note)}", err=True)
    click.echo(done.text, nl=False)


def text_of(file: IO[bytes]) -> str:
    """The manifest, read at most a little beyond its maximum size. Raises GH-107 if it is not UTF-8."""
    try:
        return file.read(4 * kube.MAX_SIZE + 1).decode()
    except UnicodeDecodeError as e:
        raise refuse("GH-107", f"{file.name}: not UTF-8 at byte {e.start}") from None
    except OSError as e:
        raise refuse("GH-107", f"{file.name}: {e.strerror}") from None


def as_data(pods: list[TranslatedPod]) -> list[dict[str, Any]]:
    return [
        {
            "kind": pod.kind,
            "name": pod.name,
            "part": pod.part,
            "annotations": pod.annotations,
            "claims": pod.claims,
            "containers": {container.name: container.words for container in pod.containers},
            "notes": pod.notes,
        }
        for pod in pods
    ]
