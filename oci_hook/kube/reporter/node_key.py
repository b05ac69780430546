"""Gets the node's keys from the controller, and writes them to PREFIX/etc/cluster.json for the runtime."""

import http.client
import json
import os
from typing import Any

from oci_hook.config import cluster
from oci_hook.config.settings import read_own
from oci_hook.core.decided import NodeKeys
from oci_hook.core.layout import CLUSTER_KEYS
from oci_hook.install.files import write
from oci_hook.kube.formats.names import CONTROLLER, NODE_KEY
from oci_hook.kube.link.api import SECONDS, Api, ApiConnection, ApiError
from oci_hook.kube.link.kubeconfig import trusting

TOKEN = "/var/run/secrets/gpu-hook/token"
MAX_ANSWER = 64 << 10


def address(api: Api, namespace: str) -> tuple[str, int]:
    """The controller's address: its Service's. Raises ApiError, api.FAILURES."""
    spec = api.get(f"/api/v1/namespaces/{namespace}/services/{CONTROLLER}").get("spec") or {}
    ports = spec.get("ports") or ()
    if spec.get("clusterIP") in (None, "", "None") or not ports:
        raise ApiError(503, f"the Service {CONTROLLER} has no cluster IP with a port")
    return str(spec["clusterIP"]), int(ports[0]["port"])


def fetch(where: tuple[str, int], namespace: str, ca: str, token: str) -> bytes:
    """The controller's answer. Raises ApiError, OSError, ValueError, http.client's."""
    context = trusting(ca)
    connection = ApiConnection(*where, context, SECONDS, f"{CONTROLLER}.{namespace}.svc")
    try:
        connection.request(
            "POST", NODE_KEY, b"{}", {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        )
        response: http.client.HTTPResponse = connection.getresponse()
        data = response.read(MAX_ANSWER)
    finally:
        connection.close()
    if response.status != 200:
        raise ApiError(response.status, f"the controller: {data[:120].decode('ascii', 'replace').strip()}")
    return data


def accept(data: bytes, node: str) -> str:
    """The text of cluster.json. Raises ValueError for anything but keys of this node."""
    found = cluster.parsed(data)
    if found.node != node:
        raise ValueError(f"the controller answered with the keys of node {found.node[:60]}, this is {node}")
    said: dict[str, Any] = {"node": node, "keys": {str(number): key.hex() for number, key in found.keys}}
    return json.dumps(said) + "\n"


def keep(prefix: str, text: str) -> bool:
    """Writes the file; returns whether it changed. Raises SettingsError GH-504."""
    path = os.path.join(prefix, CLUSTER_KEYS)
    try:
        if read_own(path, cluster.MAX_KEYS + 1, secret=True) == text.encode():
            return False
    except (OSError, ValueError):
        pass
    write(path, text, mode=0o600)
    return True


def newest(known: NodeKeys | None) -> int:
    return max((number for number, _ in known.keys), default=0) if known else 0
