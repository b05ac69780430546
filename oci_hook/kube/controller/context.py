"""The values that every deciding or acting part of the controller shares."""

from collections.abc import Callable
from typing import NamedTuple

from oci_hook.kube.controller.api.client import Client
from oci_hook.kube.placing.cluster_state import ClusterState


class Context(NamedTuple):
    """enabled: namespaces whose pods get GPUs; nothing is preempted for other pods. leads: True while we may decide. synced: True
    while the copy is complete. now: seconds of a monotonic clock."""

    client: Client
    state: ClusterState
    enabled: set[str]
    leads: Callable[[], bool]
    synced: Callable[[], bool]
    now: Callable[[], float]
