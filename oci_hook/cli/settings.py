"""`gpu-hook settings check|show|set`: the settings of an install, which are in effect at the next container start."""

import os
from typing import TYPE_CHECKING

import click

from oci_hook.cli import output
from oci_hook.config import flat_yaml, keys
from oci_hook.config import settings as node_settings
from oci_hook.config.settings import Settings
from oci_hook.core.layout import SETTINGS_YAML
from oci_hook.errors import refuse
from oci_hook.install import settings_check, settings_edit
from oci_hook.install.settings_template import default_settings_yaml

if TYPE_CHECKING:
    from oci_hook.config.flat_yaml import Value


@click.group()
def settings() -> None:
    """Check, show or change the settings of an install."""


@settings.command()
@output.answers
def check(prefix: str) -> output.Report:
    """Say whether settings.yaml is valid, with the line of each problem; write nothing.

    Looks at more than a container's start does: the programs, the owners of paths, the agent's settings.
    """
    said = settings_check.check(prefix)
    node_settings.load(prefix)  # raises where the state directory is not the one in use
    return output.Report({"settings": as_data(said)}, [f"{file(prefix)} is valid"])


@settings.command()
@output.answers
def show(prefix: str) -> output.Report:
    """Print every setting with its value, as lines of settings.yaml; a comment marks the defaults.

    What the cluster says about this node, in etc/cluster.yaml, counts before settings.yaml, and is marked too.
    """
    said = node_settings.load(prefix)
    data = node_settings.read(prefix)
    values = {key: value for _, key, value, _ in flat_yaml.lines(data)}
    text = default_settings_yaml(mode=said.mode, runtime=said.runtime, python=said.python).encode()
    defaults = {key: value for _, key, value, _ in flat_yaml.lines(text)}
    of_cluster = node_settings.of_cluster(prefix) if said.cluster != node_settings.OFF else b""
    clusters = {key: value for _, key, value, _ in flat_yaml.lines(of_cluster) if key}
    lines = []
    for key in keys.READERS:
        comment = "  # of the cluster" if key in clusters else "" if key in values else "  # the default"
        value = clusters.get(key) or values.get(key) or defaults[key]
        if key in keys.PROFILES[said.rules.profile]:
            value, comment = str(keys.PROFILES[said.rules.profile][key]), f"  # of the profile {said.rules.profile}"
        elif key == "default_policy" and key not in values and key not in clusters:
            value = said.rules.default_policy
        lines.append(f"{key}: {flat_yaml.quoted(value)}{comment}")
    return output.Report({"settings": as_data(said)}, lines)


@settings.command(name="set")
@click.argument("values", metavar="KEY=VALUE...", nargs=-1, required=True)
@output.answers
def set_(prefix: str, values: tuple[str, ...]) -> output.Report:
    """Change lines of settings.yaml, or add them.

    The other lines and the comments stay as they are. Nothing is written unless all of the file is valid then.
    Containers made from now on obey it; a running agent reads its settings when it starts. Write a list as [a, b].

    `set state_dir=DIR` moves the install to that directory. This is refused while containers hold shares in the old
    one, which is emptied.
    """
    changes = dict(
        map(read_pair, values)
    )  # of a key given twice the last: an image's own settings follow the usual ones
    said = settings_edit.change(prefix, **changes)
    lines = [f"{file(prefix)} says {key}: {flat_yaml.quoted(value)}" for key, value in changes.items()]
    return output.Report({"settings": as_data(said)}, lines)


def read_pair(text: str) -> "tuple[str, Value]":
    """(key, value) of KEY=VALUE, a list as a list. Raises SettingsError GH-501 for a key that is not a setting."""
    key, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"{text[:60]!r}: write KEY=VALUE")
    if key not in keys.READERS:
        raise refuse("GH-501", f"{key[:60]!r} is not a setting; {keys.suggest(key)}")
    try:
        found = flat_yaml.split_line(f"{key}: {value}") if value.startswith("[") else None
    except ValueError:
        found = None
    return key, found[1] if found else value


def as_data(said: Settings) -> dict[str, object]:
    return {**said.fields(), "rules": said.rules.fields()}


def file(prefix: str) -> str:
    return os.path.join(prefix, SETTINGS_YAML)
