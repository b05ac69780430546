"""The Debian package, installed, upgraded, removed and purged by dpkg on a Debian 12."""

import gzip
import io
import os
import platform
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from oci_hook.cli.main import COMMANDS, cli
from tests.packaging.conftest import built_twice
from tests.packaging.machine import Machine

pytestmark = [pytest.mark.root, pytest.mark.slow]
DEBS = "/packages/gpu-hook_0*.deb /packages/gpu-hook-simulator_0*.deb"
AGENT = "/etc/systemd/system/multi-user.target.wants/gpu-hook-agent.service"
# What `systemctl enable` does.
ENABLE = f"ln -s /usr/lib/systemd/system/gpu-hook-agent.service {AGENT}"
UNIT = "/etc/systemd/system/multi-user.target.wants/gpu-hook-inventory.service"
PREFIX = "/opt/gpu-hook"


@pytest.fixture(scope="module")
def deb(packages: Path) -> Path:
    (file,) = packages.glob("gpu-hook_0*.deb")
    return file


@pytest.fixture(scope="module")
def newer(deb: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a higher version and a file less."""
    folder = tmp_path_factory.mktemp("newer") / "root"
    subprocess.run(["dpkg-deb", "-R", deb, folder], check=True)
    control = folder / "DEBIAN/control"
    control.write_text(re.sub(r"(?m)^Version: .*", "Version: 99", control.read_text()))
    for file in (folder / "usr/lib/gpu-hook/oci_hook/cli").rglob("translate.*"):
        file.unlink()
    target = deb.with_name("newer.deb")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-b", folder, target], check=True, capture_output=True)
    return target


@pytest.fixture(scope="module")
def payload(deb: Path) -> tarfile.TarFile:
    data = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], check=True, capture_output=True).stdout
    return tarfile.open(fileobj=io.BytesIO(data))


def test_files_are_roots_and_only_root_can_change_them(payload: tarfile.TarFile) -> None:
    for member in payload:
        assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "root", "root"), member.name
        assert member.mode in (0o644, 0o755) and (member.isfile() or member.isdir()) or member.issym(), member.name
    links = {member.name: member.linkname for member in payload if member.issym()}
    assert links == dict.fromkeys(("./usr/bin/gpu-hook", "./usr/bin/kubectl-gpu_hook"), "../lib/gpu-hook/gpu-hook")


def test_the_same_sources_give_the_same_bytes(packages: Path, deb: Path, tmp_path: Path) -> None:
    one, other = built_twice("deb", packages, tmp_path)
    assert one == other
    with tarfile.open(fileobj=io.BytesIO(subprocess.check_output(["dpkg-deb", "--ctrl-tarfile", deb]))) as tar:
        assert {member.mtime for member in tar} == {1700000000}


def test_no_page_links_to_what_is_not_packaged(payload: tarfile.TarFile) -> None:
    names = {name.removeprefix("./usr/share/doc/gpu-hook/") for name in payload.getnames() if "/doc/gpu-hook/" in name}
    assert {"CHANGELOG.md", "docs/grafana/dashboard.json", "packaging/kubernetes/kustomization.yaml"} <= names
    dead, links = [], 0
    for name in (name for name in names if name.endswith(".md")):
        page = payload.extractfile(f"./usr/share/doc/gpu-hook/{name}")
        assert page is not None
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", page.read().decode()):
            links += 1
            if os.path.normpath(os.path.join(os.path.dirname(name), target)) not in names:
                dead.append(f"{name}: {target}")
    assert dead == [] and links > 100


def test_every_command_is_in_the_man_page(payload: tarfile.TarFile, tmp_path: Path) -> None:
    def page(name: str) -> str:
        member = payload.extractfile(f"./usr/share/man/man{name[-1]}/{name}.gz")
        assert member is not None
        return gzip.decompress(member.read()).decode()

    text = page("gpu-hook.1").replace("\\-", "-")
    for command in COMMANDS:
        assert f".SS gpu-hook {command}\n" in text
    for option in re.findall(r"(?m)^  (--[a-z-]+)", CliRunner().invoke(cli, ["install", "--help"]).output):
        assert option in text
    for name in ("gpu-hook.1", "gpu-hook-runtime.8", "oci-gpu-hook.8"):
        assert "@" not in re.sub(r"\S+@\S+\.\S+", "", page(name))
        if shutil.which("groff"):
            groff = ["groff", "-man", "-Tutf8", "-ww", "-z"]
            r = subprocess.run(groff, input=page(name), text=True, capture_output=True)
            assert (r.returncode, r.stderr) == (0, ""), name


def test_the_unit_is_understood_by_systemd(payload: tarfile.TarFile, tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze")
    member = payload.extractfile("./usr/lib/systemd/system/gpu-hook-inventory.service")
    assert member is not None
    unit = tmp_path / "gpu-hook-inventory.service"
    unit.write_bytes(member.read().replace(b"/usr/bin/gpu-hook", b"/bin/true"))
    r = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    about = [line for line in r.stderr.splitlines() if "gpu-hook" in line]
    assert about == []


def test_what_starts_containers_at_boot_waits_for_the_inventory(payload: tarfile.TarFile) -> None:
    """Quadlets have names of their own; all of them come after network-online.target."""
    member = payload.extractfile("./usr/lib/systemd/system/gpu-hook-inventory.service")
    assert member is not None
    lines = member.read().decode().splitlines()
    before = {name for line in lines if line.startswith("Before=") for name in line[len("Before=") :].split()}
    assert before >= {"network-online.target", "docker.service", "containerd.service", "crio.service"}
    assert before >= {"podman-restart.service", "k3s.service", "k3s-agent.service", "rke2-server.service"}


def test_the_simulator_is_in_its_own_package_only(payload: tarfile.TarFile, packages: Path) -> None:
    assert not [name for name in payload.getnames() if "simulat" in name or "/sim" in name]
    (file,) = packages.glob("gpu-hook-simulator_*.deb")
    listed = subprocess.run(["dpkg-deb", "-c", file], check=True, capture_output=True, text=True).stdout
    for name in ("native/x86_64/gpu-probe", "native/x86_64/libcuda.so.1", "model/scenarios.py", "calibration.json"):
        assert f"/gpu_hook_simulator/{name}\n" in listed or platform.machine() != "x86_64"
    assert "man1/gpu-hook-sim.1.gz" in listed and "oci_hook" not in listed


def test_installed_used_and_purged(machine: Machine) -> None:
    before = machine.files()
    machine.sh("dpkg -i /packages/gpu-hook_0*.deb")
    assert machine.sh("dpkg --verify gpu-hook") == ""
    assert "gpu-hook-simulator" in machine.fails("gpu-hook sim up")
    machine.sh("dpkg -i /packages/gpu-hook-simulator_0*.deb")
    assert machine.sh("dpkg --verify gpu-hook-simulator") == ""
    first, second = machine.sh("gpu-hook --version; kubectl-gpu_hook --version").splitlines()
    assert first == second and re.fullmatch(r"gpu-hook 0\.1\.0 \([0-9a-f]{12}\+?, 20\d\d-\d\d-\d\d\)", first)
    assert machine.sh(f"{PREFIX}/bin/gpu-hook-runtime --version").startswith("runc ")
    assert machine.exists(UNIT)
    # The package registers with no engine unless the administrator says so.
    assert machine.run("grep", "-rl", PREFIX, "/etc").stdout.split() in ([], ["/etc/default/gpu-hook"])
    machine.is_roots_alone(PREFIX, "/usr/lib/gpu-hook")
    machine.sh("gpu-hook sim up --gpus 2 --memory 24Gi")
    assert machine.sh("gpu-hook gpus --refresh").count("GPU-") == 2
    assert "4096" in machine.sh("gpu-hook explain --annotation gpu-hook.io/memory=4Gi")
    completed = machine.sh("_GPU_HOOK_COMPLETE=bash_complete COMP_WORDS='gpu-hook un' COMP_CWORD=1 gpu-hook")
    assert completed == "plain,uninstall\n"
    machine.sh("dpkg --purge gpu-hook-simulator")
    assert not machine.exists(f"{PREFIX}/sim") and machine.exists(PREFIX)
    assert not machine.exists(AGENT)
    machine.sh(ENABLE)
    machine.sh("dpkg --purge gpu-hook")
    assert machine.files() - before == set()
    assert before - machine.files() == set()


def test_a_machine_without_a_gpu_is_told_so_in_one_line(machine: Machine) -> None:
    """Its unit fails, which deb-systemd-invoke would call a systemctl that cannot be executed."""
    refuses = "#!/bin/sh\ncase $* in *is-enabled*) echo enabled ;; *start*) exit 1 ;; esac"
    machine.sh(f"mkdir -p /run/systemd/system; printf '{refuses}\n' >/usr/bin/systemctl; chmod 755 /usr/bin/systemctl")
    said = machine.sh("dpkg -i /packages/gpu-hook_0*.deb")
    assert "gpu-hook: no GPU was found" in said and "Could not execute" not in said, said


def test_settings_outlive_upgrade_and_removal_not_purge(machine: Machine, newer: Path) -> None:
    machine.sh("dpkg -i /packages/gpu-hook_0*.deb")
    machine.sh("gpu-hook settings set placement=spread")
    machine.sh(f"dpkg -i /packages/{newer.name}")
    assert "placement: spread" in machine.sh(f"cat {PREFIX}/etc/settings.yaml")
    assert not machine.exists("/usr/lib/gpu-hook/oci_hook/cli/translate.py")
    assert machine.run("find", "/usr/lib/gpu-hook", "-name", "translate.*.pyc").stdout.count("cli/") == 0
    machine.sh("gpu-hook settings check")
    machine.sh("dpkg --remove gpu-hook")
    assert not machine.exists(PREFIX) and not machine.exists("/usr/lib/gpu-hook")
    machine.sh("dpkg -i /packages/gpu-hook_0*.deb")
    assert "placement: spread" in machine.sh(f"cat {PREFIX}/etc/settings.yaml")
    assert not machine.exists("/var/lib/gpu-hook-kept")
    machine.sh("dpkg --purge gpu-hook; dpkg -i /packages/gpu-hook_0*.deb")
    assert "placement: by-class" in machine.sh(f"cat {PREFIX}/etc/settings.yaml")


def test_engines_are_told_where_the_administrator_says_so(machine: Machine) -> None:
    machine.sh("touch /usr/bin/dockerd; mkdir -p /etc/docker; echo '{}' >/etc/docker/daemon.json")
    machine.sh("""echo 'ENGINES="docker"' >/etc/default/gpu-hook; dpkg --force-confold -i /packages/gpu-hook_0*.deb""")
    assert f"{PREFIX}/bin/gpu-hook-runtime" in machine.sh("cat /etc/docker/daemon.json")
    machine.sh("dpkg --remove gpu-hook")
    assert machine.sh("cat /etc/docker/daemon.json") == "{}\n"


def test_removal_waits_for_containers_with_shares(machine: Machine, packages: Path) -> None:
    machine.sh(f"dpkg -i {DEBS}; gpu-hook sim up")
    with machine.container_with_a_share(packages, PREFIX):
        assert "GH-306: 1 container(s) use the simulated GPUs: sleeper" in machine.fails(
            "dpkg --purge gpu-hook-simulator"
        )
        removed = machine.fails("dpkg --force-depends --remove gpu-hook")
        assert "GH-504: 1 container(s) hold shares (sleeper)" in removed
        machine.sh(f"mv {PREFIX}/etc/settings.yaml /run/kept")  # the install is one without them, too
        assert "GH-504: 1 container(s) hold shares" in machine.fails("dpkg --force-depends --remove gpu-hook")
        machine.sh(f"mv /run/kept {PREFIX}/etc/settings.yaml")
        assert "sleeper" in machine.sh("gpu-hook ps")
        machine.sh("dpkg --install /packages/gpu-hook_0*.deb")  # an upgrade does not
        assert "sleeper" in machine.sh("gpu-hook ps")
    machine.sh("dpkg --remove gpu-hook gpu-hook-simulator")
    assert not machine.exists(PREFIX) and not machine.exists("/usr/lib/gpu-hook")


def test_the_agent_ends_with_the_package_and_stays_enabled_until_a_purge(machine: Machine) -> None:
    machine.sh("dpkg -i /packages/gpu-hook_0*.deb")
    machine.sh(ENABLE)
    logs = '#!/bin/sh\necho "$*" >>/root/said\ncase $* in *is-enabled*) echo enabled ;; esac'
    machine.sh(
        f"mkdir -p /run/systemd/system; printf '%s\n' '{logs}' >/usr/bin/systemctl; chmod 755 /usr/bin/systemctl"
    )
    machine.sh("dpkg --remove gpu-hook")
    assert re.search(r"^(--\S+ )*stop .*gpu-hook-agent\.service", machine.sh("cat /root/said"), re.M)
    assert machine.sh("readlink /etc/systemd/system/gpu-hook-agent.service") == "/dev/null\n"
    machine.sh("dpkg -i /packages/gpu-hook_0*.deb")
    assert machine.exists(AGENT) and not machine.exists("/etc/systemd/system/gpu-hook-agent.service")
    machine.sh("dpkg --purge gpu-hook")
    assert machine.run("find", "/etc/systemd", "-name", "gpu-hook*").stdout == ""


def test_an_install_that_cannot_go_stays(machine: Machine) -> None:
    """It fails because docker's file is broken."""
    machine.sh("touch /usr/bin/dockerd; dpkg -i /packages/gpu-hook_0*.deb; gpu-hook install --engine docker")
    machine.sh("echo '{' >/etc/docker/daemon.json")
    assert "GH-50" in machine.fails("dpkg --remove gpu-hook")
    assert machine.exists(f"{PREFIX}/bin/gpu-hook-runtime") and machine.exists("/usr/bin/gpu-hook")
    assert not machine.exists("/var/lib/gpu-hook-kept")
    machine.sh("rm /etc/docker/daemon.json; dpkg --configure -a; dpkg --remove gpu-hook")
    assert not machine.exists(PREFIX)
