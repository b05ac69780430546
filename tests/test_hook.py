"""oci-gpu-hook in plain runc: a container gets its share and nothing else, or does not start and nothing is booked."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oci_hook import boundary_stage, hook, runtime
from oci_hook.apply import to_spec
from oci_hook.core.inventory import GpuNode
from oci_hook.core.policy_page import policy_page
from oci_hook.discovery.save import save_inventory
from oci_hook.install import own_python
from oci_hook.linux import lock as lock_file
from testbed import REPO, tiny_image
from testbed.compiled import ZIG
from testbed.containers import Bundle, Runc
from testbed.installs import DRIVER, MEMORY_MIB, UUIDS, Install
from tests.apply import box_maker

pytestmark = pytest.mark.root
SNIPPET = REPO / "runtime-config/runc/config.json"
LIBDIR = "/usr/lib64"
ASK = {"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_MEMORY": "4096"}
DEVICES = Path("/sys/fs/cgroup/devices")
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def install(prefix: Install) -> Install:
    prefix.set(driver_root=str(prefix.driver))
    return prefix


def hooks(install: Install, *stages: str) -> dict[str, Any]:
    """The snippet that users copy, with this install's prefix. stages: keep only these."""
    text = SNIPPET.read_text().replace("/opt/gpu-hook", str(install.prefix))
    return {k: v for k, v in json.loads(text)["hooks"].items() if not stages or k in stages}


def hooked(install: Install, *stages: str, edit: Edit = lambda spec: None) -> Edit:
    """An edit of a bundle's config.json that adds our hooks."""

    def change(spec: dict[str, Any]) -> None:
        spec["hooks"] = hooks(install, *stages)
        edit(spec)

    return change


def mounts(pid: int, rootfs: Path) -> list[tuple[str, str, str]]:
    """(mount point, what is mounted, options) in the container, seen from the host."""
    found = []
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        fields = line.split(" ")
        dash = fields.index("-")
        source = fields[3] if fields[dash + 1] == "ext4" else fields[dash + 1]
        found.append((fields[4], source, fields[5]))
    return found


def mount_points(runc: Runc, id: str) -> list[str]:
    return [line.split(" ")[4] for line in Path(f"/proc/{runc.pid(id)}/mountinfo").read_text().splitlines()]


def device_rules(runc: Runc, id: str) -> set[str]:
    return set((DEVICES / id / "devices.list").read_text().splitlines())


def started(runc: Runc, folder: Path) -> str:
    done = runc.create(folder)
    assert done.returncode == 0, done.stderr
    id = runc.ids[-1]
    done = runc("start", id)
    assert done.returncode == 0, done.stderr
    return id


def refused(runc: Runc, folder: Path, code: str, install: Install) -> str:
    """The message when the container is refused, as it must be; nothing may be booked then."""
    log = folder / "log.json"
    done = runc.create(folder, flags=("--log", str(log), "--log-format", "json"))
    assert done.returncode == 1
    message = json.loads(log.read_text().splitlines()[-1])["msg"]
    assert f"stderr: {code}: " in message, message
    assert runc.ids[-1] not in runc.living()
    nothing_is_booked(install)
    return message


def nothing_is_booked(install: Install) -> None:
    """No grant is left, on disk as well. (If poststop is hooked too, that may have released it.)"""
    assert list((install.state / "ledger").glob("*.json")) == []
    assert list((install.state / "pages").glob("*")) == []


@pytest.fixture(autouse=True)
def empty_ledger(install: Install) -> None:
    for name in ("ledger", "pages"):
        (install.state / name).mkdir(mode=0o700)


# --- the first acceptance test ---


