"""The Helm chart: the manifests of packaging/kubernetes and of packaging/kubernetes/dra with values in place of what users change.
With the defaults it renders to the first."""

import gzip
import io
import re
import tarfile
from pathlib import Path

import yaml
from payload import ROOT, VERSION, epoch

BASE = ROOT / "packaging/kubernetes"
CLAIMS = "dra/"  # the folder of shares by claims
SWITCHES = {"annotations": "true", "claims": "false"}  # of a folder's manifests: those of BASE, those of CLAIMS
ACCOUNT = BASE.with_name("kubernetes-account")  # what the value "account" changes
OPERATOR = "gpuOperator"  # the value: NVIDIA's GPU Operator, 26.7 or newer, has the driver
# Its label, which it takes from "true" before it unloads the driver; then it waits for the pods that select it.
CLIENT = '(ternary (dict "nvidia.com/gpu.deploy.client" "true") (dict) .Values.gpuOperator)'
SELECTORS = {"daemonset.yaml": ".Values.nodeSelector", "dra/daemonset.yaml": '(dict "gpu-hook.io/node" "claims")'}
# "settings" stand behind the chart's own, since the last of a key counts.
# name of the value: (the files, the text there around {}, the default as it stands there)
VALUES = {
    "settings": (
        "daemonset.yaml dra/daemonset.yaml",
        "{}\n          securityContext: {{privileged: true}}      # it changes",
        "",
    ),
    "installImage": (
        "daemonset.yaml dra/daemonset.yaml",
        "image: {}",
        f"your-registry.invalid/gpu-hook/install:{VERSION}",
    ),
    "engines": ("daemonset.yaml", "{{name: ENGINES, value: {}}}", "containerd"),
    "keep": ("daemonset.yaml dra/daemonset.yaml", '{{name: KEEP, value: "{}"}}', "no"),
    "cluster": ("daemonset.yaml", "cluster={}", "local"),
    "kubeconfig": ("daemonset.yaml dra/daemonset.yaml", "agent.kubeconfig={}", "/etc/kubernetes/kubelet.conf"),
    "controllerImage": ("controller.yaml", "image: {}", f"your-registry.invalid/gpu-hook/controller:{VERSION}"),
    "replicas": ("controller.yaml", "replicas: {}", "2"),
    "controllerArgs": (
        "controller.yaml",
        "args: {}",
        '["--address=[::]:8443", "--page-address=127.0.0.1:9410"]',
    ),
    "nodeSelector": ("daemonset.yaml", "nodeSelector: {}", "{}"),
    "tolerations": ("daemonset.yaml dra/daemonset.yaml", "tolerations: {}", "[{operator: Exists}]"),
    "pullSecrets": ("daemonset.yaml controller.yaml dra/daemonset.yaml", "imagePullSecrets: {}", "[]"),
    "nodeMemory": ("daemonset.yaml", "limits: {{memory: {}}}", "256Mi"),
    "controllerMemory": ("controller.yaml", "limits: {{memory: {}}}", "512Mi"),
}
SETTINGS = "/etc/gpu-hook"  # in the controller's container
NOTES = """gpu-hook is installed. Its nodes and namespaces are those with a label.
{{- if .Values.annotations }}

    kubectl label nodes NODE gpu-hook.io/node=true
    kubectl label namespace NAMESPACE gpu-hook.io/namespace=enabled

    kubectl -n gpu-hook rollout status daemonset/gpu-hook-node

docs/guide/kubernetes.md has a first pod.
{{- end }}
{{- if .Values.claims }}

Shares by ResourceClaims, on nodes of their own:

    kubectl label nodes NODE gpu-hook.io/node=claims

    kubectl -n gpu-hook-claims rollout status daemonset/gpu-hook-claims

docs/guide/claims.md has a first pod.
{{- end }}
"""
CHART = {
    "apiVersion": "v2",
    "name": "gpu-hook",
    "description": "Containers of a cluster share NVIDIA GPUs by annotations",
    "version": VERSION,
    "appVersion": VERSION,
    "kubeVersion": ">=1.20.0-0",
}


def build(out: Path, arch: str) -> Path:
    """OUT/gpu-hook-VERSION.tgz, as `helm package` would name it; the same for every architecture."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, text in sorted(files().items()):
            member = tarfile.TarInfo(f"gpu-hook/{name}")
            member.size, member.mtime, member.mode = len(text.encode()), epoch(), 0o644
            tar.addfile(member, io.BytesIO(text.encode()))
    target = out / f"gpu-hook-{VERSION}.tgz"
    target.write_bytes(gzip.compress(stream.getvalue(), mtime=0))
    return target


def files() -> dict[str, str]:
    """The chart's files by their paths in it."""
    values = "# Which way nodes give shares: by annotations, by ResourceClaims (Kubernetes 1.36), or both, on different nodes.\n"
    values += "".join(f"{name}: {default}\n" for name, default in SWITCHES.items())
    values += "# true where NVIDIA's GPU Operator, 26.7 or newer, has the driver: the nodes' pods leave before it is unloaded.\n"
    values += f"{OPERATOR}: false\n"
    values += "# true where the kubelet's kubeconfig logs in by a program (EKS, GKE, AKS): nodes come by their pod's account.\n"
    values += "account: false\n"
    values += "# Lines of the controller's settings, as in docs/guide/kubernetes.md#qgpu.\n"
    values += 'controllerSettings: ""\n'
    values += "# Each is explained where it stands in templates/.\n"
    for name, (_, _, default) in VALUES.items():
        values += f"{name}: {default}\n" if is_structure(default) else f'{name}: "{default}"\n'
    return {
        "Chart.yaml": yaml.safe_dump(CHART, sort_keys=False),
        "values.yaml": values,
        "templates/NOTES.txt": NOTES,
        **{f"templates/{name}": template(name) for name in resources()},
        "templates/account.yaml": "{{- if and .Values.annotations .Values.account }}\n"
        + (ACCOUNT / "rights.yaml").read_text()
        + "{{- end }}\n",
    }


