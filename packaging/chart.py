"""The Helm chart: the manifests of packaging/kubernetes with a few values in place of what users change.

`{{ .Values.NAME }}` is the only form of template in it, so that what it renders can be compared with the manifests.
"""

import gzip
import io
import tarfile
from pathlib import Path

import yaml
from payload import ROOT, VERSION, epoch

BASE = ROOT / "packaging/kubernetes"
# name of the value: (the file, the text there around {}, the default)
VALUES = {
    "installImage": ("daemonset.yaml", "image: {}", f"your-registry.invalid/gpu-hook/install:{VERSION}"),
    "engines": ("daemonset.yaml", "{{name: ENGINES, value: {}}}", "containerd"),
    "keep": ("daemonset.yaml", '{{name: KEEP, value: "{}"}}', "no"),
    "cluster": ("daemonset.yaml", "cluster={}", "local"),
    "kubeconfig": ("daemonset.yaml", "agent.kubeconfig={}", "/etc/kubernetes/kubelet.conf"),
    "controllerImage": ("controller.yaml", "image: {}", f"your-registry.invalid/gpu-hook/controller:{VERSION}"),
    "replicas": ("controller.yaml", "replicas: {}", "2"),
}
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
    values = "# Each is explained where it stands in templates/.\n"
    values += "".join(f'{name}: "{default}"\n' for name, (_, _, default) in VALUES.items())
    return {
        "Chart.yaml": yaml.safe_dump(CHART, sort_keys=False),
        "values.yaml": values,
        **{f"templates/{name}": template(name) for name in resources()},
    }


def resources() -> list[str]:
    listed: list[str] = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    return listed


def template(name: str) -> str:
    text = (BASE / name).read_text()
    for value, (file, around, default) in VALUES.items():
        if file == name:
            before, after = around.format(default), around.format("\0")
            if before not in text:
                raise SystemExit(f"scripts/package: {name} has no {before!r}, which the chart's value {value} replaces")
            text = text.replace(before, after.replace("\0", "{{ .Values." + value + " }}"))
    return text