@pytest.mark.parametrize("stages", [("prestart",), ("createRuntime", "poststop"), ()], ids=["prestart", "new", "all"])
@pytest.mark.parametrize(
    ("ask", "memory"), [({"T9K_GPU_PERCENT": "30"}, MEMORY_MIB * 30 // 100), ({"T9K_GPU_MEMORY": "4096"}, 4096)]
)
def test_a_container_gets_its_share_and_nothing_else(install, bundle, runc, tmp_path, stages, ask, memory):
    plain = started(runc, bundle(rootfs=tiny_image.busybox(tmp_path / "plain")))
    id = started(runc, bundle({"NVIDIA_VISIBLE_DEVICES": "0", **ask}, edit=hooked(install, *stages)))

    [grant] = install.grants()
    assert (grant.who.id, [(s.uuid, s.memory_mib) for s in grant.shares]) == (id, [(UUIDS[0], memory)])

    before = mount_points(runc, plain)
    new = mount_points(runc, id)
    assert [p for p in new if p in before] == before
    shims = [f"{LIBDIR}/{name}{end}" for name in ("libcuda.so", "libnvidia-ml.so") for end in (".1", "", f".{DRIVER}")]
    assert [p for p in new if p not in before] == [
        "/run/gpu-hook",
        "/run/gpu-hook/driver/cuda",
        "/run/gpu-hook/driver/ml",
        "/run/gpu-hook/policy",
        "/run/gpu-hook/account",
        "/run/gpu-hook/share/0",
        "/run/gpu-hook/slot/0",
        f"{LIBDIR}/libnvidia-ptxjitcompiler.so.{DRIVER}",
        f"{LIBDIR}/libnvidia-ptxjitcompiler.so.1",
        f"{LIBDIR}/libnvidia-cfg.so.{DRIVER}",
        f"{LIBDIR}/libnvidia-cfg.so.1",
        "/usr/bin/nvidia-smi",
        "/dev/nvidia-sim/0",
        *shims,
    ]
    top = f"/proc/{runc.pid(id)}/root"
    for path in shims:
        source = install.prefix / "lib/shim" / (Path(path).name.split(".so")[0] + ".so.1")
        assert os.path.samefile(top + path, source)
    assert Path(f"{top}/run/gpu-hook/driver/cuda").read_text() == "the real libcuda.so\n"
    assert Path(f"{top}/run/gpu-hook/driver/ml").read_text() == "the real libnvidia-ml.so\n"
    assert Path(f"{top}/run/gpu-hook/policy").read_bytes()[:4096] == policy_page(grant, install.inventory)
    assert Path(f"{top}/usr/bin/nvidia-smi").read_text() == (install.driver / "usr/bin/nvidia-smi").read_text()

    nodes = set(os.listdir(f"{top}/dev")) - set(os.listdir(f"/proc/{runc.pid(plain)}/root/dev"))
    assert nodes == {"nvidia0", "nvidiactl", "nvidia-sim"}
    assert os.listdir(f"{top}/dev/nvidia-sim") == ["0"]
    assert device_rules(runc, id) - device_rules(runc, plain) == {"c 195:0 rw", "c 195:255 rw"}

    runc("delete", "--force", id)
    if "prestart" not in stages:
        nothing_is_booked(install)  # released by poststop
    assert install.grants() == ()


def test_other_gpus_stay_closed(install, bundle, runc):
    id = started(runc, bundle(ASK, edit=hooked(install, "prestart")))
    # The cgroup permits a granted node, and the kernel then finds no driver: ENXIO. It denies another GPU's: EPERM.
    for _ in ("before", "after update"):
        assert "No such device or address" in runc.exec(id, "cat", "/dev/nvidia0").stderr
        runc.exec(id, "mknod", "/dev/stolen", "c", "195", "1")
        assert "Operation not permitted" in runc.exec(id, "cat", "/dev/stolen").stderr
        runc.exec(id, "rm", "/dev/stolen")
        assert runc("update", "--cpu-share", "512", "--memory", "100000000", id).returncode == 0
    assert "c 195:0 rw" in device_rules(runc, id)
    top = f"/proc/{runc.pid(id)}/root"
    assert not os.path.exists(f"{top}/dev/nvidia1") and not os.path.exists(f"{top}/dev/nvidia-sim/1")


def test_private_files_are_read_only(install, bundle, runc):
    id = started(runc, bundle(ASK, edit=hooked(install, "prestart")))
    for path in ("/run/gpu-hook/policy", f"{LIBDIR}/libcuda.so.1", "/run/gpu-hook/driver/cuda", "/run/gpu-hook/new"):
        done = runc.exec(id, "sh", "-c", f"echo x > {path}")
        assert "Read-only file system" in done.stderr, path
    assert runc.exec(id, "sh", "-c", "echo x > /run/gpu-hook/account/page").returncode == 0


def test_asks_for_nothing(install, bundle, runc, tmp_path):
    plain = started(runc, bundle(rootfs=tiny_image.busybox(tmp_path / "plain")))
    for asked in ({}, {"other": "1"}, {**ASK, "io.kubernetes.cri.container-type": "sandbox"}):
        id = started(runc, bundle(asked, edit=hooked(install)))
        assert mount_points(runc, id) == mount_points(runc, plain)
        assert device_rules(runc, id) == device_rules(runc, plain)
        runc("delete", "--force", id)
    nothing_is_booked(install)


def test_an_image_cannot_ask(install, bundle, runc):
    env = ["NVIDIA_VISIBLE_DEVICES=all", "T9K_GPU_PERCENT=100", "GPU_HOOK_MEMORY_MIB=99999"]
    started(runc, bundle(env=env, edit=hooked(install)))
    nothing_is_booked(install)


def test_no_gpu_but_the_driver(install, bundle, runc):
    id = started(runc, bundle({"NVIDIA_VISIBLE_DEVICES": "none"}, edit=hooked(install)))
    top = f"/proc/{runc.pid(id)}/root"
    if install.grants():  # driver files and no node
        assert os.path.exists(f"{top}{LIBDIR}/libcuda.so.1")
    assert not [name for name in os.listdir(f"{top}/dev") if name.startswith("nvidia")]
    assert not [rule for rule in device_rules(runc, id) if "195" in rule]


# --- requests, nodes and bundles that are refused ---


@pytest.mark.parametrize(
    ("annotations", "code"),
    [
        ({"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_PERCENT": "130"}, "GH-101"),
        ({**ASK, "gpu-hook.io/memori": "1Gi"}, "GH-102"),
        ({**ASK, "gpu-hook.io/memory": "1Gi\n2Gi"}, "GH-105"),
        ({**ASK, "gpu-hook.io/memory": "9" * 100_000}, "GH-105"),
        ({"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_MEMORY": "999999"}, "GH-201"),
        ({"NVIDIA_VISIBLE_DEVICES": "7", "T9K_GPU_MEMORY": "1"}, "GH-202"),
    ],
)
def test_bad_requests(install, bundle, runc, annotations, code):
    assert len(refused(runc, bundle(annotations, edit=hooked(install)), code, install)) < 600


def test_all_problems_at_once(install, bundle, runc):
    bad = {"gpu-hook.io/memory": "x", "gpu-hook.io/compute": "900", "gpu-hook.io/gpu": "1"}
    done = runc.create(bundle(bad, edit=hooked(install)))
    message = done.stderr
    assert done.returncode == 1 and message.count("GH-10") == 3
    nothing_is_booked(install)


def test_a_full_gpu(install, bundle, runc, tmp_path):
    ask = {"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_PERCENT": "60"}
    id = started(runc, bundle(ask, edit=hooked(install)))
    folder = bundle(ask, rootfs=tiny_image.busybox(tmp_path / "second"), edit=hooked(install))
    done = runc.create(folder)
    assert done.returncode == 1 and "GH-201: " in done.stderr
    [grant] = install.grants()
    assert grant.who.id == id
    runc("delete", "--force", id)
    started(runc, folder)


def stale(install: Install) -> None:
    (install.state / "inventory.json").unlink()


def no_shim(install: Install) -> None:
    (install.prefix / "lib/shim/libcuda.so.1").unlink()


def loose_shim(install: Install) -> None:
    (install.prefix / "lib/shim/libcuda.so.1").chmod(0o777)


def no_driver_file(install: Install) -> None:
    (install.driver / f"usr/lib64/libcuda.so.{DRIVER}").unlink()


def bad_settings(install: Install) -> None:
    (install.prefix / "etc/settings.yaml").write_text("{")


@pytest.mark.parametrize(
    ("fault", "codes"),
    [
        (stale, ["GH-301"]),
        (no_shim, ["GH-305"]),
        (loose_shim, ["GH-305"]),
        (no_driver_file, ["GH-301", "GH-302"]),
        (bad_settings, ["GH-501"]),
    ],
)
def test_a_node_that_is_not_fit(install, bundle, runc, fault, codes):
    fault(install)
    done = runc.create(bundle(ASK, edit=hooked(install, "createRuntime")))
    assert done.returncode == 1 and any(f"stderr: {code}: " in done.stderr for code in codes), done.stderr
    nothing_is_booked(install)


def all_devices(spec: dict[str, Any]) -> None:
    spec["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]


def other_gpu(spec: dict[str, Any]) -> None:
    spec["linux"]["resources"]["devices"].append({"allow": True, "type": "c", "major": 195, "minor": 1, "access": "rw"})


def other_gpus_node(spec: dict[str, Any]) -> None:
    rule = {"allow": True, "type": "c", "major": 226, "minor": 129, "access": "r"}
    spec["linux"]["resources"]["devices"].append(rule)


@pytest.mark.parametrize("edit", [all_devices, other_gpu, other_gpus_node])
def test_a_container_that_reaches_other_gpus(install, bundle, runc, edit):
    node = GpuNode(UUIDS[1], "graphics", "/dev/dri/renderD129", 226, 129)
    save_inventory(install.settings, install.inventory.replace(nodes=(node,)))
    refused(runc, bundle(ASK, edit=hooked(install, "prestart", edit=edit)), "GH-403", install)


def test_a_cgroup_that_is_shared(install, bundle, runc, tmp_path):
    """In a cgroup with other processes a device rule would open the GPU to all of them: refused."""

    def shared(spec: dict[str, Any]) -> None:
        spec["linux"]["cgroupsPath"] = f"/gh-test-shared-{os.getpid()}"

    first = started(runc, bundle(edit=shared, rootfs=tiny_image.busybox(tmp_path / "first")))
    message = refused(runc, bundle(ASK, edit=hooked(install, edit=shared)), "GH-403", install)
    assert f"process {runc.pid(first)}" in message


def test_a_volume_at_the_libraries(install, bundle, runc, tmp_path):
    (tmp_path / "volume").mkdir()

    def volume(spec: dict[str, Any]) -> None:
        spec["mounts"].append(
            {"destination": LIBDIR, "type": "bind", "source": str(tmp_path / "volume"), "options": ["rbind", "rw"]}
        )

    refused(runc, bundle(ASK, edit=hooked(install, "prestart", edit=volume)), "GH-402", install)
    assert os.listdir(tmp_path / "volume") == []


def test_an_empty_tmpfs_at_run_is_fine(install, bundle, runc):
    """A tmpfs on /run, as docker --tmpfs, podman and systemd images have it."""

    def tmpfs(spec: dict[str, Any]) -> None:
        spec["mounts"].append({"destination": "/run", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"]})

    id = started(runc, bundle(ASK, edit=hooked(install, edit=tmpfs)))
    assert os.path.exists(f"/proc/{runc.pid(id)}/root/run/gpu-hook/policy")


def on_cgroup_v2(command: str, out: Path) -> "tuple[int, str]":
    """(exit status, output) of a shell command where only cgroup v2 is mounted."""
    script = f"umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && {command}"
    # A file, since a container that starts would keep a pipe open.
    with open(out, "w+") as file:
        enter = ["unshare", "-m", "--propagation", "private", "sh", "-c", script]
        status = subprocess.run(enter, stdout=file, stderr=file, stdin=subprocess.DEVNULL).returncode
        file.seek(0)
        return status, file.read()


def test_the_wrappers_work_is_found_on_cgroup_v2(install, bundle, runc, tmp_path):
    folder, id = bundle(ASK, edit=hooked(install)), runc.new_id()
    calls = (
        f"{install.program} --root {runc.root} create --bundle {folder} {id} && runc --root {runc.root} delete -f {id}"
    )
    status, said = on_cgroup_v2(calls, tmp_path / "out")
    assert status == 0, said
    nothing_is_booked(install)


def test_user_namespace_without_a_driver(install, bundle, runc):
    """In a user namespace the host's nodes are mounted, and without a real driver the host has none: refused."""

    def edit(spec: dict[str, Any]) -> None:
        spec["linux"]["namespaces"].append({"type": "user"})
        spec["linux"]["uidMappings"] = spec["linux"]["gidMappings"] = [
            {"containerID": 0, "hostID": 100000, "size": 65536}
        ]

    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        os.chmod(folder, 0o755)
        rootfs = tiny_image.busybox(Path(folder) / "rootfs")
        for path in [rootfs, *rootfs.rglob("*")]:
            os.chown(path, 100000, 100000, follow_symlinks=False)
        started(runc, bundle(rootfs=rootfs, edit=edit))
        message = refused(
            runc, bundle(ASK, rootfs=rootfs, edit=hooked(install, "prestart", edit=edit)), "GH-405", install
        )
        assert "user namespace" in message and "gpu-hook-runtime" in message
        runc.close()


@pytest.mark.skipif(not shutil.which("crun"), reason="crun is not installed")
def test_crun(install, bundle, tmp_path):
    """crun calls the same hooks at another moment than runc."""
    folder = bundle(ASK, edit=hooked(install))
    crun = f"crun --root {tmp_path}/crun"
    script = f"""
        umount /sys/fs/cgroup/unified  # Debian's crun refuses the hybrid layout
        {crun} create --bundle {folder} box-{os.getpid()} && {crun} start box-{os.getpid()} || exit 1
        {crun} exec box-{os.getpid()} md5sum {LIBDIR}/libcuda.so.1 /run/gpu-hook/driver/cuda
        {crun} exec box-{os.getpid()} cat /dev/nvidia0
        ls {install.state}/ledger
        {crun} delete --force box-{os.getpid()}
    """
    with open(tmp_path / "out", "w+") as out:
        command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script]
        subprocess.run(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        out.seek(0)
        lines = out.read().splitlines()
    assert lines[0].split()[0] == md5(install.prefix / "lib/shim/libcuda.so.1"), lines
    assert lines[1].split()[0] == md5(install.driver / f"usr/lib64/libcuda.so.{DRIVER}")
    assert "No such device or address" in lines[2] and lines[3].endswith(".json")
    nothing_is_booked(install)


# --- the state on standard input ---


def call(install: Install, stage: str, state: object, **kw: Any) -> "subprocess.CompletedProcess[str]":
    data = state if isinstance(state, str) else json.dumps(state)
    command = [str(install.prefix / "bin/oci-gpu-hook"), *stage.split()]
    return subprocess.run(command, input=data, text=True, capture_output=True, **kw)


@pytest.fixture
def state(bundle: Bundle) -> dict[str, Any]:
    """A state document whose pid is nobody's."""
    done = subprocess.Popen(["true"])
    done.wait()
    return {
        "ociVersion": "1.0.2",
        "id": "box",
        "pid": done.pid,
        "status": "creating",
        "bundle": str(bundle(ASK)),
        "annotations": ASK,
    }


def test_bad_states(install, state, runc, bundle, tmp_path):
    other = started(runc, bundle(rootfs=tiny_image.busybox(tmp_path / "other")))
    before = mount_points(runc, other)
    rootless = {**state, "bundle": str(tmp_path / "nowhere"), "pid": os.getpid()}
    states: list[object] = ["", "garbage", "{", "[]", '{"pid": 1}', " " * (1 << 20) + "x", json.dumps(state)[:-9]]
    states += [state, *({**state, "pid": pid} for pid in (0, 1, 2, os.getpid(), runc.pid(other), "7", -1, None))]
    states += [{**state, "id": 7}, {**state, "bundle": "."}, {**state, "annotations": ["x"]}]
    for stage in ("prestart", "createRuntime"):
        for document in states:
            done = call(install, stage, document)
            [line] = done.stderr.splitlines()
            assert done.returncode == 1 and line.startswith("GH-406: ") and len(line) < 300, (document, line)
        done = call(install, stage, rootless)
        assert done.returncode == 1 and done.stderr.startswith("GH-401: "), done.stderr
    assert mount_points(runc, other) == before
    nothing_is_booked(install)


def test_a_state_that_go_writes_six_times_as_long(install, bundle, runc):
    """Go's JSON has `<` as \\u003c."""
    id = started(runc, bundle({**ASK, "other": "<" * 200_000}, edit=hooked(install, "prestart")))
    [grant] = install.grants()
    assert grant.who.id == id


def test_a_container_of_another_runtime(install, state, rootfs):
    """The pid and root directory are right, but the caller of the hook is not the parent of that process."""
    pid = int(box_maker.started(json.dumps([str(rootfs), [], 0, []])))
    try:
        document = {**state, "pid": pid}
        ours = call(install, "prestart", document)
        assert ours.stderr.startswith("GH-403: "), ours.stderr  # one step further: it has no cgroup of its own
        command = ["sh", "-c", f"{install.prefix}/bin/oci-gpu-hook prestart; exit $?"]
        foreign = subprocess.run(command, input=json.dumps(document), text=True, capture_output=True)
        assert foreign.returncode == 1 and foreign.stderr.startswith("GH-406: "), foreign.stderr
        assert f"process {pid} " in foreign.stderr
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize(
    "stage", ["", "startContainer", "prestart extra", "prestart ../x", "prestart a b", "create", "poststart"]
)
def test_bad_stages(install, state, stage):
    done = call(install, stage, state)
    assert done.returncode == 1 and done.stderr.startswith("GH-406: ")


def test_poststop_never_fails(install, state, bundle, runc):
    for document in ("", "garbage", state, {**state, "pid": None}):
        assert call(install, "poststop", document).returncode == 0
    (install.prefix / "etc/settings.yaml").unlink()
    assert call(install, "poststop", state).returncode == 0


def test_poststop_of_a_living_container_frees_nothing(install, bundle, runc):
    folder = bundle(ASK, edit=hooked(install))
    id = started(runc, folder)
    said = {"ociVersion": "1.0.2", "id": id, "pid": 0, "status": "stopped", "bundle": str(folder)}
    assert call(install, "poststop", said).returncode == 0
    assert runc("delete", id).returncode != 0  # it runs
    assert len(install.grants()) == 1


# --- after the wrapper ---


def test_a_gpu_that_leaves_the_node_meanwhile(install, bundle, runc, tmp_path):
    file = install.state / "inventory.json"
    save_inventory(install.settings, install.inventory.replace(gpus=install.inventory.gpus[1:]))
    shutil.copy2(file, tmp_path / "later")
    save_inventory(install.settings, install.inventory)

    def replaced(spec: dict[str, Any]) -> None:
        words = ["cp", "-p", str(tmp_path / "later"), str(file)]
        spec["hooks"]["prestart"].insert(0, {"path": "/bin/cp", "args": words})

    done = runc.create(bundle(ASK, edit=hooked(install, "prestart", edit=replaced)), install)
    assert done.returncode == 1 and f"GH-202: GPU {UUIDS[0]} is not on this node" in done.stderr, done.stderr


def test_the_wrappers_work_is_found(install, bundle, runc):
    folder = bundle(ASK, edit=hooked(install))
    done = runc.create(folder, install)
    assert done.returncode == 0, done.stderr
    [grant] = install.grants()
    assert grant.who.root == str(runc.root)
    points = mount_points(runc, runc.ids[-1])
    assert len(points) == len(set(points))  # nothing was mounted twice
    assert runc("start", runc.ids[-1]).returncode == 0


@pytest.mark.parametrize("path", [f"{LIBDIR}/libcuda.so.1", f"{LIBDIR}/libnvidia-ml.so", "/run/gpu-hook/policy"])
@pytest.mark.parametrize("how", ["umount {}", "mount --bind /etc/hostname {}"])
def test_the_wrappers_work_is_undone(install, bundle, runc, tmp_path, path, how):
    """Between wrapper and hook another hook unmounts a shim or the policy page, or mounts over it."""
    rootfs = tiny_image.busybox(tmp_path / "image")
    vandal = tmp_path / "vandal"
    command = how.format(f"{rootfs}{path}")
    vandal.write_text(f"#!/bin/sh\nread state\npid=${{state#*'\"pid\":'}}\nnsenter -m -t ${{pid%%,*}} {command}\n")
    vandal.chmod(0o755)

    def edit(spec: dict[str, Any]) -> None:
        spec["hooks"]["prestart"].insert(0, {"path": str(vandal), "env": ["PATH=/usr/bin:/bin"]})

    done = runc.create(bundle(ASK, rootfs=rootfs, edit=hooked(install, edit=edit)), install)
    assert done.returncode == 1 and "stderr: GH-405: " in done.stderr and path in done.stderr, done.stderr
    assert install.grants() == ()


@pytest.mark.parametrize("ask", [{"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_PERCENT": "30"}, {}], ids=["keys", "env"])
def test_the_wrappers_work_where_env_is_trusted(install, bundle, runc, ask):
    """The variables that the wrapper wrote into the environment are not taken for another request."""
    install.set(trust_env=True)
    env = () if ask else ("NVIDIA_VISIBLE_DEVICES=0", "T9K_GPU_PERCENT=30")
    done = runc.create(bundle(ask, env, edit=hooked(install)), install)
    assert done.returncode == 0, done.stderr
    assert len(install.grants()) == 1


@pytest.mark.parametrize("mode", ["on-top", "below"])
def test_beside_the_nvidia_runtime_the_hook_alone_is_not_enough(install, bundle, runc, mode):
    install.set(mode=mode)
    refused(runc, bundle(ASK, edit=hooked(install, "prestart")), "GH-409", install)


def test_without_standard_input(install):
    command = ["sh", "-c", f"{install.prefix}/bin/oci-gpu-hook prestart <&-"]
    done = subprocess.run(command, text=True, capture_output=True)
    assert done.returncode == 1 and done.stderr.startswith("GH-406: "), done.stderr


def test_a_marker_alone_is_not_believed(install, bundle, runc):
    id = started(runc, bundle({**ASK, "gpu-hook.io/grant": "0" * 32}, edit=hooked(install)))
    assert len(install.grants()) == 1
    assert f"{LIBDIR}/libcuda.so.1" in mount_points(runc, id)


# --- attacks by the image ---


@pytest.fixture(scope="session")
def evil(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that leaves a file beside itself wherever it is loaded."""
    folder = tmp_path_factory.mktemp("evil")
    source = f"""
        #include <fcntl.h>
        __attribute__((constructor)) static void pwn(void) {{ open("{folder}/pwned", O_CREAT | O_WRONLY, 0600); }}
    """
    (folder / "evil.c").write_text(source)
    zig = [*ZIG, "-shared", "-fPIC", "-o", str(folder / "evil.so")]
    subprocess.run([*zig, str(folder / "evil.c")], check=True, env={**os.environ, "ZIG_LOCAL_CACHE_DIR": str(folder)})
    (folder / "evil.py").write_text(f"open('{folder}/pwned', 'w')\n")
    for name in ("sitecustomize.py", "usercustomize.py", "os.py", "oci_hook.py", "ctypes.py"):
        (folder / name).symlink_to("evil.py")
    return folder


def hostile(folder: Path) -> dict[str, str]:
    return {
        "LD_PRELOAD": f"{folder}/evil.so",
        "LD_LIBRARY_PATH": str(folder),
        "LD_AUDIT": f"{folder}/evil.so",
        "PATH": str(folder),
        "PYTHONPATH": str(folder),
        "PYTHONHOME": str(folder),
        "PYTHONSTARTUP": f"{folder}/evil.py",
        "PYTHONINSPECT": "1",
    }


def test_hostile_environment_of_the_hook(install, bundle, runc, evil, state):
    """A runtime may start the hook with the image's environment, in a directory of the image."""
    assert subprocess.run(["/bin/true"], env=hostile(evil)).returncode == 0
    assert (evil / "pwned").exists()  # the trap works
    (evil / "pwned").unlink()
    done = call(install, "prestart", state, env=hostile(evil), cwd=evil)
    assert done.stderr.startswith("GH-406: ")
    assert not (evil / "pwned").exists()


def test_hostile_environment_of_the_image(install, bundle, runc, evil):
    def edit(spec: dict[str, Any]) -> None:
        for entries in spec["hooks"].values():
            for entry in entries:
                del entry["env"]  # even then

    env = [f"{k}={v}" for k, v in hostile(evil).items() if k != "PATH"]
    id = started(runc, bundle(ASK, env=env, edit=hooked(install, edit=edit)))
    assert f"{LIBDIR}/libcuda.so.1" in mount_points(runc, id)
    assert not (evil / "pwned").exists()


def test_nothing_is_inherited(install, state):
    """Descriptors beside the standard ones are closed before a byte of the state is read (CVE-2024-21626)."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    command = [str(install.prefix / "bin/oci-gpu-hook"), "prestart"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, close_fds=False) as hook:
        os.close(writer)
        assert os.read(reader, 1) == b""
        assert hook.poll() is None
        assert os.readlink(f"/proc/{hook.pid}/cwd") == "/"
        assert b"GH-406" in hook.communicate(json.dumps(state).encode())[1]
    os.close(reader)


@pytest.mark.parametrize(
    "target", ["../../../../../../..", "/proc/1/root/dev", "/", "/dev", "/run/gpu-hook/driver/cuda"]
)
@pytest.mark.parametrize(
    "path", [f"{LIBDIR}/libcuda.so.1", LIBDIR, "/run/gpu-hook", "/usr/bin/nvidia-smi", "/usr", "/run"]
)
def test_images_of_links(install, bundle, runc, tmp_path, path, target):
    rootfs = tiny_image.busybox(tmp_path / "image")
    where = Path(f"{rootfs}{path}")
    if where.is_dir():
        subprocess.run(["rm", "-r", str(where)], check=True)
    where.symlink_to(target)
    before = host_view(install, tmp_path)
    done = runc.create(bundle(ASK, rootfs=rootfs, edit=hooked(install)))
    if done.returncode == 0:
        top = f"/proc/{runc.pid(runc.ids[-1])}/root"
        found = runc.exec(runc.ids[-1], "md5sum", f"{LIBDIR}/libcuda.so.1", f"{LIBDIR}/libcuda.so").stdout.split()
        assert found[0] == found[2] == md5(install.prefix / "lib/shim/libcuda.so.1"), top
    else:
        assert "stderr: GH-40" in done.stderr, done.stderr
        nothing_is_booked(install)
    assert host_view(install, tmp_path) == before


def md5(path: Path) -> str:
    return subprocess.run(["md5sum", path], capture_output=True, text=True, check=True).stdout.split()[0]


def host_view(install: Install, tmp_path: Path) -> set[object]:
    """What an escape would change on the host: mounts, names in directories, files of the install and the driver."""
    view: set[object] = {
        (str(path), path.lstat().st_ino, path.lstat().st_mode, path.lstat().st_mtime_ns)
        for top in (install.prefix, install.driver)
        for path in top.rglob("*")
    }
    for top in ("/", "/usr", "/usr/lib", "/usr/bin", "/usr/lib64", "/dev", "/run"):
        view |= {
            (top, name)
            for name in os.listdir(top)
            if name == "gpu-hook" or any(word in name for word in ("nvidia", "cuda"))
        }
    view -= {("/run", "gpu-hook"), ("/usr/bin", "gpu-hook")}  # an install of this machine's own may come and go
    view -= {("/dev", "nvidiactl")}  # NVIDIA's real libnvidia-ml, in other tests, makes it
    return view | {
        line
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if str(tmp_path) in line and "/state/share/" not in line
    }


# --- death and delay ---

KILLER = """
import sys
prefix, stage, limit, report = sys.argv[1:]
sys.path.insert(0, prefix + "/lib/gpu-hook")
import os
from oci_hook import hook

count = 0
def step(frame, event, argument):
    global count
    if "oci_hook" in frame.f_code.co_filename:
        count += 1
        if count == int(limit):
            os.kill(os.getpid(), 9)

sys.setprofile(step)
status = hook.main(prefix, [stage])
sys.setprofile(None)
open(report, "w").write(str(count))
sys.exit(status)
"""


SWAPPER = """
import ctypes, os, random, select, sys
rootfs, link, number = sys.argv[1:]
libc, rng = ctypes.CDLL(None), random.Random(int(number))
pace = 0.0005 * 10 ** (int(number) % 4)
renameat2 = 316 if os.uname().machine == "x86_64" else 276

def exchange(name):
    paths = (link + name.replace("/", "-")).encode(), f"{rootfs}/{name}".encode()
    assert libc.syscall(renameat2, -100, paths[0], -100, paths[1], 2) == 0

while not select.select([0], [], [], rng.random() * pace)[0]:
    name = rng.choice(["usr/lib64", "run", "usr/bin"])
    exchange(name)
    select.select([0], [], [], rng.random() * pace)
    exchange(name)
"""


def killed_at(install: Install, folder: Path, limit: int) -> Edit:
    """Our hook, killed at this step. A step: a call or return of one of our functions, or of a C function by ours."""
    script = folder / "killer.py"
    script.write_text(KILLER)

    def edit(spec: dict[str, Any]) -> None:
        arguments = [
            "python3",
            "-I",
            "-S",
            str(script),
            str(install.prefix),
            "prestart",
            str(limit),
            str(folder / "steps"),
        ]
        spec["hooks"] = {"prestart": [{"path": "/usr/bin/python3", "args": arguments, "env": ["PATH=/usr/bin:/bin"]}]}

    return edit


@pytest.mark.slow
def test_killed_at_every_step(install, bundle, runc, tmp_path):
    """After the next sweep nothing is booked, nothing is left on disk, and the same container can be created."""
    started(runc, bundle(ASK, edit=killed_at(install, tmp_path, 0)))
    steps = int((tmp_path / "steps").read_text())
    assert steps > 500
    runc("delete", "--force", runc.ids[-1])
    booked = killed = 0
    for limit in range(1, steps, steps // 40):
        done = runc.create(bundle(ASK, edit=killed_at(install, tmp_path, limit)))
        if done.returncode == 0:  # fewer mounts on this machine than before, thus fewer steps
            assert int((tmp_path / "steps").read_text()) < limit
            runc("delete", "--force", runc.ids[-1])
            continue
        assert done.returncode == 1, limit
        killed += 1
        booked += len(list((install.state / "ledger").glob("*.json")))
        assert install.grants() == ()
        with_hook = bundle(ASK, edit=hooked(install, "prestart"))
        done = runc.create(with_hook, id=runc.ids[-1])
        assert done.returncode == 0, (limit, done.stderr)
        [grant] = install.grants()
        assert [p.stem for p in (install.state / "ledger").glob("*.json")] == [grant.key]
        assert [p.name for p in (install.state / "pages").iterdir()] == [grant.key]
        runc("delete", "--force", runc.ids[-1])
    assert booked > 5 and killed > 20  # some were killed while they held a grant


@pytest.mark.slow
def test_swapped_while_the_hook_runs(install, bundle, runc, tmp_path):
    """A process of the host exchanges folders of the image for links out of it, while real runc calls real hooks."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "libcuda.so.1").write_text("the host's own")
    swapper = tmp_path / "swapper.py"
    swapper.write_text(SWAPPER)
    (tmp_path / "own").write_text("the image's own")
    shim, own = md5(install.prefix / "lib/shim/libcuda.so.1"), md5(tmp_path / "own")
    outcomes = []
    for number in range(30):
        rootfs = tiny_image.busybox(tmp_path / f"image{number}")
        (rootfs / "usr/lib64/libcuda.so.1").write_text("the image's own")
        for name in ("usr/lib64", "run", "usr/bin"):
            (rootfs.parent / f"link{number}-{name.replace('/', '-')}").symlink_to(
                "../../../../../../../.." + str(outside)
            )
        arguments = [sys.executable, str(swapper), str(rootfs), str(rootfs.parent / f"link{number}-"), str(number)]
        before = host_view(install, tmp_path) | set(os.listdir(outside))
        with subprocess.Popen(arguments, stdin=subprocess.PIPE) as process:
            done = runc.create(bundle(ASK, rootfs=rootfs, edit=hooked(install, "prestart")))
            process.communicate(b"\n")
        outcomes.append(done.returncode)
        if done.returncode == 0:
            found = runc.exec(runc.ids[-1], "md5sum", f"{LIBDIR}/libcuda.so.1").stdout.split()
            assert not found or found[0] in (shim, own)  # see tests/apply/test_to_container.py
            runc("delete", "--force", runc.ids[-1])
        else:
            assert "stderr: GH-40" in done.stderr, done.stderr
            nothing_is_booked(install)
        assert host_view(install, tmp_path) | set(os.listdir(outside)) == before
    assert set(outcomes) == {0, 1}


@pytest.mark.slow
def test_a_ledger_that_is_busy(install, bundle, runc):
    """The wait for the lock ends before the hook's deadline, which is before the runtime's; the holder is named."""
    import fcntl

    with open(install.state / "ledger/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = runc.create(bundle(ASK, edit=hooked(install, "prestart")))
        crowded = len(Path("/proc/locks").read_bytes()) > 1 << 20  # other programs of this machine
    assert done.returncode == 1
    assert "stderr: GH-303: " in done.stderr and "ledger/lock is locked for 5 s" in done.stderr, done.stderr
    assert f"by process {os.getpid()};" in done.stderr or crowded
    nothing_is_booked(install)
    assert lock_file.LOCK_SECONDS < hook.DEADLINE


@pytest.mark.parametrize("deadline", [hook.DEADLINE, boundary_stage.DEADLINE, runtime.DEADLINE])
def test_the_runtime_gives_a_hook_time_to_start(deadline):
    """While a machine boots with all its containers, a hook took more than 10 s of which 2 were for the start of Python."""
    assert deadline == 20 and to_spec.HOOK_TIMEOUT == 30


@pytest.mark.parametrize("left", [1.0, 2.0])
def test_a_lock_is_waited_for_no_longer_than_there_is_time(tmp_path, left):
    """The lock's message comes before the program's deadline, however much of its time the program has spent."""
    import fcntl

    code = f"""
import fcntl, sys, time
sys.path.insert(0, {str(REPO)!r})
from oci_hook.errors import GhError
from oci_hook.linux import limits
from oci_hook.linux.lock import lock_file
def late(*_: object) -> None:
    raise TimeoutError
limits.limit({left}, late)
try:
    lock_file({str(tmp_path / "lock")!r}, fcntl.LOCK_EX)
except GhError as e:
    print(e)
"""
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert out.startswith("GH-303: ") and "is locked for" in out


@pytest.mark.slow
def test_the_containers_init_dies_meanwhile(install, bundle, runc, tmp_path):
    """A hook before ours kills the container's init: our hook refuses, and no grant is left."""
    vandal = tmp_path / "vandal"
    vandal.write_text("#!/bin/sh\nread state\npid=${state#*'\"pid\":'}\nkill -9 ${pid%%,*}\n")
    vandal.chmod(0o755)

    def edit(spec: dict[str, Any]) -> None:
        spec["hooks"]["prestart"].insert(0, {"path": str(vandal), "env": ["PATH=/usr/bin:/bin"]})

    done = runc.create(bundle(ASK, edit=hooked(install, edit=edit)))
    assert done.returncode == 1
    nothing_is_booked(install)


# --- what it loads ---

SLOW_IMPORTS = {
    "typing", "dataclasses", "json", "re", "argparse", "pathlib", "subprocess", "logging", "enum", "collections",
    "signal", "socket", "hashlib", "traceback", "contextlib", "functools", "inspect",
}  # fmt: skip
LOADED = """
import sys
sys.path.insert(0, {package!r})
import oci_hook.hook
status = oci_hook.hook.main({prefix!r}, ["prestart"])
import os
os.write(1, " ".join(sys.modules).encode())
"""


def loaded(install: Install, document: dict[str, Any]) -> set[str]:
    code = LOADED.format(package=str(install.prefix / "lib/gpu-hook"), prefix=str(install.prefix))
    command = [own_python.program(install.settings), "-I", "-S", "-c", code]
    return set(subprocess.run(command, input=json.dumps(document), text=True, capture_output=True).stdout.split())


def test_what_it_loads(install, bundle, runc, tmp_path, state):
    nothing = loaded(install, {**state, "annotations": {}})
    assert "oci_hook.core.request" in nothing
    assert not nothing & (SLOW_IMPORTS | {"ctypes", "_socket", "oci_hook.ledger.store"})
    assert not loaded(install, state) & SLOW_IMPORTS  # refused for its pid


# --- the snippet ---


def test_the_snippet_is_complete():
    for stage, entries in json.loads(SNIPPET.read_text())["hooks"].items():
        [entry] = entries
        assert entry["path"].startswith("/") and entry["args"] == ["oci-gpu-hook", stage]
        assert entry["env"] and all(e.startswith("PATH=") for e in entry["env"])
        assert entry["timeout"] == to_spec.HOOK_TIMEOUT


def telling_no_bundle(folder: Path, install: Install, stage: str) -> Edit:
    """An edit that puts a program before our hook which changes the state as crun 1.25 writes it."""
    program = folder / "like-crun"
    other = 's#"bundle": *"[^"]*"#"bundle":"/"#'
    line = f"/bin/sed '{other}' >{folder}/told; exec {install.prefix}/bin/oci-gpu-hook {stage} <{folder}/told"
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)

    def edit(spec: dict[str, Any]) -> None:
        spec["hooks"] = {stage: [{"path": str(program)}]}

    return edit


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_a_runtime_that_tells_its_working_directory_as_the_bundle(install, bundle, runc, tmp_path, stage):
    """The bundle is taken from the runtime's command line."""
    folder = bundle(ASK, edit=telling_no_bundle(tmp_path, install, stage))
    id = started(runc, folder)
    (grant,) = install.grants()
    assert (grant.who.id, grant.who.bundle) == (id, str(folder))


def test_a_runtime_that_names_its_bundle_nowhere(install, bundle, runc, tmp_path):
    folder = bundle(ASK, edit=telling_no_bundle(tmp_path, install, "prestart"))
    done = runc("run", runc.new_id(), cwd=str(folder))
    assert done.returncode == 1 and "GH-406: " in done.stderr and "--bundle" in done.stderr, done
    nothing_is_booked(install)
