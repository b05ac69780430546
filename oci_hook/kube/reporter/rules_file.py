"""Keeps PREFIX/etc/cluster.yaml equal to the cluster's settings, unless these are invalid beside settings.yaml."""

import os

from oci_hook.config import flat_yaml
from oci_hook.config import settings as node_settings
from oci_hook.config.keys import OF_CLUSTER
from oci_hook.core.layout import CLUSTER_SETTINGS
from oci_hook.install.files import write
from oci_hook.kube.reporter import cluster_settings


def keep(prefix: str, lines: cluster_settings.Lines) -> str:
    """Writes the file; returns the problem, "" for none. Raises GhError if settings.yaml or the file cannot be read or written."""
    path = os.path.join(prefix, CLUSTER_SETTINGS)
    text = cluster_settings.text(lines)
    if text == now(path):
        return ""
    reading = node_settings.parse(prefix, node_settings.read(prefix))
    added = node_settings.parse(prefix, text.encode(), CLUSTER_SETTINGS, OF_CLUSTER)
    reading.values.update(added.values)
    before = len(reading.problems)
    reading.problems += added.problems
    node_settings.interpret(prefix, reading)
    if len(reading.problems) > before:
        return f"the cluster's settings conflict with settings.yaml: {reading.problems[-1].message}"
    if text:
        write(path, text)
    else:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
    return ""


def now(path: str) -> str | None:
    """The file's text, "" for no file; None if it cannot be read as ours, and so must be replaced."""
    try:
        return node_settings.read_own(path, flat_yaml.MAX_SIZE + 1).decode()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError):
        return None
