"""Checks that a node of a cluster can verify the decisions of the cluster's controller."""

import json
from collections.abc import Iterator

from oci_hook.config import cluster
from oci_hook.config.settings import DRA, OFF, load
from oci_hook.core.layout import CLUSTER_KEYS
from oci_hook.engines.doctor.finding import FAIL, NOTE, OK, WARN, CheckResult
from oci_hook.install import answer


def check_cluster(prefix: str, option: str) -> Iterator[CheckResult]:
    """No findings if the setting is off. The problems of a GhError are findings."""
    settings = load(prefix)
    mode = settings.cluster
    if mode in (OFF, DRA):
        return
    known = cluster.keys(prefix)
    if known is None:
        what = f"setting cluster is {mode}, and {prefix}/{CLUSTER_KEYS} is missing: "
        why = "no container with a GPU starts" if mode == cluster.REQUIRED else "no decision is verified"
        fix = "systemctl start gpu-hook-agent"
        yield CheckResult("cluster", FAIL if mode == cluster.REQUIRED else WARN, what + why, "GH-606", fix)
    else:
        numbers = ", ".join(str(number) for number, _ in known.keys)
        yield CheckResult("cluster", OK, f"{mode}, node {known.node} with keys {numbers}")
    if not maps_owners(settings.runtime):
        why = f"{settings.runtime} cannot map the owners of mounts, as runc can from 1.2 on"
        yield CheckResult("cluster", NOTE, f"{why}: pods with `hostUsers: false` do not start")


def maps_owners(runtime: str) -> bool:
    """True if this runtime says that it makes idmapped mounts, which containerd needs for user namespaces (OCI
    runtime-spec, features.md)."""
    try:
        return json.loads(answer.ask(runtime, "features").out)["linux"]["mountExtensions"]["idmap"]["enabled"] is True
    except (ValueError, KeyError, TypeError):
        return False
