"""Each engine of the machine with systemd's cgroups on pure cgroup v2: a container has its GPU and no other, and keeps it when
systemd applies its device rules anew."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from testbed.engines.box import IMAGE, PAUSE
from tests.machine.conftest import ASKS, HAS_SHARE, LOOK, SUITE, Inside, has_its_gpu_alone

pytestmark = [pytest.mark.machine, pytest.mark.root, pytest.mark.slow]

MAPPED = "--uidmap 0:100000:65536 --gidmap 0:100000:65536"
# systemd applies a scope's device rules anew.
ANEW = ("systemctl daemon-reload", "systemctl set-property --runtime {scope} TasksMax=500")

CRI = f"""
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
"""


def test_the_machine_is_what_it_says(machine: Inside) -> None:
    assert machine("stat -fc %T /sys/fs/cgroup; ps -o comm= 1") == "cgroup2fs\nsystemd\n"
    assert machine("cat /sys/module/apparmor/parameters/enabled") == "Y\n"


def test_docker(installed: Inside) -> None:
    """Also docker's own AppArmor profile is in force."""
    assert installed("docker info --format '{{.CgroupDriver}} {{.CgroupVersion}}'") == "systemd 2\n"
    id = installed(f"docker run -d --name one --network none --runtime gpu-hook {ASKS} {IMAGE} sleep 1000").strip()
    look = f"docker exec one sh -c '{LOOK}'"
    assert installed("docker exec one cat /proc/self/attr/current") == "docker-default (enforce)\n"
    assert has_its_gpu_alone(installed(look))
    for command in (*ANEW, "docker update --cpus 1 one"):
        installed(command.format(scope=f"docker-{id}.scope"))
        assert has_its_gpu_alone(installed(look)), command
    assert installed.holders() == ["one"]
    installed("docker rm -f one")
    assert installed.holders() == []


@pytest.mark.parametrize("option", ["--cgroupns host", "--security-opt apparmor=gh-own", "--read-only --cap-drop ALL"])
def test_docker_options(installed: Inside, option: str) -> None:
    if "gh-own" in option:
        rules = "#include <tunables/global>\\nprofile gh-own flags=(attach_disconnected) { file, network, capability, deny /root/** rwl, }"
        installed(f"printf '{rules}\\n' >/root/profile; apparmor_parser --replace --skip-cache /root/profile")
    done = f"docker run --rm --network none --runtime gpu-hook {ASKS} {option} {IMAGE} gpu-probe info alloc 64"
    assert HAS_SHARE in installed(done)


def test_more_than_there_is(installed: Inside) -> None:
    said = installed.fails(f"docker run --rm --runtime gpu-hook --annotation gpu-hook.io/memory=999Gi {IMAGE} true")
    assert "GH-201" in said
    assert installed.holders() == []


@contextmanager
def docker_with(inside: Inside, key: str, value: object) -> Iterator[None]:
    """docker with a setting by which it has images of its own."""
    file = "/etc/docker/daemon.json"
    restart = "systemctl reset-failed docker; systemctl restart docker"  # systemd counts its starts
    edit = f"import json; s = json.load(open({file!r})); s[{key!r}] = {value!r}; json.dump(s, open({file!r}, 'w'))"
    inside(f"cp {file} /root/daemon.json; python3 - <<'EDIT'\n{edit}\nEDIT\n{restart}")
    try:
        inside("docker load -qi /share/with/images.tar")
        yield
    finally:
        inside(f"cp /root/daemon.json {file}; {restart}")


def test_docker_with_mapped_users(installed: Inside) -> None:
    """--userns-remap: in a user namespace no device node can be made."""
    with docker_with(installed, "userns-remap", "default"):
        said = installed(f"docker run --rm --network none --runtime gpu-hook {ASKS} {IMAGE} sh -c '{LOOK}'")
    assert HAS_SHARE in said and "nvidia0: No such device or address" in said, said


