"""`gpu-hook doctor --cluster`: what of gpu-hook is in the cluster, and what an upgrade of Kubernetes or a person took away."""

import base64
import binascii
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

from oci_hook.cli import output
from oci_hook.cli.cluster_objects import kinds
from oci_hook.core import words
from oci_hook.engines.doctor import FAIL, NOTE, OK, WARN, CheckResult
from oci_hook.errors import GhError
from oci_hook.kube.formats.claim_words import DRIVER, GPU_CLASS, GROUP, SHARE_CLASS
from oci_hook.kube.formats.names import (
    CA_CONFIG_MAP,
    CONTROLLER,
    ENABLED,
    INVENTORY,
    NAMESPACE_LABEL,
    NODE_LABEL,
    RUNTIME_CLASS,
)
from oci_hook.kube.formats.node_info import read_inventory
from oci_hook.kube.manifests import quotas
from oci_hook.kube.pod.translate_pod import is_unread

NAMESPACE = "gpu-hook"
WEBHOOKS = ("pods.gpu-hook.io", "status.gpu-hook.io", "bindings.gpu-hook.io")  # packaging/kubernetes/webhooks.yaml
APPLY, APPLY_CLAIMS = "kubectl apply -k packaging/kubernetes", "kubectl apply -k packaging/kubernetes/dra"
LEADS = 60  # seconds since the leader's last renewal after which nobody leads
SOON = 30 * 86400  # seconds
BY_CLAIMS = "claims"  # of NODE_LABEL
MOST_NAMES = 5  # of nodes in a line
LISTS = {  # what is read -> its path
    "webhooks": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "deployments": f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments",
    "leases": f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases",
    "configmaps": f"/api/v1/namespaces/{NAMESPACE}/configmaps",
    "runtimeclasses": "/apis/node.k8s.io/v1/runtimeclasses",
    "namespaces": "/api/v1/namespaces",
    "quotas": "/api/v1/resourcequotas",
    "limitranges": "/api/v1/limitranges",
    "nodes": "/api/v1/nodes",
    "schedulers": "/api/v1/namespaces/kube-system/pods",
    "deviceclasses": f"/apis/{GROUP}/deviceclasses",
    "resourceslices": f"/apis/{GROUP}/resourceslices",
}
Found = dict[str, "list[dict[str, Any]] | GhError"]  # GhError: it cannot be read


def findings(kubeconfig: str | None) -> list[CheckResult]:
    """Raises ClusterError GH-608 where the cluster's nodes cannot be read."""
    return examine(kinds(kubeconfig, LISTS), time.time())


def examine(found: Found, now: float) -> list[CheckResult]:
    """now: Unix time. Raises ClusterError GH-608 where the nodes cannot be read."""
    nodes = found["nodes"]
    if isinstance(nodes, GhError):
        raise nodes
    labels = {node["metadata"]["name"]: (node["metadata"].get("labels") or {}).get(NODE_LABEL, "") for node in nodes}
    by_claims = sorted(name for name, label in labels.items() if label == BY_CLAIMS)
    by_decision = [node for node in nodes if labels[node["metadata"]["name"]] == "true"]
    checks: list[Callable[[], Iterator[CheckResult]]] = [lambda: versions(nodes)]
    if by_decision or not by_claims:
        checks += [
            lambda: controller(found, now),
            lambda: webhooks(found),
            lambda: authority(found, now),
            lambda: runtime_class(found),
            lambda: schedulers(found),
            lambda: namespaces(found),
            lambda: bounds(found),
            lambda: reports(found, by_decision),
        ]
    if by_claims:
        checks.append(lambda: claims(found, by_claims))
    results: list[CheckResult] = []
    for check in checks:
        try:
            results += check()
        except GhError as e:
            results += [CheckResult("rights", WARN, p.message, p.code) for p in e.problems]
        except (LookupError, TypeError, ValueError, AttributeError) as e:
            results.append(
                CheckResult("objects", WARN, f"an object has an unexpected form: {type(e).__name__} {e}", "GH-608")
            )
    return results


