"""Where an install goes on machines that can write and run little: by the tarball, and by the image."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.packaging.bare import Bare
from tests.packaging.test_image import Pod, archive, bundle  # noqa: F401
from tests.packaging.test_own_python import root, simulated  # noqa: F401

pytestmark = [pytest.mark.root, pytest.mark.slow]
# What lies on a disk that a boot keeps, as a read-only root cannot. TMPFS: what it does not keep.
DISK = "mkdir -p {disk}{place} /mnt{place}; mount --bind {disk}{place} /mnt{place}; mount -o remount,bind,{flags} /mnt{place}"
TMPFS = "mkdir -p /mnt{place}; mount -t tmpfs -o mode=755,{flags} tmpfs /mnt{place}"
# As Container-Optimized OS has them; it has no /opt. Kubernetes there mounts /home/kubernetes/bin once more, with exec.
COS = (
    ("disk", "/var", "noexec"),
    ("disk", "/home", "noexec,nosuid"),
    ("mkdir", "/home/kubernetes/bin", ""),
    ("disk", "/home/kubernetes/bin", "exec,nosuid"),
)


Make = Callable[..., Bare]


@pytest.fixture
def make(root: Path, packages: Path, tmp_path: Path) -> Iterator[Make]:  # noqa: F811
    machines: list[Bare] = []
    kind = subprocess.check_output(["stat", "-f", "-c", "%T", tmp_path], text=True).strip()
    if kind == "tmpfs":
        pytest.skip(f"{tmp_path} is on tmpfs, which no boot keeps")

    def start(*mounts: tuple[str, str, str]) -> Bare:
        own = tmp_path / f"root{len(machines)}"
        shutil.copytree(root, own, symlinks=True)
        script = []
        for what, place, flags in mounts:
            text = {"disk": DISK, "tmpfs": TMPFS, "mkdir": "mkdir -p /mnt{place}"}[what]
            script.append(text.format(disk=tmp_path / "disk", place=place, flags=flags))
        machines.append(Bare(own, packages, "\n".join(script)))
        return machines[-1]

    yield start
    for machine in machines:
        machine.close()


def unpacked(machine: Bare, folder: str) -> str:
    machine.sh(f"cd {folder}; tar xzf /packages/gpu-hook_*.tar.gz; mv gpu-hook_* tar")
    return f"{folder}/tar/gpu-hook"


def test_on_container_optimized_os(make: Make, packages: Path) -> None:
    machine = make(*COS)
    command = unpacked(machine, "/home/kubernetes/bin")
    before = machine.sh("find / -xdev; find /home /var /run")
    said = machine.sh(f"{command} install --no-engines --dry-run; {command} install --no-engines").splitlines()
    notes = ["not in /opt/gpu-hook: /opt is mounted read-only", "not in /var/lib/gpu-hook: /var/lib is mounted noexec"]
    assert said[0] == "would install in /home/kubernetes/bin/gpu-hook"
    assert said[1:2] == notes[:1] and said[1 : len(said) // 2] == said[len(said) // 2 + 1 :]
    assert any(line.startswith("installed in /home/kubernetes/bin/gpu-hook: runtime /usr/sbin/runc") for line in said)
    simulated(machine, "/home/kubernetes/bin/tar", "/home/kubernetes/bin/gpu-hook")
    with machine.container_with_a_share(packages, "/home/kubernetes/bin/gpu-hook"):
        assert "sleeper" in machine.sh(f"{command} ps")
    machine.sh(f"{command} sim down; rm -r /home/kubernetes/bin/tar/gpu_hook_simulator; {command} uninstall")
    left = set(machine.sh("find / -xdev; find /home /var /run").splitlines()) - set(before.splitlines())
    assert left <= {"/run/sleeper", "/run/runc"}


@pytest.mark.parametrize(
    ("mounts", "place", "note"),
    [
        ((("disk", "/opt", "noexec"), ("disk", "/var", "exec"), ("mkdir", "/var/lib", "")), "/var/lib", "/opt is mounted noexec"),
        ((("disk", "/opt", "ro"), ("disk", "/var", "exec"), ("mkdir", "/var/lib", "")), "/var/lib", "/opt is mounted read-only"),
        ((("tmpfs", "/opt", "exec"), ("disk", "/var", "exec"), ("mkdir", "/var/opt", "")), "/var/opt", "/opt is on tmpfs"),
        ((("tmpfs", "/opt", "exec"), ("disk", "/var", "noexec")), "/opt", "a boot removes it: /opt is on tmpfs"),
        ((("disk", "/opt", "nosuid,nodev"),), "/opt", ""),
    ],
)  # fmt: skip
def test_the_first_place_that_runs_programs_and_outlives_a_boot(
    make: Make, mounts: tuple[tuple[str, str, str], ...], place: str, note: str
) -> None:
    machine = make(("tmpfs", "/srv", "exec"), *mounts)
    command = unpacked(machine, "/srv")
    first, *notes = machine.sh(f"{command} install --no-engines").splitlines()
    assert first.startswith(f"installed in {place}/gpu-hook: ")
    assert note in "".join(notes) if note else not notes
    assert machine.sh(f"{command} settings show >/dev/null; ls {place}/gpu-hook/bin | wc -l") == "4\n"
    assert [machine.sh(f"{command} install --no-engines").splitlines()[0]] == [first]  # it stays there
    machine.sh(f"{command} uninstall")
    assert not machine.exists(f"{place}/gpu-hook")


def test_on_an_overlay(make: Make) -> None:
    """On a disk it lasts; with its upper layer on tmpfs it does not."""
    machine = make(
        ("tmpfs", "/srv", "exec"), ("disk", "/var", "exec"), ("mkdir", "/var/lib", ""), ("disk", "/opt", "exec")
    )
    command = unpacked(machine, "/srv")
    machine.sh(
        "mkdir /srv/up /srv/work; mount -t overlay -o lowerdir=/opt,upperdir=/srv/up,workdir=/srv/work none /opt"
    )
    first, note = machine.sh(f"{command} install --no-engines --dry-run").splitlines()
    assert first == "would install in /var/lib/gpu-hook" and note.endswith("/opt is an overlay on tmpfs")
    machine.sh("umount /opt; mkdir /var/up /var/work")
    machine.sh("mount -t overlay -o lowerdir=/opt,upperdir=/var/up,workdir=/var/work none /opt")
    assert machine.sh(f"{command} install --no-engines --dry-run") == "would install in /opt/gpu-hook\n"


def test_a_place_that_was_named_is_refused_by_name(make: Make) -> None:
    machine = make(
        ("tmpfs", "/srv", "exec"), ("disk", "/home", "noexec"), ("disk", "/opt", "ro"), ("tmpfs", "/var", "noexec")
    )
    command = unpacked(machine, "/srv")
    for prefix, why in {
        "/home/here": "/home is mounted noexec",
        "/opt/gpu-hook": "/opt is mounted read-only",
        "/none": "/ is mounted read-only",
    }.items():
        for option in ("--dry-run", ""):
            said = machine.fails(f"{command} install --no-engines --prefix {prefix} {option}")
            assert f"GH-504: no install can be in {prefix}: {why}; choose another --prefix" in said
    said = machine.fails(f"{command} install --no-engines")
    assert "GH-504: no place for the install: /opt is mounted read-only" in said and "name one with --prefix" in said
    machine.sh(f"{command} install --no-engines --prefix /srv/here --state-dir /srv/state")
    machine.sh(f"{command} uninstall --prefix /srv/here")
    assert machine.sh("find /home /opt -mindepth 1") == ""


def test_the_image_chooses_for_its_node(make: Make, bundle: Path) -> None:  # noqa: F811
    machine = make(*COS)
    before = set(machine.sh("find /home /var").splitlines())
    made = []

    def pod(verb: str = "", **environment: str) -> Pod:
        made.append(Pod(machine, bundle, verb, **environment))
        return made[-1]

    try:
        assert "not installed yet" in pod("ready", ENGINES="none").read()
        node = pod(ENGINES="none", KEEP="yes")
        node.ready()
        assert "gpu-hook: not in /opt/gpu-hook: /opt is mounted read-only" in node.log.read_text()
        assert machine.sh("/home/kubernetes/bin/gpu-hook/bin/gpu-hook-runtime --version").startswith("runc ")
        assert pod("ready", ENGINES="none").process.wait(60) == 0
        assert node.stop() == 0
        node.close()
        again = pod(ENGINES="none")  # finds it
        again.ready()
        assert again.stop() == 0, again.log.read_text()
        assert set(machine.sh("find /home /var").splitlines()) == before
    finally:
        for each in made:
            each.close()


def test_an_image_that_finds_no_place_says_so(make: Make, bundle: Path) -> None:  # noqa: F811
    machine = make(("disk", "/var", "noexec"), ("disk", "/home", "noexec"))
    pod = Pod(machine, bundle, ENGINES="none")
    try:
        assert "gpu-hook: GH-504: no place for the install: /opt is mounted read-only" in pod.read()
        assert pod.process.returncode == 1
    finally:
        pod.close()
