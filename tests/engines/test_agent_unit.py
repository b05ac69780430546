"""The agent's unit, run by the real systemd: it may do what it must and nothing else, comes back, and goes in peace."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from testbed import REPO
from testbed.agent import UNIT
from testbed.engines import box
from testbed.engines.box import Place
from testbed.engines.systemd import SYSTEMD, Systemd
from testbed.stage import CC, GLIBC
from testbed.until import until

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(not os.path.exists(SYSTEMD), reason="systemd is not installed"),
    pytest.mark.parametrize("place", ("this machine",), indirect=True),
]
AGENT = UNIT.name
CHEAT = REPO / "testbed/bypass.c"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
# The program where the unit looks for it, with a Python of its own.
# A journal that keeps to itself.
FIRST = f"""
mkdir -p /run/systemd/system/{AGENT}.d /run/systemd/journald.conf.d
cp /lib/systemd/system/systemd-journald.service /lib/systemd/system/systemd-journald.socket /run/systemd/system
printf '[Journal]\\nStorage=volatile\\nReadKMsg=no\\nAudit=no\\n' >/run/systemd/journald.conf.d/alone.conf
for t in sysinit basic shutdown; do echo '[Unit]' >/run/systemd/system/$t.target; done
[ ! -d /var/log/journal ] || mount -t tmpfs none /var/log/journal
cp {shlex.quote(str(UNIT.parent))}/*.service /run/systemd/system
printf '[Service]\\nRestartSec=100ms\\nWatchdogSec=4\\n' >/run/systemd/system/{AGENT}.d/sooner.conf
mkdir /opt/python /opt/repo
mount --bind {shlex.quote(sys.base_prefix)} /opt/python && mount --bind {shlex.quote(str(box.REPO))} /opt/repo
export LD_LIBRARY_PATH=/opt/python/lib
/opt/python/bin/{PYTHON} -m venv --without-pip /opt/venv
mount --bind {shlex.quote(box.PACKAGES)} /opt/venv/lib/{PYTHON}/site-packages
mkdir -p /run/private/bin/up /run/private/bin/work
mount -t overlay -o lowerdir=/usr/bin,upperdir=/run/private/bin/up,workdir=/run/private/bin/work overlay /usr/bin
cat >/usr/bin/gpu-hook <<'END'
#!/bin/sh
export PYTHONPATH=/opt/repo LD_LIBRARY_PATH=/opt/python/lib
exec /opt/venv/bin/python -m oci_hook "$@"
END
chmod 755 /usr/bin/gpu-hook
"""
# What the unit must not be able to do, and what it must.
PROBE = """
for d in / /usr /etc /opt /var/lib /root /home /tmp /run /dev /sys/fs/cgroup; do
  if touch $d/probe 2>/dev/null || mkdir $d/probe 2>/dev/null; then echo wrote $d; rm -rf $d/probe; rmdir $d/probe; fi
done
unshare --mount true && echo unshared
mount -t tmpfs none /run && echo mounted
mknod /dev/probe c 195 0 && cat </dev/probe
"""


class Box(Systemd):
    """systemd with an install, two simulated GPUs, a journal and the agent's unit, which does not run yet."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, "/opt/gpu-hook", "/run/gpu-hook", FIRST)
        try:
            assert self("systemctl", "start", "systemd-journald.socket", "systemd-journald").returncode == 0
            self.gpu_hook("settings", "set", "agent.interval=1", "agent.policy=freeze", "agent.tolerance=16Mi")
        except BaseException:
            self.close()
            raise

    def shown(self, name: str) -> str:
        return self("systemctl", "show", AGENT, "--value", f"--property={name}").stdout.strip()

    def node(self) -> Any:
        """What the agent says, through `top`; None while it does not answer."""
        node = json.loads(self("gpu-hook", "top", "--json").stdout)
        return None if node["agent"]["state"] == "none" else node

    def container(self, id: str) -> Any:
        """What it says of this one; an empty one while it knows none, or does not answer."""
        nothing = {"state": "", "gpus": [{"gate": None}], "findings": None}
        return next((c for c in (self.node() or {}).get("containers", ()) if c["id"] == id), nothing)

    def journal(self, *match: str) -> list[Any]:
        done = self("journalctl", "--output=json", "--identifier=gpu-hook-agent", *match)
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def systemd(place: Place) -> Iterator[Box]:
    subprocess.run([*CC, *GLIBC, "-o", str(place.rootfs / "bin/bypass"), str(CHEAT), "-ldl"], check=True)
    made = Box(place)
    try:
        for unit in ("gpu-hook-inventory", AGENT):
            started = made("systemctl", "start", unit)
            assert started.returncode == 0, started.stderr + made("journalctl").stdout
        until(lambda: (node := made.node()) and node["agent"]["nvml"] == "ok" and len(node["gpus"]) == 2)
        yield made
    finally:
        made.close()


def test_it_starts_and_is_confined(systemd: Box) -> None:
    assert systemd.shown("ActiveState") == "active"  # it said READY=1: Type=notify
    until(lambda: "web page http://127.0.0.1:9409/; " in systemd.shown("StatusText"))
    pid = systemd.shown("MainPID")
    lines = UNIT.read_text().splitlines()
    (names,) = [line.partition("=")[2] for line in lines if line.startswith("CapabilityBoundingSet=")]
    numbers = {"CAP_DAC_OVERRIDE": 1, "CAP_DAC_READ_SEARCH": 2, "CAP_KILL": 5}  # capability.h
    numbers |= {"CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_MKNOD": 27}
    mask = f"{sum(1 << numbers[name] for name in names.split()):016x}"
    (child,) = systemd("cat", f"/proc/{pid}/task/{pid}/children").stdout.split()
    for process in (pid, child):
        status = dict(line.split(":\t", 1) for line in systemd("cat", f"/proc/{process}/status").stdout.splitlines())
        assert [status[name] for name in ("CapPrm", "CapEff", "CapBnd")] == [mask] * 3
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_what_it_may_do(systemd: Box) -> None:
    """A probe with the unit's own confinement in the agent's place."""
    service = UNIT.read_text().partition("[Service]\n")[2].partition("[Install]")[0].splitlines()
    kept = [line for line in service if line.partition("=")[0] not in ("Type", "ExecStart", "Restart", "WatchdogSec")]
    unit = ["[Service]", "Type=oneshot", "StandardOutput=file:/run/probe-out", "StandardError=inherit"]
    (systemd.dir / "probe").write_text(PROBE)
    (systemd.dir / "probe.service").write_text("\n".join([*unit, "ExecStart=sh /opt/probe", *kept, ""]))
    systemd("cp", f"{systemd.dir}/probe", "/opt/probe")
    systemd("cp", f"{systemd.dir}/probe.service", "/run/systemd/system/probe.service")
    systemd("systemctl", "daemon-reload")
    systemd("systemctl", "start", "probe")
    said = systemd("cat", "/run/probe-out").stdout
    wrote = {line.split()[1] for line in said.splitlines() if line.startswith("wrote ")}
    assert wrote == {"/run", "/dev", "/sys/fs/cgroup"}, said
    for done in ("unshared", "mounted"):
        assert f"\n{done}\n" not in said, said
    assert "/dev/probe: No such device or address" in said, said  # no driver, but nobody forbids it


def test_it_serves_containers_and_they_do_not_need_it(systemd: Box) -> None:
    share = {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": "1Gi", "gpu-hook.io/compute-limit": "50"}
    bundle = systemd.bundle(annotations={**share, "gpu-hook.io/compute": "30"})
    done = systemd.runc("run", "--detach", "--bundle", str(bundle), "one")
    assert done.returncode == 0, done.stderr
    honest = systemd.runc("exec", "--detach", "one", "gpu-probe", "launch", "2000", "100000")
    assert honest.returncode == 0, honest.stderr
    # By its account page, and by its slot file on a tmpfs that was mounted since the agent has a mount namespace.
    until(lambda: (gate := systemd.container("one")["gpus"][0]["gate"]) and gate["launches"])
    until(lambda: (c := systemd.container("one"))["state"] == "running" and c["gpus"][0]["used_mib"])
    assert not systemd.journal("GPU_HOOK_CONTAINER=one") and systemd.shown("NRestarts") == "0"

    # A cheat beside it: the container's cgroup is frozen, and the journal can be asked for it.
    systemd.runc("exec", "--detach", "one", "bypass", "200")
    until(lambda: '"status": "paused"' in systemd.runc("state", "one").stdout)
    until(lambda: systemd.container("one")["state"] == "frozen")
    entry = until(lambda: systemd.journal("GPU_HOOK_CONTAINER=one", "GPU_HOOK_FINDING=no-shim"))[0]
    assert entry["MESSAGE"].startswith("container one: no-shim on GPU ") and entry["MESSAGE"].endswith("; frozen")
    assert (entry["PRIORITY"], entry["_SYSTEMD_UNIT"]) == ("4", AGENT)
    assert not systemd.journal("GPU_HOOK_CONTAINER=another")

    # Killed, and hung.
    first = systemd.shown("MainPID")
    systemd("kill", "-KILL", first)
    second = until(lambda: (pid := systemd.shown("MainPID")) not in (first, "0") and pid)
    until(lambda: systemd.container("one")["state"])
    seen = int(systemd.shown("WatchdogTimestampMonotonic"))
    until(lambda: int(systemd.shown("WatchdogTimestampMonotonic")) > seen)
    systemd("kill", "-STOP", second)
    until(lambda: systemd.shown("MainPID") not in (second, "0"), seconds=40)
    until(lambda: systemd.container("one")["state"])

    assert systemd("systemctl", "stop", AGENT).returncode == 0
    assert (systemd.shown("Result"), systemd.shown("ActiveState")) == ("success", "inactive")
    until(lambda: systemd.journal()[-1]["MESSAGE"] == "stopped; containers run on")
    assert "one" in systemd.gpu_hook("ps")
    assert systemd.runc("delete", "--force", "one").returncode == 0
