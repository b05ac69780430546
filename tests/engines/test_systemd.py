"""systemd for real, on cgroup v2: it keeps a container's GPUs across daemon-reload, since it was told of them.

runc asks it for a scope with the rules of config.json.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from testbed.engines.box import IMAGE, MEMORY_MIB, Place
from testbed.engines.systemd import SYSTEMD, Systemd
from testbed.until import until

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(not os.path.exists(SYSTEMD), reason="systemd is not installed"),
]


@pytest.fixture
def systemd(place: Place) -> Iterator[Systemd]:
    made = Systemd(place)
    yield made
    made.close()


@pytest.mark.parametrize("place", ("this machine",), indirect=True)
def test_daemon_reload(systemd: Systemd) -> None:
    bundle = systemd.bundle(annotations={"gpu-hook.io/devices": "0", "gpu-hook.io/memory": "1Gi"})
    done = systemd.runc("run", "--detach", "--bundle", str(bundle), "one")
    assert done.returncode == 0, done.stderr
    allowed = systemd("systemctl", "show", "gh-one.scope", "--property=DeviceAllow").stdout
    assert "/dev/char/195:0 rw\n" in allowed and "195:1 " not in allowed, allowed

    def opened() -> str:
        """What the kernel says of GPU 0, which is ours, and of GPU 1: whether there is a driver, or no permission."""
        script = "exec 2>&1; mknod /tmp/gpu1 c 195 1; cat </dev/nvidia0; cat </tmp/gpu1; rm /tmp/gpu1; true"
        return systemd.runc("exec", "--cap", "CAP_MKNOD", "one", "sh", "-c", script).stdout

    before = opened()
    assert "nvidia0: No such device or address" in before and "gpu1: Operation not permitted" in before
    for command in (("daemon-reload",), ("set-property", "--runtime", "gh-one.scope", "TasksMax=100")):
        assert systemd("systemctl", *command).returncode == 0
        assert opened() == before, command
    assert systemd.runc("delete", "--force", "one").returncode == 0


PROBE = ("gpu-probe", "info")
SEEN = f"device 0: Simulated GPU {MEMORY_MIB >> 10} GiB, 1024 MiB total"


@pytest.mark.parametrize("place", ("this machine",), indirect=True)
def test_podman_by_systemd(systemd: Systemd, place: Place) -> None:
    """podman asks systemd for each container's scope, which is its manager where systemd runs."""
    if not shutil.which("podman"):
        pytest.skip("no podman")
    folder, program = systemd.dir / "podman", f"{systemd.prefix}/bin/gpu-hook-runtime"
    # No limit of processes: this machine's cgroup v2 may be without that controller.
    words = ("run", "--rm", "--network=none", "--ulimit=host", "--pids-limit=-1")

    def podman(*words: str) -> "subprocess.CompletedProcess[str]":
        where = (f"--root={folder}/root", f"--runroot={folder}/run", f"--tmpdir={folder}/tmp", "--storage-driver=vfs")
        flags = ("--cgroup-manager=systemd", "--events-backend=file", *where)
        return systemd("env", f"TMPDIR={place.dir}", "podman", *flags, *words)

    assert podman("load", "--input", str(place.archive)).returncode == 0
    plain = podman("--runtime=runc", *words, IMAGE, "true")
    if plain.returncode:
        pytest.skip(f"podman does not work with systemd here: {plain.stderr[-200:]}")
    asks = ("--annotation", "gpu-hook.io/memory=1Gi")
    done = podman(f"--runtime={program}", *words, *asks, IMAGE, *PROBE)
    assert done.returncode == 0 and SEEN in done.stdout, done
    done = podman(f"--runtime={program}", *words, IMAGE, *PROBE)
    assert done.returncode == 3 and "libcuda.so.1: cannot open" in done.stderr, done


@pytest.mark.parametrize("place", ("this machine",), indirect=True)
def test_docker_by_systemd(systemd: Systemd, place: Place) -> None:
    if not shutil.which("dockerd") or not shutil.which("containerd"):
        pytest.skip("no dockerd and containerd")
    here = systemd.dir
    runtimes = {"runtimes": {"gpu-hook": {"path": f"{systemd.prefix}/bin/gpu-hook-runtime"}}}
    (here / "docker.json").write_text(json.dumps(runtimes))
    containerd = f"containerd --root {here}/cr --state {here}/cs --address {here}/c.sock"
    network = "--bridge none --iptables=false --ip-forward=false --ip-masq=false"
    dockerd = f"dockerd --config-file {here}/docker.json --containerd {here}/c.sock -H unix://{here}/d.sock {network}"
    dockerd += f" --exec-opt native.cgroupdriver=systemd --storage-driver vfs --pidfile {here}/d.pid"
    dockerd += f" --data-root {here}/dr --exec-root {here}/de"

    def docker(*words: str) -> "subprocess.CompletedProcess[str]":
        return systemd("docker", "-H", f"unix://{here}/d.sock", *words)

    for command, ready in (
        (containerd, lambda: (here / "c.sock").exists()),
        (dockerd, lambda: not docker("ps").returncode),
    ):
        systemd("sh", "-c", f"TMPDIR={place.dir} {command} >>{here}/daemons.log 2>&1 &")
        until(ready, lambda: (here / "daemons.log").read_text()[-2000:])
    assert docker("info", "--format", "{{.CgroupDriver}} {{.CgroupVersion}}").stdout == "systemd 2\n"
    assert docker("load", "--input", str(place.archive)).returncode == 0
    request = "--volume=/dev/null:/run/gpu-hook/request/memory=1Gi"
    done = docker("run", "--detach", "--runtime=gpu-hook", "--network=none", request, IMAGE, "sleep", "1000")
    assert done.returncode == 0, done.stderr
    id = done.stdout.strip()
    assert f"docker-{id}.scope" in systemd("systemctl", "list-units", "--type=scope", "--plain").stdout
    for _ in range(2):
        done = docker("exec", id, *PROBE)
        assert done.returncode == 0 and SEEN in done.stdout, done
        assert systemd("systemctl", "daemon-reload").returncode == 0
    assert docker("rm", "--force", id).returncode == 0
