"""`gpu-hook bundle`: gpu-hook's OCI hooks in a bundle's config.json, for a runtime that is called as ever."""

import difflib
import os
from pathlib import Path

import click

from oci_hook.apply import to_spec
from oci_hook.cli import output
from oci_hook.config import settings as node_settings
from oci_hook.engines import hooked_bundle
from oci_hook.engines.containerd_spec import LIMITS
from oci_hook.engines.edits import Registration, text_of
from oci_hook.oci import fastjson, request_mounts, spec


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--remove", is_flag=True, help="Take the hooks out again.")
@click.option("--dry-run", is_flag=True, help="Print the change without making it.")
@output.answers
def bundle(prefix: str, folder: str, remove: bool, dry_run: bool) -> output.Report:
    """Add gpu-hook's OCI hooks to DIR/config.json.

    Then plain `runc run --bundle DIR` (or crun) gives the container the share that its annotations ask for. Nothing else in the
    file changes, but what gpu-hook-runtime put there for an earlier container is taken out; a second run changes nothing. A hook
    cannot set environment variables; calling gpu-hook-runtime in place of runc does that too, and needs no change of the bundle.
    """
    settings = node_settings.load(prefix)
    path = os.path.join(os.path.abspath(folder), "config.json")
    data = spec.read(path)
    found = spec.parse(data, path)
    old, file = text_of(Path(path), data), Path(path)
    edit = hooked_bundle.without_hooks if remove else hooked_bundle.with_hooks
    plain = to_spec.scrub(found)
    text = old if plain is found else fastjson.dumps(plain) + "\n"  # as gpu-hook-runtime writes it
    new = edit(text, file, Registration(prefix).hook)
    if new != old and not dry_run:
        spec.replace(path, new.encode())
    what = "unchanged" if new == old else "would change" if dry_run else "changed"
    lines = [f"{what} {path}", *difflib.unified_diff(old.splitlines(), new.splitlines(), path, path, lineterm="")]
    if not remove:
        lines.append(LIMITS)
        if request_mounts.request(found, found.get("annotations") or {}, settings.rules) is None:
            lines.append("it asks for no share yet: add an annotation, such as gpu-hook.io/memory: 4Gi")
    return output.Report({"path": path, "changed": new != old, "dry_run": dry_run}, lines)