def versions(nodes: list[dict[str, Any]]) -> Iterator[CheckResult]:
    said = sorted({node["status"]["nodeInfo"]["kubeletVersion"] for node in nodes})
    yield CheckResult("kubernetes", OK, f"{output.count(len(nodes), 'node')}, kubelets {', '.join(said)}")


def controller(found: Found, now: float) -> Iterator[CheckResult]:
    made = _named(found, "deployments", CONTROLLER)
    if made is None:
        yield CheckResult("controller", FAIL, f"there is no Deployment {NAMESPACE}/{CONTROLLER}", "GH-608", APPLY)
        return
    ready, wanted = (made.get("status") or {}).get("readyReplicas") or 0, made["spec"]["replicas"]
    lease = _named(found, "leases", CONTROLLER)
    renewed = output.unix_time((lease or {}).get("spec", {}).get("renewTime") or "") or 0.0
    leads = now - renewed < LEADS
    fix = f"kubectl -n {NAMESPACE} describe pods; kubectl -n {NAMESPACE} logs deployment/{CONTROLLER}"
    if not ready or not leads:
        why = "none is ready" if not ready else f"none leads for {int(now - renewed)} s" if renewed else "none leads"
        yield CheckResult(
            "controller", FAIL, f"of {wanted} replicas {why}: opted-in namespaces get no pods", "GH-608", fix
        )
    elif ready < wanted:
        yield CheckResult("controller", WARN, f"{ready} of {wanted} replicas are ready", "GH-608", fix)
    else:
        yield CheckResult(
            "controller",
            OK,
            f"{ready} of {wanted} replicas ready, {lease['spec']['holderIdentity'] if lease else ''} leads",
        )


def webhooks(found: Found) -> Iterator[CheckResult]:
    """Without one of them pods get no decision, or anybody may change it."""
    configuration = _named(found, "webhooks", NAMESPACE)
    there = {hook["name"]: hook for hook in (configuration or {}).get("webhooks") or ()}
    missing = [name for name in WEBHOOKS if name not in there]
    if missing:
        yield CheckResult("webhooks", FAIL, f"missing: {', '.join(missing)}: pods get no decision", "GH-608", APPLY)
        return
    bundle = _bundle(found)
    fix = f"kubectl -n {NAMESPACE} rollout restart deployment/{CONTROLLER}"
    for name in WEBHOOKS:
        client = there[name].get("clientConfig") or {}
        path = (client.get("service") or {}).get("path") or (client.get("url") or "").partition("://")[2].partition(
            "/"
        )[2]
        if bundle and _decoded(client.get("caBundle") or "") != bundle:
            yield CheckResult(
                "webhooks", FAIL, f"{name} has another certificate authority than the controller", "GH-608", fix
            )
            return
        if len(path.strip("/").split("/")) < 2:
            yield CheckResult(
                "webhooks", FAIL, f"the path of {name} has no token: the controller refuses its calls", "GH-608", fix
            )
            return
    yield CheckResult("webhooks", OK, f"{len(WEBHOOKS)} with the controller's authority and token")