def test_docker_with_the_image_store_of_containerd(installed: Inside) -> None:
    with docker_with(installed, "features", {"containerd-snapshotter": True}):
        assert "io.containerd.snapshotter.v1" in installed("docker info --format '{{.DriverStatus}}'")
        installed(f"docker run -d --name six --network none --runtime gpu-hook {ASKS} {IMAGE} sleep 1000")
        for command in ("true", ANEW[0], "docker restart --time 0 six"):
            installed(command)
            assert has_its_gpu_alone(installed(f"docker exec six sh -c '{LOOK}'")), command
        installed("docker rm -f six")
    assert installed.holders() == []


def test_compose(installed: Inside) -> None:
    edit = f"""
import yaml
given = yaml.safe_load(open("/share/checkout/runtime-config/docker/compose.yaml"))
given["services"]["half"].update(image="{IMAGE}", network_mode="none")
yaml.safe_dump(given, open("compose.yaml", "w"))
"""
    installed(f"mkdir -p /root/composed; cd /root/composed; python3 - <<'EDIT'\n{edit}EDIT")
    compose = "/share/with/docker-compose --file /root/composed/compose.yaml"
    installed(f"{compose} up --detach")
    (grant,) = json.loads(installed("gpu-hook ps --json"))["containers"]
    assert grant["name"] == "composed-half-1"
    assert [(share["memory_mib"], share["compute"]) for share in grant["gpus"]] == [(4096, 30)]
    installed(f"{compose} down --timeout=0")
    assert installed.holders() == []


def test_podman_plays_what_it_wrote(installed: Inside) -> None:
    """`podman kube generate` writes each annotation as KEY/NAME, which podman 5.8 does not play. The pod's other container,
    its pause, has no share."""
    installed(f"podman run -d --name five --network none {ASKS} {IMAGE} sleep 1000000")
    installed("podman kube generate five | sed 's#/five:#:#' >/root/five.yaml; podman rm -f --time 0 five")
    installed("podman kube play --network none /root/five.yaml")
    try:
        assert installed.holders() == ["five-pod-five"]
        said = installed(f"podman exec five-pod-five sh -c '{LOOK}'")
        assert HAS_SHARE in said and "nvidia0: No such device or address" in said, said
    finally:
        installed("podman kube down --force /root/five.yaml")
    assert installed.holders() == []


@pytest.mark.parametrize("mapped", [False, True], ids=["", "uidmap"])
@pytest.mark.parametrize("runtime", ["gpu-hook", "runc", "crun"])
def test_podman(installed: Inside, runtime: str, mapped: bool) -> None:
    """By our runtime; and by the OCI hooks, with precreate, of both runtimes."""
    flags = f"--network none {ASKS} {MAPPED if mapped else ''}"
    said = installed(f"podman --runtime {runtime} run --rm {flags} {IMAGE} sh -c '{LOOK}'")
    # In a user namespace no device node can be made.
    assert HAS_SHARE in said if mapped else has_its_gpu_alone(said), said
    if mapped:
        assert "nvidia0: No such device or address" in said


@pytest.mark.parametrize("runtime", ["gpu-hook", "crun"])
def test_podman_maps_users_by_itself(installed: Inside, runtime: str) -> None:
    """From the subordinate ids of a user `containers`, who must be there for podman 5.8."""
    installed("id containers || useradd --system --no-create-home containers")
    said = installed(f"podman --runtime {runtime} run --rm --userns=auto --network none {ASKS} {IMAGE} sh -c '{LOOK}'")
    assert HAS_SHARE in said and "nvidia0: No such device or address" in said, said


def test_podman_keeps_its_gpu(installed: Inside) -> None:
    installed(f"podman run -d --name two --network none {ASKS} {IMAGE} sleep 1000")
    id = installed("podman inspect -f '{{.Id}}' two").strip()
    for command in ("true", *ANEW):
        installed(command.format(scope=f"libpod-{id}.scope"))
        assert has_its_gpu_alone(installed(f"podman exec two sh -c '{LOOK}'")), command
    installed("podman rm -f --time 0 two")


@pytest.mark.parametrize("mapped", [False, True], ids=["", "uidmap"])
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_podman_without_precreate(installed: Inside, runtime: str, mapped: bool) -> None:
    """The hook gives the share to the live container: crun 1.28 has the device program on the scope above its cgroup."""
    hook = "/etc/containers/oci/podman-hooks.d/gpu-hook-precreate.json"
    installed(f"mv {hook} /root/precreate.json")
    try:
        flags = f"--network none {ASKS} {MAPPED if mapped else ''}"
        said = installed(f"podman --runtime {runtime} run --rm {flags} {IMAGE} sh -c '{LOOK}'")
    finally:
        installed(f"mv /root/precreate.json {hook}")
    assert HAS_SHARE in said and "nvidia0: No such device or address" in said, said


