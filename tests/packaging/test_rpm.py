"""The RPM package, installed, upgraded and removed by rpm, without its dependencies: the machine is a Debian."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import REPO
from tests.packaging.conftest import built_twice
from tests.packaging.machine import Machine

pytestmark = [pytest.mark.root, pytest.mark.slow]
PREFIX = "/opt/gpu-hook"
INSTALL = "rpm --upgrade --nodeps /packages/gpu-hook-0*.rpm"
SIMULATOR = "rpm --upgrade --nodeps /packages/gpu-hook-simulator-0*.rpm"


@pytest.fixture(scope="module")
def file(packages: Path) -> Path:
    (file,) = packages.glob("gpu-hook-0*.rpm")
    return file


@pytest.fixture(scope="module")
def newer(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same code as version 99, built from the spec that the package was built from, but packed in less time."""
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "import payload; payload.VERSION = '99'\n"
        "import rpm; old = rpm.contents\n"
        "rpm.contents = lambda a: {k: v for k, v in old(a).items() if 'cli/translate.py' not in k and '/translate.cpython' not in k}\n"
        "spec = rpm.described\n"
        "rpm.described = lambda *a: spec(*a).replace('w6.xzdio', 'w1.gzdio')\n"
        "print(rpm.build(Path(sys.argv[2]), sys.argv[3]))"
    )
    command = [sys.executable, "-B", "-c", code, str(REPO / "packaging"), str(file.parent), file.suffixes[-2][1:]]
    built = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return Path(built).rename(file.with_name("newer.rpm"))


def query(file: Path, what: str) -> list[str]:
    out = subprocess.run(["rpm", "-qp", "--qf", what, str(file)], check=True, capture_output=True, text=True).stdout
    return out.splitlines()


def test_files_are_roots_and_only_root_can_change_them(file: Path) -> None:
    lines = query(file, "[%{FILEUSERNAME} %{FILEGROUPNAME} %{FILEMODES:octal} %{FILENAMES}\n]")
    assert {line.split()[2] for line in lines} <= {"100644", "100755", "40755", "120777"}
    assert {tuple(line.split()[:2]) for line in lines} == {("root", "root")}
    names = {line.split(maxsplit=3)[3] for line in lines}
    assert {"/usr/bin/gpu-hook", "/etc/sysconfig/gpu-hook", "/usr/share/man/man1/gpu-hook.1.gz"} <= names
    assert "/usr/lib/systemd/system/gpu-hook-inventory.service" in names


def test_the_same_sources_give_the_same_bytes(packages: Path, tmp_path: Path) -> None:
    one, other = built_twice("rpm", packages, tmp_path)
    assert one == other


def test_installed_upgraded_and_removed(machine: Machine, newer: Path) -> None:
    machine.sh("rpm --initdb; touch /usr/bin/dockerd")
    before = machine.files()
    machine.sh(INSTALL)
    assert machine.sh("rpm --verify --nodeps gpu-hook") == ""
    first, second = machine.sh("gpu-hook --version; kubectl-gpu_hook --version").splitlines()
    assert first == second and re.fullmatch(r"gpu-hook 0\.1\.0 \([0-9a-f]{12}\+?, 20\d\d-\d\d-\d\d\)", first)
    assert machine.sh(f"{PREFIX}/bin/gpu-hook-runtime --version").startswith("runc ")
    machine.is_roots_alone(PREFIX, "/usr/lib/gpu-hook")
    assert "gpu-hook-simulator" in machine.fails("gpu-hook sim up")
    machine.sh(f"{SIMULATOR}; rpm --verify --nodeps gpu-hook-simulator")
    assert "gpu-hook-simulator" in machine.fails("rpm --erase --test gpu-hook")  # which needs it
    machine.sh("gpu-hook sim up --gpus 2; gpu-hook install --engine docker")
    assert machine.sh("gpu-hook gpus").count("GPU-") == 2
    machine.sh(f"sed -i 's/placement: by-class/placement: spread/' {PREFIX}/etc/settings.yaml; gpu-hook settings check")
    machine.sh(f"rpm --upgrade --nodeps /packages/{newer.name}")
    assert machine.sh("rpm --query gpu-hook").startswith("gpu-hook-99-")
    assert not machine.exists("/usr/lib/gpu-hook/oci_hook/cli/translate.py")
    assert machine.sh("find /usr/lib/gpu-hook -name 'translate.*.pyc' -path '*/cli/*'") == ""
    assert machine.exists("/etc/docker/daemon.json") and machine.sh("gpu-hook gpus").count("GPU-") == 2
    logs = '#!/bin/sh\necho "$*" >>/run/said'
    machine.sh(
        f"mkdir -p /run/systemd/system; printf '%s\n' '{logs}' >/usr/bin/systemctl; chmod 755 /usr/bin/systemctl"
    )
    machine.sh("rpm --erase gpu-hook gpu-hook-simulator")
    said = machine.sh("cat /run/said; rm -r /run/said /run/systemd /usr/bin/systemctl").splitlines()
    assert {f"{do} gpu-hook-agent.service gpu-hook-inventory.service" for do in ("disable", "stop")} <= set(said)
    # The last two are distributions' own where packages are RPMs.
    left = machine.files() - before - {"/etc/docker", "/etc/sysconfig", "/usr/share/zsh/site-functions"}
    assert left == {"/var/lib/gpu-hook-kept", "/var/lib/gpu-hook-kept/settings.yaml"}
    assert not machine.exists("/etc/docker/daemon.json")
    machine.sh(INSTALL)
    assert "placement: spread" in machine.sh(f"cat {PREFIX}/etc/settings.yaml")
    assert not machine.exists("/var/lib/gpu-hook-kept")


def test_removal_waits_for_containers_with_shares(machine: Machine, packages: Path) -> None:
    machine.sh(f"rpm --initdb; {INSTALL}; {SIMULATOR}; gpu-hook sim up")
    with machine.container_with_a_share(packages, PREFIX):
        used = machine.fails("rpm --erase gpu-hook-simulator")
        assert "GH-306: 1 container(s) use the simulated GPUs: sleeper" in used
        assert "GH-504: 1 container(s) hold shares (sleeper)" in machine.fails("rpm --erase --nodeps gpu-hook")
        machine.sh(f"mv {PREFIX}/etc/settings.yaml /run/kept")  # the install is one without them, too
        assert "GH-504: 1 container(s) hold shares" in machine.fails("rpm --erase --nodeps gpu-hook")
        machine.sh(f"mv /run/kept {PREFIX}/etc/settings.yaml")
        assert "sleeper" in machine.sh("gpu-hook ps") and not machine.exists("/var/lib/gpu-hook-kept")
    machine.sh("rpm --erase gpu-hook gpu-hook-simulator")
    assert not machine.exists(PREFIX)
