"""Removes what is ours: annotations, label and sums of the Node, the guard directory, the node's own files."""

import os

from oci_hook.core.layout import CLUSTER_KEYS, CLUSTER_SETTINGS
from oci_hook.errors import refuse
from oci_hook.kube.formats.names import INVENTORY, LEDGER, ROOM
from oci_hook.kube.link.api import FAILURES, JSON_PATCH, MERGE_PATCH, Api, ApiError
from oci_hook.kube.link.kubeconfig import Credential
from oci_hook.kube.link.node_settings import NodeSettings
from oci_hook.kube.link.watcher import words
from oci_hook.kube.reporter import node_patches, views
from oci_hook.kube.reporter.reporter import GUARD


def withdraw(prefix: str, name: str, options: NodeSettings, known: Credential) -> None:
    """Raises ClusterError GH-608 after removing the node's own files."""
    for file in (CLUSTER_KEYS, CLUSTER_SETTINGS):
        try:
            os.unlink(os.path.join(prefix, file))
        except FileNotFoundError:
            pass
    api = Api(known)
    try:
        path = f"/api/v1/nodes/{name}"
        notes, sums = node_patches.withdrawal(views.node(api.get(path)), (INVENTORY, LEDGER), (ROOM,))
        if sums:
            api.call("PATCH", f"{path}/status", sums, JSON_PATCH)
        if notes:
            api.call("PATCH", path, notes, MERGE_PATCH)
    except (ApiError, *FAILURES, LookupError, TypeError, AttributeError) as e:
        raise refuse("GH-608", f"node {name[:60]} keeps its annotations and sums: {words(e)}; try again") from None
    finally:
        api.close()
    try:
        os.rmdir(f"{options.device_plugins}/{GUARD}")
    except OSError:
        pass