@pytest.mark.parametrize("mapped", [False, True], ids=["", "user namespace"])
@pytest.mark.parametrize("way", ["runtime", "prestart", "createRuntime"])
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_runtimes_by_systemd(installed: Inside, runtime: str, way: str, mapped: bool) -> None:
    """What is in config.json is also systemd's, which keeps it. What a hook gives is lost where systemd (262, not 257) applies
    its rules anew."""
    id = f"{runtime}-{way}-{mapped}"
    bundle(installed, id, way, mapped)
    program = runtime
    if way == "runtime":
        installed(f"gpu-hook settings set runtime=$(command -v {runtime})")
        program = "/opt/gpu-hook/bin/gpu-hook-runtime"
    look = f"{runtime} exec {id} sh -c '{LOOK}'"
    try:
        start = f"{program} --root /run/{runtime} --systemd-cgroup run --detach --bundle /root/{id} {id}"
        installed(f"{start} </dev/null >/root/said 2>&1 || {{ cat /root/said; exit 1; }}")
        said = installed(look)
        assert HAS_SHARE in said and "nvidia0: No such device or address" in said, said
        installed(ANEW[0])
        keeps = way == "runtime" or SUITE != "sid"
        said = installed.run(look).stdout
        assert ("nvidia0: " + ("No such device or address" if keeps else "Operation not permitted")) in said, said
    finally:
        installed.run(f"{runtime} delete --force {id}; gpu-hook settings set runtime=$(command -v runc)")
    assert installed.holders() == []