def resources() -> list[str]:
    """The manifests' paths below BASE."""
    return [
        f"{folder}{name}"
        for folder in ("", CLAIMS)
        for name in yaml.safe_load((BASE / folder / "kustomization.yaml").read_text())["resources"]
    ]


def with_account(text: str) -> str:
    """The nodes' DaemonSet with what the manifests of ACCOUNT change in it, where the chart's value says so."""
    patch = (ACCOUNT / "daemonset.yaml").read_text()
    _, mount, rest = patch.partition("            - {name: account, ")
    mount += rest.partition("\n")[0] + "\n"
    volume = patch[patch.index("        - name: account ") :]
    setting = "agent.kubeconfig={{ .Values.kubeconfig }}"
    after = "            - {name: controller, mountPath: /controller, readOnly: true}\n"
    if setting not in text or after not in text:
        raise SystemExit("scripts/package: daemonset.yaml has no place for the chart's value account")
    chosen = 'agent.kubeconfig={{ ternary "$(ACCOUNT)" .Values.kubeconfig .Values.account }}'
    text = text.replace(setting, chosen)
    text = text.replace(after, f"{after}{{{{- if .Values.account }}}}\n{mount}{{{{- end }}}}\n")
    return f"{text}{{{{- if .Values.account }}}}\n{volume}{{{{- end }}}}\n"


def with_settings(text: str) -> str:
    """The controller's Deployment with its settings, where the chart's value controllerSettings has lines: a file of a ConfigMap, whose
    change restarts it."""
    lines = ".Values.controllerSettings"
    args = "{{ toJson .Values.controllerArgs }}"
    mount = "            - {name: tmp, mountPath: /tmp}\n"
    volume = "        - name: tmp\n"
    labels = "      labels: {app.kubernetes.io/name: gpu-hook, app.kubernetes.io/component: controller}\n    spec:\n"
    for there in (args, mount, volume, labels):
        if text.count(there) != 1:
            raise SystemExit(
                f"scripts/package: controller.yaml has no single {there!r} for the value controllerSettings"
            )
    more = f'(concat .Values.controllerArgs (list "--settings={SETTINGS}/settings.yaml"))'
    text = text.replace(args, f'{{{{ toJson (ternary {more} .Values.controllerArgs (ne {lines} "")) }}}}')
    head, spec = labels.split("    spec:")
    checksum = f"      annotations: {{checksum/settings: {{{{ sha256sum {lines} }}}}}}\n"
    added = {
        labels: f"{head}{{{{- if {lines} }}}}\n{checksum}{{{{- end }}}}\n    spec:{spec}",
        mount: f"{mount}{{{{- if {lines} }}}}\n            - {{name: settings, mountPath: {SETTINGS}}}\n{{{{- end }}}}\n",
        volume: f"{{{{- if {lines} }}}}\n        - name: settings\n"
        f"          configMap: {{name: gpu-hook-controller-settings}}\n{{{{- end }}}}\n{volume}",
    }
    for there, new in added.items():
        text = text.replace(there, new)
    meta = "{name: gpu-hook-controller-settings, namespace: gpu-hook}"
    data = f"data:\n  settings.yaml: {{{{ toJson {lines} }}}}\n"
    return (
        f"{text}{{{{- if {lines} }}}}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {meta}\n{data}{{{{- end }}}}\n"
    )


def is_structure(default: str) -> bool:
    return default[:1] in ("[", "{")


def template(name: str) -> str:
    text = (BASE / name).read_text()
    for value, (files, around, default) in VALUES.items():
        if name in files.split():
            before, after = around.format(default), around.format("\0")
            if before not in text:
                raise SystemExit(f"scripts/package: {name} has no {before!r}, which the chart's value {value} replaces")
            there = ("toJson " if is_structure(default) else "") + f".Values.{value}"
            inserted = "{{ " + there + " }}" if default else "{{ with " + there + " }} {{ . }}{{ end }}"
            text = text.replace(before, after.replace("\0", inserted))
    if own := SELECTORS.get(name):
        text, found = re.subn(
            "nodeSelector: .*?(}|}})(?=  )", f"nodeSelector: {{{{ toJson (merge {CLIENT} {own}) }}}}", text
        )
        if found != 1:
            raise SystemExit(f"scripts/package: {name} has no nodeSelector for the chart's value {OPERATOR}")
    if name == "daemonset.yaml":
        text = with_account(text)
    if name == "controller.yaml":
        text = with_settings(text)
    annotations, claims = SWITCHES
    switch = claims if name.startswith(CLAIMS) else annotations
    return f"{{{{- if .Values.{switch} }}}}\n{text}{{{{- end }}}}\n"
