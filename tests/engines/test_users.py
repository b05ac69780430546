"""Whoever a container runs as: it gets its share, also as the first ever on its GPU.

Rows: root, a plain user with and without further groups, one as careful clusters have it (read-only root, no
capabilities, no new privileges), root of a user namespace. Columns: each engine that is here.
Each cell asks for memory, for compute and for a whole GPU, each on a GPU that was made for it.
"""

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed import tiny_image
from testbed.engines.box import IMAGE, Hideout, Place
from testbed.engines.containerd import Containerd
from testbed.engines.docker import Docker
from testbed.engines.podman import Podman
from testbed.stage import make_stage
from tests.engines.test_runc import CGROUPS

pytestmark = [pytest.mark.root, pytest.mark.slow]

UID, GID, MORE = 1000, 1000, 44
USERS = ("root", "plain with groups", "plain", "plain and hardened", "root of a user namespace")
ASKED = {
    "memory": {"devices": "0", "memory": "1Gi"},
    "compute": {"devices": "1", "compute": "30"},
    "whole GPU": {"devices": "2", "exclusive": "true"},
}
PROBE = ("gpu-probe", "alloc", "64", "launch", "100", "3")
# Of the host's files, runc and podman in user namespaces need the device nodes, which only a real driver makes.
NODES = """
mkdir -p /run/nodes/up /run/nodes/work
mount -t overlay -o lowerdir=/dev,upperdir=/run/nodes/up,workdir=/run/nodes/work overlay /run/nodes
rm -f /run/nodes/nvidia*  # the real libnvidia-ml, in other tests, makes one
for n in 0 1 2 ctl; do mknod -m 666 /run/nodes/nvidia$n c 195 $([ $n = ctl ] && echo 255 || echo $n); done
for d in pts shm; do mount --rbind /dev/$d /run/nodes/$d; done
mount --rbind /run/nodes /dev
echo dockremap:x:990:990::/:/bin/false >>/etc/passwd
echo dockremap:x:990: >>/etc/group
for f in uid gid; do echo dockremap:100000:65536 >>/etc/sub$f; done
"""
MAPPED = [{"containerID": 0, "hostID": 100000, "size": 65536}]
Run = Callable[[str, dict[str, str]], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def place(native: Path) -> Iterator[Place]:
    place = Place(native, first=NODES)
    place.dir.chmod(0o711)  # its path is to be open to the root of a user namespace
    yield place
    place.close()
    assert os.stat("/dev/null").st_uid == 0, "a runtime gave the host's node to a container's user"


def annotations(asked: dict[str, str]) -> list[str]:
    return [word for key, value in asked.items() for word in ("--annotation", f"gpu-hook.io/{key}={value}")]


def flags(user: str) -> list[str]:
    """Those of `docker run` and `podman run`."""
    plain = ["--user", f"{UID}:{GID}"]
    rows = {
        "plain": plain,
        "plain with groups": [*plain, "--group-add", str(MORE)],
        "plain and hardened": [*plain, "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"],
    }
    return rows.get(user, [])


@pytest.fixture(scope="module")
def docker(place: Place) -> Iterator[Run]:
    """Two daemons; one of them maps all its containers."""
    daemons = {}
    try:
        for remap in (False, True):
            one = Docker(place, "remapped" if remap else "docker", ["--userns-remap=default"] if remap else [])
            one.config.write_text(json.dumps({"runtimes": {"gpu-hook": {"path": place.program}}}))
            one.start()
            daemons[remap] = one
            assert one("load", "--input", str(place.archive)).returncode == 0

        def run(user: str, asked: dict[str, str]) -> "subprocess.CompletedProcess[str]":
            requests = [f"--volume=/dev/null:/run/gpu-hook/request/{key}={value}" for key, value in asked.items()]
            daemon = daemons[user == "root of a user namespace"]
            words = ("--rm", "--runtime=gpu-hook", "--network=none", *requests, *flags(user), IMAGE)
            return daemon("run", *words, *PROBE)

        yield run
    finally:
        for one in daemons.values():
            one.stop()


@pytest.fixture(scope="module")
def cri(place: Place) -> Iterator[Run]:
    containerd = Containerd(place)
    place.gpu_hook("install", "--engine", "containerd", "--config", str(containerd.config))
    containerd.start()
    plain = {"run_as_user": {"value": UID}, "run_as_group": {"value": GID}}
    security = {
        "plain": plain,
        "plain with groups": {**plain, "supplemental_groups": [MORE]},
        "plain and hardened": {**plain, "readonly_rootfs": 1, "no_new_privs": 1, "capabilities": {"drop": ["ALL"]}},
    }

    def run(user: str, asked: dict[str, str]) -> "subprocess.CompletedProcess[str]":
        pod = containerd.pod({f"gpu-hook.io/{key}": value for key, value in asked.items()})
        try:
            id = containerd.container(pod, "main", security=security.get(user))
            status, output = containerd.cri.exec(id, *PROBE)
        finally:
            containerd.remove_pods()
        return subprocess.CompletedProcess(PROBE, status, output, "")

    try:
        assert containerd.ctr("images", "import", str(place.archive)).returncode == 0
        yield run
    finally:
        containerd.stop()


def podman(place: Place, runtime: str) -> Iterator[Run]:
    engine = Podman(place)
    maps = ["--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"]

    def run(user: str, asked: dict[str, str]) -> "subprocess.CompletedProcess[str]":
        who = maps if user == "root of a user namespace" else flags(user)
        words = ("run", "--rm", *engine.where, *annotations(asked), *who, IMAGE)
        return engine(*words, *PROBE, flags=(f"--runtime={runtime}",))

    try:
        assert engine("load", "--input", str(place.archive)).returncode == 0
        yield run
    finally:
        engine("rm", "--all", "--force", "--time=0")


@pytest.fixture(scope="module")
def podman_runtime(place: Place) -> Iterator[Run]:
    yield from podman(place, "gpu-hook")


@pytest.fixture(scope="module")
def podman_hooks(place: Place) -> Iterator[Run]:
    yield from podman(place, "runc")


def called(place: Place, runtime: str, hook: bool = False) -> Iterator[Run]:
    """A runtime without an engine; hook: the share comes by our hook at its stage prestart."""
    hideout = Hideout(None, NODES + CGROUPS["v1"])
    images: dict[bool, Path] = {}
    for mapped in (False, True):
        images[mapped] = place.dir / f"{runtime}{hook:d}-{mapped:d}"
        subprocess.run(["cp", "-a", place.rootfs, images[mapped]], check=True)
        if mapped:
            subprocess.run(["chown", "-Rh", "100000:100000", images[mapped]], check=True)
    made = iter(range(1000))
    snippet = [{"path": f"{place.prefix}/bin/oci-gpu-hook", "args": ["oci-gpu-hook", "prestart"], "timeout": 30}]

    def run(user: str, asked: dict[str, str]) -> "subprocess.CompletedProcess[str]":
        mapped = user == "root of a user namespace"
        name = f"{runtime}{hook:d}-{next(made)}"
        folder = place.dir / f"bundle-{name}"
        folder.mkdir()
        subprocess.run(["runc", "spec"], cwd=folder, check=True)
        spec: dict[str, Any] = json.loads((folder / "config.json").read_text())
        spec["process"].update(terminal=False, args=list(PROBE))
        del spec["process"]["rlimits"]
        spec["root"] = {"path": str(images[mapped]), "readonly": False}
        spec["annotations"] = {f"gpu-hook.io/{key}": value for key, value in asked.items()}
        spec["linux"]["cgroupsPath"] = f"/{place.cgroup}/{name}"
        if user.startswith("plain"):
            spec["process"]["user"] = {"uid": UID, "gid": GID}
        if user == "plain with groups":
            spec["process"]["user"]["additionalGids"] = [MORE]
        if user == "plain and hardened":
            spec["process"]["user"]["umask"] = 0o077  # of the program, not of the runtime
            spec["process"].update(noNewPrivileges=True, capabilities={})
            spec["root"]["readonly"] = True
        if mapped:
            spec["linux"] |= {"uidMappings": MAPPED, "gidMappings": MAPPED}
            spec["linux"]["namespaces"].append({"type": "user"})
            spec["mounts"] = [m for m in spec["mounts"] if not m["destination"].startswith("/sys")]
        if hook:
            spec["hooks"] = {"prestart": snippet}
        (folder / "config.json").write_text(json.dumps(spec))
        program = runtime if hook else str(place.prefix / "bin/gpu-hook-runtime")
        return hideout.run(program, "--root", f"{place.dir}/root-{runtime}", "run", "--bundle", str(folder), name)

    if not hook and runtime != "runc":
        set_runtime(place, hideout, runtime)
    try:
        yield run
    finally:
        if not hook and runtime != "runc":
            set_runtime(place, hideout, "runc")
        hideout.close()


def set_runtime(place: Place, hideout: Hideout, name: str) -> None:
    path = hideout.run("sh", "-c", f"command -v {name}").stdout.strip()
    place.gpu_hook("settings", "set", f"runtime={path}")


@pytest.fixture(scope="module")
def runc(place: Place) -> Iterator[Run]:
    yield from called(place, "runc")


@pytest.fixture(scope="module")
def runc_hook(place: Place) -> Iterator[Run]:
    yield from called(place, "runc", hook=True)


@pytest.fixture(scope="module")
def crun(place: Place) -> Iterator[Run]:
    yield from called(place, "crun")


ENGINES = ("docker", "cri", "podman_runtime", "podman_hooks", "runc", "runc_hook", "crun")
CELLS = [
    (engine, user)
    for engine in ENGINES
    for user in USERS
    # containerd before 1.7 has no user namespaces in its CRI.
    if (engine, user) != ("cri", "root of a user namespace")
]


@pytest.mark.parametrize(("engine", "user"), CELLS)
def test_the_first_on_a_gpu(place: Place, request: pytest.FixtureRequest, engine: str, user: str) -> None:
    run: Run = request.getfixturevalue(engine)
    place.gpu_hook("sim", "up", "--gpus", "3", "--memory", "8Gi")  # other GPUs, which nobody has used
    for what, asked in ASKED.items():
        done = run(user, asked)
        told = f"{what}: {done.stdout}{done.stderr}"
        assert done.returncode == 0 and "alloc 64 MiB: ok" in done.stdout and "launch 3 x 100 us:" in done.stdout, told
    assert place.no_grants()


@pytest.mark.parametrize("order", list(itertools.permutations(("1000", "0", "2000"))), ids="-".join)
def test_users_of_one_container_keep_books_together(
    native: Path, tmp_path_factory: pytest.TempPathFactory, order: tuple[str, ...]
) -> None:
    """The first of these users creates the account page for all; the limit is the container's."""
    stage = make_stage(tmp_path_factory, "users")
    try:
        rootfs = tiny_image.with_c_library(stage.folder / "image")
        shutil.copy(native / "sim/gpu-probe", rootfs / "bin/gpu-probe")
        uid = int(order[0])
        id = stage.start(rootfs, edit=lambda spec: spec["process"].update(user={"uid": uid, "gid": uid}))
        holders = []
        for user in order:
            command = ["runc", "--root", str(stage.runc.root), "exec", "--user", f"{user}:{user}", id]
            command += ["gpu-probe", "alloc", "200", "pause"]
            pipe = subprocess.PIPE
            holder = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
            holders.append(holder)
            assert holder.stdout and holder.stdout.readline() == "alloc 200 MiB: ok\n", user
        # Three contexts of 64 MiB and three times 200: 232 of 1024 are left, of which a fourth context takes 64.
        done = stage.runc("exec", "--user", "3000:3000", id, "gpu-probe", "alloc", "200")
        assert done.returncode == 1 and "CUDA_ERROR_OUT_OF_MEMORY" in done.stdout, done
        done = stage.runc("exec", "--user", "3000:3000", id, "gpu-probe", "alloc", "150")
        assert done.returncode == 0, done
        for holder in holders:
            holder.communicate(timeout=60)
    finally:
        stage.close()