def authority(found: Found, now: float) -> Iterator[CheckResult]:
    bundle = _bundle(found)
    restart = f"kubectl -n {NAMESPACE} rollout restart deployment/{CONTROLLER}"
    if not bundle:
        what = f"the ConfigMap {NAMESPACE}/{CA_CONFIG_MAP} has no ca.crt: nodes get no keys"
        yield CheckResult("authority", FAIL, what, "GH-608", restart)
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=bundle)
    except (ssl.SSLError, ValueError) as e:
        fix = f"kubectl -n {NAMESPACE} delete configmap {CA_CONFIG_MAP}"
        yield CheckResult("authority", FAIL, f"ca.crt of {CA_CONFIG_MAP} is no certificate: {e}", "GH-608", fix)
        return
    ends = [ssl.cert_time_to_seconds(str(one["notAfter"])) for one in context.get_ca_certs()]
    last = max(ends, default=0.0)
    day = time.strftime("%Y-%m-%d", time.gmtime(last))
    if last - now < SOON:
        yield CheckResult("authority", WARN, f"the certificate authority ends {day}", "GH-608", restart)
    elif len(ends) > 1:
        what = f"{len(ends)} authorities: give a scheduler that has the extender the new bundle of {CA_CONFIG_MAP}"
        yield CheckResult("authority", NOTE, f"{what}; the last one ends {day}")
    else:
        yield CheckResult("authority", OK, f"until {day}")


def runtime_class(found: Found) -> Iterator[CheckResult]:
    made = _named(found, "runtimeclasses", RUNTIME_CLASS)
    if made is None or made.get("handler") != RUNTIME_CLASS:
        what = "is missing" if made is None else f"has the handler {str(made.get('handler'))[:60]}"
        yield CheckResult(
            "runtimeclass", FAIL, f"RuntimeClass {RUNTIME_CLASS} {what}: no pod with a share starts", "GH-608", APPLY
        )
    else:
        yield CheckResult("runtimeclass", OK, RUNTIME_CLASS)


def schedulers(found: Found) -> Iterator[CheckResult]:
    """Of those that are pods of the cluster. Their configuration is a file of their node, which the API server does not show."""
    for pod in _items(found, "schedulers"):
        if (pod["metadata"].get("labels") or {}).get("component") != "kube-scheduler":
            continue
        words = [word for one in pod["spec"]["containers"] for word in (*one.get("command", ()), *one.get("args", ()))]
        name = pod["metadata"]["name"]
        if any(word == "--config" or word.startswith("--config=") for word in words):
            yield CheckResult("scheduler", OK, f"{name} has a configuration of its own")
        else:
            what = f"{name} has no --config, so no extender: Bindings to full GPUs are denied and tried again"
            yield CheckResult(
                "scheduler", NOTE, f"{what}; an upgrade of Kubernetes may have reset it (docs/guide/kubernetes.md)"
            )


def namespaces(found: Found) -> Iterator[CheckResult]:
    opted = _opted(found)
    if opted:
        yield CheckResult("namespaces", OK, f"{len(opted)} opted in: {_names(sorted(opted))}")
    else:
        fix = f"kubectl label namespace NAMESPACE {NAMESPACE_LABEL}={ENABLED}"
        yield CheckResult("namespaces", NOTE, "none has opted in", "", fix)


def bounds(found: Found) -> Iterator[CheckResult]:
    """Quotas and limits of opted-in namespaces on resources that the create webhook takes out of pods."""
    opted = set(_opted(found))
    fix = "gpu-hook translate FILE.yaml"
    for kind, list_of in (("ResourceQuota", "quotas"), ("LimitRange", "limitranges")):
        for one in _items(found, list_of):
            space, spec = one["metadata"].get("namespace") or "default", one.get("spec") or {}
            parts = [spec.get("hard")] if kind == "ResourceQuota" else []
            for item in spec.get("limits") or () if kind == "LimitRange" else ():
                parts += [item.get(part) for part in (*quotas.BOUNDS, *quotas.DEFAULTS)]
            theirs = [key for part in parts for key in part or () if is_unread(quotas.split(key, kind)[1])]
            if space in opted and theirs:
                does = "counts no pod" if kind == "ResourceQuota" else "refuses pods, or gives them what no node has"
                which = f"{kind} {space}/{one['metadata']['name']}"
                what = f"{which} {does}: {theirs[0][:80]} is in none after gpu-hook's webhook"
                yield CheckResult("quotas", WARN, what, "GH-108", fix)


