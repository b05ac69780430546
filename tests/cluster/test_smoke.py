"""scripts/cluster smoke, and a node's life: what the other tests of this folder build on."""

import json
import signal

import pytest

from testbed.cluster import lab


def test_shares_a_refusal_and_a_killed_kubelet(cluster: lab.Cluster) -> None:
    from testbed.cluster import smoke

    said: list[str] = []
    smoke.run(cluster, said.append)
    assert said[-1] == "the shares are back" and "nothing died with the kubelet" in said


def test_a_pod_starts_again_on_a_node_that_lost_its_power(cluster: lab.Cluster, namespace: str) -> None:
    """The same GPUs by UUID, and the share booked once."""
    node = cluster.node(1)
    gpus = json.loads(node.gpu_hook("gpus", "--json").stdout)["gpus"]
    one = lab.pod("one", {"main": "gpu-probe info; sleep 100000"}, memory="2Gi")
    one["spec"]["nodeName"] = node.name
    cluster.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(one))

    def running_again(restarts: int) -> bool:
        path = "{.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].state.running.startedAt}"
        count, _, since = cluster.kubectl("-n", namespace, "get", "pod", "one", "-o", f"jsonpath={path}").partition(" ")
        return int(count or -1) >= restarts and bool(since)

    lab.wait(120, "the pod runs", lambda: running_again(0))
    node.off()
    assert not node.machine.pid
    node.on(cluster.images)
    lab.wait(180, "the pod runs again", lambda: running_again(1))
    assert [g["uuid"] for g in json.loads(node.gpu_hook("gpus", "--json").stdout)["gpus"]] == [g["uuid"] for g in gpus]
    lab.wait(60, "one grant", lambda: lab.holders(cluster, node.name) == [f"{namespace}/one/main"])
    lab.wait(60, "the node is Ready", node.ready)


def test_containers_outlive_containerd(cluster: lab.Cluster, namespace: str) -> None:
    node = cluster.node(2)
    one = lab.pod("one", {"main": "sleep 100000"}, memory="2Gi")
    one["spec"]["nodeName"] = node.name
    cluster.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(one))
    started = "jsonpath={.status.containerStatuses[0].state.running.startedAt}"
    lab.wait(120, "it runs", lambda: cluster.kubectl("-n", namespace, "get", "pod", "one", "-o", started))
    before = cluster.kubectl("-n", namespace, "get", "pod", "one", "-o", started)
    node.stop("containerd", signal.SIGKILL)
    node.start("containerd")
    lab.wait(60, "exec works", lambda: cluster.kubectl("-n", namespace, "exec", "one", "--", "echo", "x") == "x\n")
    lab.wait(60, "the node is Ready", node.ready)
    assert cluster.kubectl("-n", namespace, "get", "pod", "one", "-o", started) == before
    assert lab.holders(cluster, node.name) == [f"{namespace}/one/main"]


def test_a_share_in_a_user_namespace(cluster: lab.Cluster, namespace: str) -> None:
    """The pod's root is a plain user of the node; its first process and one of `kubectl exec` have the share."""
    if lab.programs.minor() < 36:
        pytest.skip("containerd 1.6 and runc 1.1 of this cluster have no user namespaces for pods")
    look = "cat /proc/self/uid_map; gpu-probe info; gpu-probe fill 256; sleep 100000"
    one = lab.pod("one", {"main": look}, memory="2Gi")
    one["spec"]["hostUsers"] = False
    cluster.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(one))
    lab.wait(120, "it says what it sees", lambda: "fill:" in cluster.kubectl("-n", namespace, "logs", "one"))
    said = cluster.kubectl("-n", namespace, "logs", "one")
    first, outside, count = (int(word) for word in said.split()[:3])
    assert (first, count) == (0, 65536) and outside >= 65536
    assert " 2048 MiB total" in said and "then CUDA_ERROR_OUT_OF_MEMORY" in said
    again = cluster.kubectl("-n", namespace, "exec", "one", "--", "gpu-probe", "info")
    assert " 2048 MiB total" in again
    node = cluster.kubectl("-n", namespace, "get", "pod", "one", "-o", "jsonpath={.spec.nodeName}")
    assert lab.holders(cluster, node) == [f"{namespace}/one/main"]


def test_services_reach_their_pods_from_every_node(cluster: lab.Cluster, namespace: str) -> None:
    """Two pods behind one address; the node without them reaches it too, and after one has gone the other still answers."""
    say = "mkdir -p /tmp/w; hostname >/tmp/w/name; while true; do nc -l -p 8080 -e sh -c 'cat /tmp/w/name'; done"
    for i in (1, 2):
        web = lab.pod(f"web{i}", {"main": say})
        web["metadata"]["labels"] = {"app": "web"}
        web["metadata"].pop("annotations")
        web["spec"].pop("runtimeClassName")
        cluster.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(web))
    service = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}
    document = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": service}
    cluster.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(document))
    address = cluster.kubectl("-n", namespace, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")

    def answers() -> set[str]:
        ask = ["timeout", "5", "bash", "-c", f"exec 3<>/dev/tcp/{address}/80; head -n 1 <&3"]
        return {node.machine.run(*ask, check=False).stdout.strip() for node in cluster.nodes for _ in range(2)}

    lab.wait(120, "both answer", lambda: {"web1", "web2"} <= answers())
    cluster.kubectl("-n", namespace, "delete", "pod", "web1", "--grace-period=1")
    lab.wait(60, "web2 alone answers", lambda: answers() == {"web2"})
