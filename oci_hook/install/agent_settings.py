"""The `agent.` settings: their readers. A container's start checks only that these names are known."""

import ipaddress
import re
from typing import TYPE_CHECKING, Any

from oci_hook.config import settings as node_settings
from oci_hook.config.keys import memory, one_of, path, whole
from oci_hook.config.settings import Reading
from oci_hook.core.units import integer, show
from oci_hook.errors import SettingsError

if TYPE_CHECKING:
    from oci_hook.config.flat_yaml import Value
    from oci_hook.config.keys import Reader

SECTION = "agent."


def address(value: "Value") -> str:
    """HOST:PORT or [HOST]:PORT with a number for a host; "none"."""
    host, _, port = str(value).rpartition(":")
    try:
        if value != "none":
            ipaddress.ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
            integer(port, 0, 65535)
    except ValueError:
        raise ValueError('is not an address like 127.0.0.1:9409, "[::1]:9409" or none') from None
    return str(value)


def path_or_none(value: "Value") -> str:
    return "none" if value == "none" else path(value)


def textfile(value: "Value") -> str:
    """A file that node_exporter's textfile collector reads: it takes no other names."""
    file = path_or_none(value)
    if file != "none" and not file.endswith(".prom"):
        raise ValueError("is no file of node_exporter's textfile collector: its name ends in .prom")
    return file


def group(value: "Value") -> str:
    """The name of a group of users (useradd(8)); "none"."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", value):
        raise ValueError("is no name of a group")
    return value


def name(value: "Value") -> str:
    """The name of an object of Kubernetes (RFC 1123 subdomain)."""
    if not isinstance(value, str) or not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", value):
        raise ValueError("is no name of a Kubernetes object: lower-case letters, digits, - and .")
    return value


# By the name in agent/options.py or kube/link/node_settings.py, where the defaults are.
AGENT: "dict[str, Reader]" = {
    "address": address,
    "token_file": path_or_none,
    "textfile": textfile,
    "group": group,
    "policy": one_of("protect", "report", "freeze", "kill"),
    "tolerance": memory(0),
    "compute_tolerance": whole(1, 100),
    "interval": whole(1, 60),
    "kubeconfig": path_or_none,
    "node": name,
    "namespace": name,
    "controller_token": path_or_none,
    "device_plugins": path,
}


def load(prefix: str) -> dict[str, Any]:
    """The agent's settings that settings.yaml has, by their names in AGENT. Raises SettingsError GH-501 with every
    problem of the file."""
    reading = node_settings.parse(prefix, node_settings.read(prefix))
    node_settings.interpret(prefix, reading)
    found = check(reading)
    if reading.problems:
        raise SettingsError(*reading.problems)
    return found


def check(reading: Reading) -> dict[str, Any]:
    """The agent's settings in a file that is read already; adds the problems of its `agent.` lines."""
    found = {}
    for name, read in AGENT.items():
        key = SECTION + name
        if key in reading.values:
            try:
                found[name] = read(reading.values[key])
            except ValueError as e:
                value = reading.values[key]
                shown = f"{key}: {show(value)}" if isinstance(value, str) else key
                reading.complain(f"{shown} {e}", reading.lines[key])
    return found