def bundle(inside: Inside, id: str, way: str, mapped: bool) -> None:
    """A bundle of the image in /root/ID."""
    entry = {"path": "/opt/gpu-hook/bin/oci-gpu-hook", "args": ["oci-gpu-hook", way]}
    changes = {
        "annotations": {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": "1Gi"},
        "root": {"path": "rootfs"},
        "hooks": {} if way == "runtime" else {way: [entry]},
    }
    edit = f"""
import json
spec = json.load(open("config.json"))
spec.update({changes!r})
spec["process"].update(terminal=False, args=["sleep", "1000"])
del spec["process"]["rlimits"]
spec["process"]["capabilities"] = {{kind: ["CAP_MKNOD"] for kind in ("bounding", "effective", "permitted")}}
spec["linux"]["cgroupsPath"] = "system.slice:gh:{id}"
if {mapped}:
    maps = [{{"containerID": 0, "hostID": 100000, "size": 65536}}]
    spec["linux"].update(uidMappings=maps, gidMappings=maps)
    spec["linux"]["namespaces"].append({{"type": "user"}})
json.dump(spec, open("config.json", "w"))
"""
    owner = 100000 if mapped else 0
    inside(
        f"chmod 711 /root; mkdir -p /root/{id}/rootfs; cd /root/{id}\n"
        f"tar -xf /share/with/rootfs.tar -C rootfs; chown -Rh {owner}:{owner} rootfs; runc spec\n"
        f"python3 - <<'EDIT'\n{edit}EDIT"
    )


def test_containerd(installed: Inside) -> None:
    """By ctr, with and without systemd's cgroups."""
    ours = "--runc-binary /opt/gpu-hook/bin/gpu-hook-runtime"
    for more in ("", "--runc-systemd-cgroup --cgroup system.slice:gh:three"):
        asks = f"{ours} {more} {ASKS} --rm {IMAGE} three"
        said = installed(f"ctr run {asks} sh -c '{LOOK}'")
        assert HAS_SHARE in said and "nvidia0: No such device or address" in said, said
    assert "GH-201" in installed.fails(f"ctr run {ours} --annotation gpu-hook.io/memory=999Gi --rm {IMAGE} four true")


def test_containerds_cri(installed: Inside) -> None:
    """With systemd's cgroups, a setting that our handler takes over from runc's."""
    pod = "python3 -B /share/checkout/tests/machine/pod.py"
    installed(f"gpu-hook uninstall --engine containerd; cat >/etc/containerd/config.toml <<'TOML'\n{CRI}TOML")
    installed("gpu-hook install --engine containerd --restart; ctr -n k8s.io images import /share/with/images.tar")
    up = f"{pod} up {IMAGE} system.slice gpu-hook.io/devices=0 gpu-hook.io"
    sandbox, id = installed(f"{up}/memory=1Gi").split()
    assert installed.holders() == ["main"]
    for command in ("true", *ANEW):
        installed(command.format(scope=f"cri-containerd-{id}.scope"))
        assert has_its_gpu_alone(installed(f"{pod} exec {id} '{LOOK}'")), command
    installed(f"{pod} down {sandbox}")
    said = installed.fails(f"{up}/memory=999Gi")
    assert "GH-201" in said
    installed(f"{pod} down {said.split()[0]}")
    assert installed.holders() == []


@pytest.fixture(scope="module")
def plain(installed: Inside) -> Callable[[str], str]:
    """Words before a command that a user without rights runs; the images are in /tmp/images.tar."""
    installed("loginctl enable-linger plain; install -m 644 /share/with/images.tar /tmp/images.tar")
    installed.until("test -S /run/user/1000/bus")
    words = "PATH=/usr/share/docker.io/contrib:/usr/sbin:/usr/bin XDG_RUNTIME_DIR=/run/user/1000 HOME=/home/plain"
    words += " DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus DOCKER_HOST=unix:///run/user/1000/docker.sock"
    return f"runuser -u plain -- env -C /home/plain {words} {{}}".format


def test_rootless_podman_is_refused(installed: Inside, plain: Callable[[str], str]) -> None:
    """Where the OCI hooks are registered, too, podman does not pass the hook's line on. A container that asks for nothing runs."""
    installed(plain("podman load -qi /tmp/images.tar"))
    runs = f"podman --runtime /opt/gpu-hook/bin/gpu-hook-runtime run --rm --network none {{}} {IMAGE} echo it runs"
    assert "it runs" in installed(plain(runs.format("")))
    said = installed.fails(plain(runs.format("--annotation gpu-hook.io/memory=1Gi")))
    assert "executing [oci-gpu-hook precreate]: exit status 1" in said, said


def test_rootless_docker_is_refused(installed: Inside, plain: Callable[[str], str]) -> None:
    """gpu-hook is its default runtime. A container that asks for nothing, or in other systems' words, runs without a GPU."""
    runtime = {"default-runtime": "gpu-hook", "runtimes": {"gpu-hook": {"path": "/opt/gpu-hook/bin/gpu-hook-runtime"}}}
    installed(plain("mkdir -p .config/docker"))
    installed(f"echo '{json.dumps(runtime)}' >/home/plain/.config/docker/daemon.json; modprobe tun")
    unit = "systemd-run --user --unit rootless --property Delegate=yes --setenv=PATH=/usr/share/docker.io/contrib:/usr/sbin:/usr/bin"
    installed(plain(f"{unit} dockerd-rootless.sh --bridge=none --iptables=false --ip6tables=false"))
    try:
        installed.until(plain("docker info"), 300, "journalctl -b --no-pager -n 40 _UID=1000")
        assert "rootless" in installed(plain("docker info --format '{{.SecurityOptions}}'"))
        installed(plain("docker load -qi /tmp/images.tar"))
        runs = f"docker run --rm --network none {{}} {IMAGE} sh -c 'ls /dev; echo it runs'"
        for asks in ("", "-e NVIDIA_VISIBLE_DEVICES=all", "--annotation nvidia.com/gpumem=3000"):
            said = installed(plain(runs.format(asks)))
            assert "it runs" in said and "nvidia" not in said, said
        for asks in ("--annotation gpu-hook.io/memory=1Gi", "-v /dev/null:/run/gpu-hook/request/memory=1Gi"):
            said = installed.fails(plain(runs.format(asks)))
            assert "GH-303: the container asks for a share of a GPU, and the ledger of shares is root's" in said, said
    finally:
        installed(plain("systemctl --user stop rootless"))
