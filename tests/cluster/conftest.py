"""One cluster of three nodes for all tests of this folder. scripts/test --cluster runs them, and nothing else does.

GPU_HOOK_CLUSTER=DIR, the --state of a cluster that `scripts/cluster up 3 --gpus 2x16Gi,2x16Gi,4x24Gi` started: the tests
use that one and leave it up. GPU_HOOK_WHOLE_CLUSTER=DIR: the same for the cluster on which gpu-hook is installed by kubectl;
one that is up there is used as it is.
"""

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import REPO
from testbed.cluster import lab
from testbed.cluster.plane import Plane, running
from tests.cluster.whole import Namespace, Whole

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("cluster")


@pytest.fixture(scope="session")
def runnable() -> None:
    """Skips where no cluster can run, with the reason."""
    try:
        lab.check()
    except lab.CannotRun as e:
        pytest.skip(str(e))


@pytest.fixture(scope="session")
def cluster(runnable: None, native: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Cluster]:
    given = os.environ.get("GPU_HOOK_CLUSTER")
    made = lab.Cluster(Path(given) if given else tmp_path_factory.mktemp("cluster"))
    try:
        made.up(lab.NODES)
        yield made
    finally:
        if not given:
            made.down()


@pytest.fixture(scope="module")
def empty_plane(runnable: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with running(tmp_path_factory.mktemp("plane")) as plane:
        yield plane


@pytest.fixture
def plane(empty_plane: Plane) -> Iterator[Plane]:
    empty_plane.clean()
    yield empty_plane
    empty_plane.clean()


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The images, as scripts/package builds them."""
    out = tmp_path_factory.mktemp("images")
    for kind in ("image", "controller-image"):
        subprocess.run([str(REPO / "scripts/package"), kind, "--out", str(out)], check=True, capture_output=True)
    return sorted(out.iterdir())


@pytest.fixture(scope="session")
def bare(
    runnable: None, native: Path, tmp_path_factory: pytest.TempPathFactory, archives: list[Path]
) -> Iterator[lab.Cluster]:
    """Two nodes with GPUs and without gpu-hook, that have the images."""
    made = lab.Cluster(tmp_path_factory.mktemp("bare"))
    try:
        made.up([lab.Gpus(2, "16Gi"), lab.Gpus(2, "16Gi")], installed=False)
        made.kubectl("delete", "runtimeclass", "gpu-hook", "--ignore-not-found")
        for node in made.nodes:
            for archive in archives:
                node.load(archive)
        yield made
    finally:
        made.down()


@pytest.fixture(scope="session")
def whole(
    runnable: None, native: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Whole]:
    """Three nodes, on which `kubectl apply -k` has installed gpu-hook."""
    given = os.environ.get("GPU_HOOK_WHOLE_CLUSTER")
    made = Whole(lab.Cluster(Path(given) if given else tmp_path_factory.mktemp("whole")))
    try:
        if not made.cluster.exists:
            made.up(request.getfixturevalue("archives"), tmp_path_factory.mktemp("overlay"))
        yield made
    finally:
        if not given:
            made.cluster.down()


@pytest.fixture
def team(whole: Whole) -> Iterator[Namespace]:
    """A namespace that has opted in."""
    made = whole.new_namespace()
    yield made
    made.clean()


@pytest.fixture
def stranger(whole: Whole) -> Iterator[Namespace]:
    """A namespace that has not opted in."""
    made = whole.new_namespace(opted_in=False)
    yield made
    made.clean()


@pytest.fixture
def namespace(cluster: lab.Cluster) -> Iterator[str]:
    """A namespace of this test's own; afterwards its pods are gone and hold nothing."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    lab.wait(
        60, f"{name} has its service account", lambda: cluster.kubectl("-n", name, "get", "serviceaccount", "default")
    )
    yield name
    cluster.kubectl("-n", name, "delete", "deployments,jobs,pods", "--all", "--wait=false", "--grace-period=1")
    cluster.kubectl("delete", "namespace", name, timeout=180)

    def left() -> list[str]:
        return [key for node in cluster.nodes for key in lab.holders(cluster, node.name) if key.startswith(f"{name}/")]

    lab.wait(60, f"nothing of {name} holds a grant", lambda: not left())
