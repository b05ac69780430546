"""A pod of two containers with shares, a refusal, a killed kubelet, shares given back: on a cluster that is up."""

import json
import signal
from collections.abc import Callable
from typing import Any

from testbed.cluster.cluster import Cluster
from testbed.cluster.images import PROBE
from testbed.cluster.machine import wait
from testbed.cluster.programs import CannotRun

LOOK = "gpu-probe info; gpu-probe fill 256; sleep 100000"


def pod(name: str, containers: dict[str, str], **annotations: str) -> dict[str, Any]:
    """A pod of our RuntimeClass: containers by name with their shell commands; annotations: gpu-hook.io/ is added."""
    each = [{"name": n, "image": PROBE, "command": ["sh", "-c", command]} for n, command in containers.items()]
    metadata = {"name": name, "annotations": {f"gpu-hook.io/{key}": value for key, value in annotations.items()}}
    spec = {
        "runtimeClassName": "gpu-hook",
        "nodeSelector": {"gpu-hook.io/node": "true"},
        "terminationGracePeriodSeconds": 1,
        "containers": each,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def holders(cluster: Cluster, node: str) -> list[str]:
    """Holders of grants on a node: NAMESPACE/POD/CONTAINER."""
    listed = json.loads(cluster.node(node).gpu_hook("ps", "--json").stdout)["containers"]
    return sorted(f"{grant['namespace']}/{grant['pod']}/{grant['name']}" for grant in listed)


def run(cluster: Cluster, say: Callable[[str], object] = print) -> None:
    def held(condition: object, what: str) -> None:
        if not condition:
            raise CannotRun(f"does not hold: {what}")
        say(what)

    def log(container: str) -> str:
        return cluster.kubectl("logs", "two", "-c", container)

    two = pod("two", {"server": LOOK, "trainer": LOOK}, memory="4Gi", compute="30", **{"memory.trainer": "6Gi"})
    cluster.kubectl("apply", "-f", "-", input=json.dumps(two))
    wait(120, "both containers say what they see", lambda: "fill:" in log("server") and "fill:" in log("trainer"))
    held(
        " 6144 MiB total" in log("trainer"),
        "trainer sees 6144 MiB, though the pod says 4Gi: the container's own key counts",
    )
    held("then CUDA_ERROR_OUT_OF_MEMORY" in log("server"), "server cannot allocate more than its share")
    node = cluster.kubectl("get", "pod", "two", "-o", "jsonpath={.spec.nodeName}")
    mine = [key for key in holders(cluster, node) if key.startswith("default/two/")]
    held(len(mine) == 2, f"{node} has a grant for each: {', '.join(mine)}")

    cluster.kubectl("apply", "-f", "-", input=json.dumps(pod("over", {"big": "sleep 100000"}, memory="1000Gi")))
    events = ["get", "events", "--field-selector=involvedObject.name=over", "-o", "jsonpath={.items[*].message}"]
    wait(120, "the refusal is an event of the pod", lambda: "GH-201" in cluster.kubectl(*events))
    say("a pod that asks for too much has an event with GH-201")

    kubelet = cluster.node(node)
    kubelet.stop("kubelet", signal.SIGKILL)
    kubelet.start("kubelet")
    wait(
        120,
        f"{node} answers its kubelet's API again",
        lambda: cluster.kubectl("exec", "two", "-c", "server", "--", "true") == "",
    )
    wait(60, f"{node} is Ready", kubelet.ready)
    restarts = cluster.kubectl("get", "pod", "two", "-o", "jsonpath={.status.containerStatuses[*].restartCount}")
    held(
        restarts == "0 0" and [k for k in holders(cluster, node) if k in mine] == mine, "nothing died with the kubelet"
    )

    cluster.kubectl("delete", "pod", "two", "over", "--wait=false")
    wait(120, "the shares are back", lambda: not [k for k in holders(cluster, node) if k in mine])
    say("the shares are back")
