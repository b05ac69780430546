"""Simulates the API server's lists of nodes and pods, as large as real ones: `_cluster_pages NODES PODS` prints its address and the
lists' size in MB."""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

from benchmarks import _cluster_objects
from oci_hook.core import decision as decisions
from oci_hook.core.decision import DecidedShare, DecidedTerms, Decision
from oci_hook.kube.formats import names
from oci_hook.kube.formats.signing import Signer

PAGE = 500
SIGNER = Signer({1: b"\x01" * 32})
GPUS, MEMORY = 8, 81559
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "controller": True}
FIELDS = ("image", "imagePullPolicy", "name", "resources", "terminationMessagePath", "terminationMessagePolicy", "env")


def managed(count: int) -> list:
    """The API server's record of each writer (managedFields): a third of a pod's size."""
    fields = {
        "f:metadata": {"f:labels": {".": {}, "f:app": {}}, "f:ownerReferences": {".": {}}},
        "f:spec": {"f:containers": {'k:{"name":"main"}': {f"f:{name}": {} for name in FIELDS}}, "f:restartPolicy": {}},
    }
    one = {
        "manager": "kube-controller-manager",
        "operation": "Update",
        "time": "2026-01-01T00:00:00Z",
        "fieldsV1": fields,
    }
    return [one] * count


def node(number: int) -> dict:
    made = _cluster_objects.node(f"node-{number:04}", GPUS, MEMORY)
    made["metadata"] |= {"uid": f"n{number}", "resourceVersion": str(number), "managedFields": managed(3)}
    kinds = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    images = [
        {
            "names": [f"registry.example/image{k}@sha256:{'0' * 64}", f"registry.example/image{k}:1"],
            "sizeBytes": 100_000_000,
        }
        for k in range(30)
    ]
    made["status"] = {
        "conditions": [{"type": t, "status": "False", "message": "kubelet has no such pressure" * 2} for t in kinds],
        "images": images,
        "capacity": {"cpu": "96", "memory": "1Ti", "pods": "110"},
    }
    return made


def pod(number: int, nodes: int) -> dict:
    """Ten on each node, with a signed decision."""
    at, gpu = number % nodes, number // nodes % GPUS
    made = _cluster_objects.pod(f"pod-{number}", 4096, 10)
    meta = made["metadata"]
    place = _gpu(at, gpu)
    share = DecidedShare(place, 4096, 10, 100)
    terms = (("main", DecidedTerms("best-effort", "online")),)
    decided = SIGNER.sign(Decision(meta["uid"], f"node-{at:04}", 1, (("main", (share,)),), terms), 1)
    meta["annotations"][names.ALLOC] = decisions.text(decided)
    meta |= {
        "labels": {"app": f"a{number % 100}", "pod-template-hash": "abcdef"},
        "ownerReferences": [{**OWNER, "uid": f"rs-{number % 100}"}],
        "managedFields": managed(2),
        "resourceVersion": str(number),
    }
    container = made["spec"]["containers"][0]
    container |= {
        "image": "registry.example/app:1",
        "env": [{"name": f"V{k}", "value": "x" * 20} for k in range(8)],
        "resources": {
            "limits": {"cpu": "1", "memory": "1Gi", "gpu-hook.io/gpus": "1", "gpu-hook.io/memory-mib": "4096"}
        },
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
    }
    made["spec"] |= {"nodeName": f"node-{at:04}", "schedulerName": "default-scheduler", "runtimeClassName": "gpu-hook"}
    ready = [{"type": t, "status": "True"} for t in ("Initialized", "Ready", "ContainersReady", "PodScheduled")]
    ran = {"name": "main", "ready": True, "restartCount": 0, "image": made["spec"]["containers"][0]["image"]}
    ran["imageID"] = "sha256:" + "0" * 64
    status = {"phase": "Running", "conditions": ready, "hostIP": "10.0.0.1", "podIP": "10.1.0.1"}
    made["status"] = {
        **status,
        "containerStatuses": [{**ran, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}],
    }
    return made


def namespace(_number: int) -> dict:
    return {"metadata": {"name": "default", "resourceVersion": "1", "labels": {"gpu-hook.io/namespace": "enabled"}}}


_UUIDS: dict[int, list[str]] = {}


def _gpu(number: int, gpu: int) -> str:
    if number not in _UUIDS:
        text = _cluster_objects.node(f"node-{number:04}", GPUS, MEMORY)["metadata"]["annotations"][names.INVENTORY]
        _UUIDS[number] = [row[0] for row in json.loads(text)["gpus"]]
    return _UUIDS[number][gpu]


def pages(count: int, make) -> list[bytes]:
    made = []
    for first in range(0, count, PAGE):
        more = "" if first + PAGE >= count else str(first // PAGE + 1)
        listed = {"metadata": {"resourceVersion": "99999", "continue": more}}
        listed["items"] = [make(number) for number in range(first, min(count, first + PAGE))]
        made.append(json.dumps(listed, separators=(",", ":")).encode())
    return made


def main() -> None:
    nodes, pods = int(sys.argv[1]), int(sys.argv[2])
    lists = {
        "/api/v1/nodes": pages(nodes, node),
        "/api/v1/pods": pages(pods, lambda number: pod(number, nodes)),
        "/api/v1/namespaces": pages(1, namespace),
    }

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            page = lists[asked.path][int(parse_qs(asked.query).get("continue", ["0"])[0])]
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    size = sum(len(page) for listed in lists.values() for page in listed) / 1e6
    print(f"http://127.0.0.1:{server.server_port} {size:.0f}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
