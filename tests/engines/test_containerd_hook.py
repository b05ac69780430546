"""containerd with `install --as hook`: the usual runc runs the containers, and our OCI hooks give them their shares."""

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from testbed.engines import box
from testbed.engines.box import Place
from testbed.engines.containerd import ONE_GPU, Containerd

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(scope="module")
def containerd(place: Place) -> Iterator[Containerd]:
    found = Containerd(place, "hooked")
    said = place.gpu_hook("install", "--engine", "containerd", "--as", "hook", "--config", str(found.config))
    assert "by hooks, a container gets its GPUs and limits, but no environment variables" in said
    found.start()
    try:
        loaded = found.ctr("images", "import", str(place.archive))
        assert loaded.returncode == 0, loaded.stderr
        yield found
    finally:
        found.remove_pods()
        found.stop()


@pytest.fixture
def hooked(containerd: Containerd) -> Iterator[Containerd]:
    yield containerd
    containerd.remove_pods()
    assert containerd.place.no_grants()


def test_two_containers_of_a_pod(hooked: Containerd) -> None:
    pod = hooked.pod({**ONE_GPU, "gpu-hook.io/memory": "1Gi", "gpu-hook.io/memory.b": "2Gi"})
    a, b = hooked.container(pod, "a"), hooked.container(pod, "b")
    box.saw_its_share(hooked.look(a), 1024)
    box.saw_its_share(hooked.look(b), 2048)
    assert "GPU_HOOK" not in hooked.cri.exec(a, "env")[1]
    assert sorted((g["name"], g["id"]) for g in hooked.place.grants()) == [("a", a), ("b", b)]
    assert hooked.place.hideout.run("cat", f"/proc/{hooked.place.grants()[0]['pid']}/status").returncode == 0


def test_what_asks_for_nothing(hooked: Containerd) -> None:
    pod = hooked.pod({})
    said = hooked.cri.exec(hooked.container(pod, "a"), "ls", "/dev", "/run")[1]
    assert "nvidia" not in said and "gpu-hook" not in said


def test_a_refusal_reaches_the_kubelet(hooked: Containerd) -> None:
    pod = hooked.pod({**ONE_GPU, "gpu-hook.io/memory": "99Gi"})
    with pytest.raises(grpc.RpcError) as raised:
        hooked.container(pod, "a")
    assert "GH-201" in str(raised.value)


def test_install_again_and_away(place: Place, containerd: Containerd) -> None:
    """The way stays, without being said; doctor finds nothing wrong; another way needs an uninstall."""
    config = ("--engine", "containerd", "--config", str(containerd.config))
    before = containerd.config.read_bytes()
    spec = Path(place.prefix, "etc/containerd-base-spec.json")
    text = before.decode()
    assert f'base_runtime_spec = "{spec}"' in text and "gpu-hook-runtime" not in text
    assert set(json.loads(spec.read_text())["hooks"]) == {"prestart", "createRuntime", "poststop"}
    for more in ((), ("--as", "hook")):
        assert "unchanged" in place.gpu_hook("install", *config, *more)
        assert containerd.config.read_bytes() == before
    done = place.hideout.run(place.hideout.python, "-m", "oci_hook", "doctor", "--prefix", str(place.prefix))
    assert not [line for line in done.stdout.splitlines() if "containerd" in line and "FAIL" in line], done.stdout
    words = (
        place.hideout.python,
        "-m",
        "oci_hook",
        "install",
        *config,
        "--as",
        "runtime",
        "--prefix",
        str(place.prefix),
    )
    done = place.hideout.run(*words)
    assert done.returncode == 1 and "GH-508" in done.stderr
    place.gpu_hook("uninstall", *config)
    assert "runtimes.gpu-hook" not in containerd.config.read_text() and not spec.exists()
    place.gpu_hook("install", *config)
    assert "gpu-hook-runtime" in containerd.config.read_text() and not spec.exists()
    place.gpu_hook("uninstall", *config)
    assert "runtimes.gpu-hook" not in containerd.config.read_text()