def reports(found: Found, nodes: list[dict[str, Any]]) -> Iterator[CheckResult]:
    """What the nodes with the label say of themselves."""
    if not nodes:
        fix = f"kubectl label nodes NODE {NODE_LABEL}=true"
        yield CheckResult("nodes", WARN, f"no node has the label {NODE_LABEL}=true", "GH-608", fix)
        return
    generation = ((_named(found, "configmaps", CA_CONFIG_MAP) or {}).get("data") or {}).get("generation", "0")
    silent, keyless, gpus = [], [], 0
    for node in nodes:
        name, text = node["metadata"]["name"], (node["metadata"].get("annotations") or {}).get(INVENTORY)
        if not text:
            silent.append(name)
            continue
        said = read_inventory(text)
        gpus += len(said.inventory.gpus)
        if said.key + 1 < int(generation):  # the newest may be on its way
            keyless.append(name)
    logs = f"kubectl -n {NAMESPACE} logs daemonset/gpu-hook-node -c agent"
    if silent:
        yield CheckResult(
            "nodes", FAIL, f"{len(silent)} of {len(nodes)} report no GPUs: {_names(silent)}", "GH-608", logs
        )
    if keyless:
        what = f"{len(keyless)} of {len(nodes)} have no valid keys, and verify no decision: {_names(keyless)}"
        yield CheckResult("nodes", FAIL, what, "GH-606", logs)
    if not silent and not keyless:
        yield CheckResult("nodes", OK, f"{len(nodes)} report {output.count(gpus, 'GPU')} and have keys")


def claims(found: Found, nodes: list[str]) -> Iterator[CheckResult]:
    """nodes: those with shares by ResourceClaims."""
    if not _items(found, "deviceclasses") and not _items(found, "resourceslices"):
        what = f"{_names(nodes)} have shares by claims, and the API server has no {GROUP} with DeviceClasses: Kubernetes 1.36 or newer"
        yield CheckResult("claims", FAIL, what, "GH-608", APPLY_CLAIMS)
        return
    missing = [name for name in (SHARE_CLASS, GPU_CLASS) if _named(found, "deviceclasses", name) is None]
    if missing:
        yield CheckResult("claims", FAIL, f"DeviceClasses are missing: {', '.join(missing)}", "GH-608", APPLY_CLAIMS)
    published = {
        one["spec"].get("nodeName") for one in _items(found, "resourceslices") if one["spec"].get("driver") == DRIVER
    }
    silent = [name for name in nodes if name not in published]
    if silent:
        fix = "kubectl -n gpu-hook-claims logs daemonset/gpu-hook-claims -c agent"
        what = f"{len(silent)} of {len(nodes)} nodes with claims have no ResourceSlice: {_names(silent)}"
        yield CheckResult("claims", FAIL, what, "GH-608", fix)
    if not missing and not silent:
        yield CheckResult("claims", OK, f"{output.count(len(nodes), 'node')} with ResourceSlices")


def _opted(found: Found) -> list[str]:
    return [
        one["metadata"]["name"]
        for one in _items(found, "namespaces")
        if (one["metadata"].get("labels") or {}).get(NAMESPACE_LABEL) == ENABLED
    ]


def _items(found: Found, kind: str) -> list[dict[str, Any]]:
    """Raises ClusterError GH-608."""
    listed = found[kind]
    if isinstance(listed, GhError):
        raise listed
    return listed


def _named(found: Found, kind: str, name: str) -> dict[str, Any] | None:
    return next((one for one in _items(found, kind) if one["metadata"]["name"] == name), None)


def _bundle(found: Found) -> str:
    return str(((_named(found, "configmaps", CA_CONFIG_MAP) or {}).get("data") or {}).get("ca.crt") or "")


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text).decode()
    except (binascii.Error, ValueError):
        return ""


def _names(names: list[str]) -> str:
    return words.first(names, MOST_NAMES)
