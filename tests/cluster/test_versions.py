"""Controller and nodes of versions next to each other, on real nodes with running pods: up, apart both ways, and down again.

The version before is built from this repository's history, so a checkout without it skips.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import REPO
from testbed.cluster import lab
from tests.cluster.test_install import holders, overlay

BEFORE = "3ec587c"  # the last one whose stand-by controllers are not Ready, and whose Lease lasts 15 s
IMAGES = ("install", "controller")
REGISTRIES = {"old": "docker.io/gpu-hook", "new": "your-registry.invalid/gpu-hook"}  # what the manifests name
TAGS = {"old": "before", "new": "0.1.0"}
OURS = "gpu-hook"
KEYS = "/opt/gpu-hook/etc/cluster.json"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of the version before, with its C parts and packages built by its own scripts."""
    if lab.programs.minor() >= 21:
        pytest.skip(
            f"nodes of {BEFORE} get no keys by kubectl 1.21 and newer, whose kustomize puts SETTINGS before POD_UID"
        )
    asked = ["git", "-c", "safe.directory=*", "-C", str(REPO), "archive", BEFORE]
    done = subprocess.run(asked, capture_output=True)
    if done.returncode:
        pytest.skip(f"this checkout's history does not reach {BEFORE}")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    cache = str(REPO / "build/zig-cache")
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache, "PYTHONPATH": str(folder)}
    for command in (
        ["scripts/build"],
        ["-B", "packaging/build.py", "image", "--out", "dist"],
        ["-B", "packaging/build.py", "controller-image", "--out", "dist"],
    ):
        subprocess.run([sys.executable, *command], cwd=folder, env=environment, check=True, timeout=900)
    return folder


@pytest.fixture
def cluster(
    runnable: None, native: Path, before: Path, archives: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[lab.Cluster]:
    made = lab.Cluster(tmp_path_factory.mktemp("versions"))
    try:
        made.up([lab.Gpus(2, "16Gi"), lab.Gpus(2, "16Gi")], installed=False)
        made.kubectl("delete", "runtimeclass", "gpu-hook", "--ignore-not-found")
        for node in made.nodes:
            for archive in sorted((before / "dist").glob("*.tar*")):
                node.load(archive)
            for image in IMAGES:
                loaded = f"{REGISTRIES['old']}/{image}:{TAGS['new']}"
                tagged = f"{REGISTRIES['new']}/{image}:{TAGS['old']}"
                node.machine.run("ctr", "-n", "k8s.io", "images", "tag", loaded, tagged)
                node.machine.run("ctr", "-n", "k8s.io", "images", "rm", loaded)
            for archive in archives:
                node.load(archive)
        made.kubectl("label", "--overwrite", "nodes", "--all", "gpu-hook.io/node=true")
        yield made
    finally:
        made.down()


def manifests(folder: Path, before: Path, controller: str, nodes: str) -> Path:
    """The manifests of the controller's version, with the images of each."""
    overlay(folder, cluster="required")
    base = (before if controller == "old" else REPO) / "packaging/kubernetes"
    kustomization = {
        "bases": [os.path.relpath(base, folder.resolve())],
        "patchesStrategicMerge": ["settings.yaml"],
        "images": [
            {
                "name": f"{REGISTRIES[controller]}/{image}",
                "newName": f"{REGISTRIES['new']}/{image}",
                "newTag": TAGS[version],
            }
            for image, version in zip(IMAGES, (nodes, controller), strict=True)
        ],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return folder


def get(cluster: lab.Cluster, *what: str) -> Any:
    return json.loads(cluster.kubectl("-n", OURS, "get", *what, "-o", "json"))


def rolled_out(cluster: lab.Cluster) -> bool:
    """Every node's pod and every controller is of the newest revision, and some controller serves."""
    nodes, controller = get(cluster, "daemonset", "gpu-hook-node"), get(cluster, "deployment", "gpu-hook-controller")
    status, deployed = nodes["status"], controller["status"]
    return bool(
        status.get("observedGeneration") == nodes["metadata"]["generation"]
        and status.get("updatedNumberScheduled") == status.get("numberReady") == len(cluster.nodes)
        and deployed.get("observedGeneration") == controller["metadata"]["generation"]
        and deployed.get("updatedReplicas") == deployed.get("replicas") == 2
        and deployed.get("readyReplicas")
    )


def test_up_and_down_with_running_pods(cluster: lab.Cluster, before: Path, tmp_path: Path) -> None:
    ran: dict[str, Any] = {}

    def create(name: str) -> None:
        one = lab.pod(name, {"main": "gpu-probe info; sleep 100000"}, memory="3Gi")
        del one["spec"]["runtimeClassName"], one["spec"]["nodeSelector"]  # the webhook adds what is needed

        def made() -> object:
            return cluster.kubectl("-n", "team", "apply", "-f", "-", input=json.dumps(one))

        lab.wait(120, f"{name} is created", made)  # who makes pods tries again, as a ReplicaSet does

    def runs(name: str) -> None:
        state: list[Any] = []

        def running() -> bool:
            pod = json.loads(cluster.kubectl("-n", "team", "get", "pod", name, "-o", "json"))
            state[:] = [pod["metadata"]["uid"], pod["status"].get("containerStatuses")]
            return bool(state[1]) and "running" in state[1][0]["state"]

        lab.wait(240, f"{name} runs", running)
        ran[name] = list(state)

    def nothing_changed() -> None:
        for name, was in ran.items():
            pod = json.loads(cluster.kubectl("-n", "team", "get", "pod", name, "-o", "json"))
            assert [pod["metadata"]["uid"], pod["status"].get("containerStatuses")] == was, f"{name} restarted"
        held = sorted(key for node in cluster.nodes for key in holders(node))
        assert held == sorted(f"team/{name}/main" for name in ran), "a share was lost or is there twice"

    def roll(controller: str, nodes: str, during: Callable[[], None] = lambda: None) -> None:
        where = manifests(tmp_path / f"{controller}-{nodes}", before, controller, nodes)
        cluster.kubectl("apply", "-k", str(where))
        during()
        lab.wait(300, f"controller {controller}, nodes {nodes}", lambda: rolled_out(cluster))

    def step(number: int, controller: str, nodes: str) -> None:
        """One pod is made during the roll-out and one after it; both run, and nothing else changed."""
        begun = time.monotonic()
        roll(controller, nodes, lambda: create(f"during-{number}"))
        runs(f"during-{number}")
        create(f"after-{number}")
        runs(f"after-{number}")
        nothing_changed()
        print(f"controller {controller}, nodes {nodes}: {time.monotonic() - begun:.0f} s")

    roll("old", "old")
    cluster.kubectl("create", "namespace", "team")
    cluster.kubectl("label", "namespace", "team", "gpu-hook.io/namespace=enabled")
    for node in cluster.nodes:
        lab.wait(90, f"{node.name} has its keys", lambda node=node: node.machine.run("test", "-e", KEYS))  # type: ignore[misc]
    create("first")
    runs("first")
    step(1, "new", "old")
    step(2, "new", "new")
    step(3, "old", "new")
    step(4, "old", "old")
