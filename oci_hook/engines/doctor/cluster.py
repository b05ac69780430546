"""Whether a node of a cluster can verify what the cluster's controller decides."""

from collections.abc import Iterator

from oci_hook.config import cluster
from oci_hook.config.settings import DRA, OFF, load
from oci_hook.core.layout import CLUSTER_KEYS
from oci_hook.engines.doctor.finding import FAIL, OK, WARN, CheckResult


def check_cluster(prefix: str, option: str) -> Iterator[CheckResult]:
    """Nothing where the setting is off. GhError: its problems are the findings."""
    mode = load(prefix).cluster
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
