"""The Python that packages carry: on a machine with nothing but busybox and runc, whose root is read-only."""

import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import REPO
from tests.packaging import bare
from tests.packaging.bare import Bare
from tests.packaging.conftest import built_twice
from tests.packaging.test_arm64 import QEMU, build, programs

pytestmark = [pytest.mark.root, pytest.mark.slow]
OPT = "mount -t tmpfs -o mode=755 tmpfs /mnt/opt"
HOME = "/opt/elsewhere/gpu-hook"
UNPACK = "mkdir /opt/elsewhere; cd /opt/elsewhere; tar xzf /packages/gpu-hook_*.tar.gz; mv gpu-hook_* gpu-hook"


@pytest.fixture(scope="module")
def root(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What test machines here begin with; the packages have the simulator unpacked."""
    (simulator,) = packages.glob("gpu-hook-simulator_0*.deb")
    subprocess.run(["dpkg-deb", "-x", simulator, packages / "simulator"], check=True)
    return bare.made(tmp_path_factory.mktemp("bare") / "root", ("opt", "home", "var", "srv"))


@pytest.fixture
def bare_machine(root: Path, packages: Path) -> Iterator[Bare]:
    machine = Bare(root, packages, OPT)
    yield machine
    machine.close()


def simulated(machine: Bare, home: str, prefix: str) -> None:
    machine.sh(f"cp -r /packages/simulator/usr/lib/gpu-hook/gpu_hook_simulator {home}")
    machine.sh(f"{home}/gpu-hook sim up --prefix {prefix}")


def test_a_tarball_where_there_is_nothing(bare_machine: Bare, packages: Path) -> None:
    machine = bare_machine
    assert machine.run("sh", "-c", "command -v python3").returncode and "read-only" in machine.fails("touch /x").lower()
    machine.sh(UNPACK)
    before = set(machine.sh("find /opt /run").splitlines())
    assert "commands" in machine.sh(f"{HOME}/gpu-hook --help").lower()
    said = machine.sh(f"{HOME}/gpu-hook install --no-engines")
    assert "installed in /opt/gpu-hook: runtime /usr/sbin/runc" in said
    machine.is_roots_alone("/opt/gpu-hook", HOME)
    simulated(machine, HOME, "/opt/gpu-hook")
    assert machine.sh(f"{HOME}/gpu-hook gpus").count("GPU-") == 1
    with machine.container_with_a_share(packages, "/opt/gpu-hook"):
        assert "sleeper" in machine.sh(f"{HOME}/gpu-hook ps")
        assert "1024" in machine.sh("runc exec sleeper env")
        assert "GH-504" in machine.fails(f"{HOME}/gpu-hook uninstall")
    machine.sh(f"{HOME}/gpu-hook sim down; rm -r {HOME}/gpu_hook_simulator; {HOME}/gpu-hook uninstall")
    left = set(machine.sh("find /opt /run").splitlines()) - before - {"/run/sleeper", "/run/runc"}
    assert left == set(), left  # nor was any code compiled


def test_another_python_where_settings_say_so(bare_machine: Bare) -> None:
    machine = bare_machine
    machine.sh(f"{UNPACK}; {HOME}/gpu-hook install --no-engines")
    said = machine.fails(f"{HOME}/gpu-hook settings set python=/usr/bin/python3")
    assert "python: /usr/bin/python3: No such file" in said
    machine.sh("sed -i 's|^python: auto|python: /usr/bin/python3|' /opt/gpu-hook/etc/settings.yaml")
    machine.sh('mkdir /run/b; echo \'{"annotations": {"gpu-hook.io/memory": "1Gi"}}\' >/run/b/config.json')
    said = machine.fails("/opt/gpu-hook/bin/gpu-hook-runtime create --bundle /run/b c")
    assert "GH-504: python /usr/bin/python3: No such file or directory; set `python`" in said


def test_renewed_from_another_version_of_it(bare_machine: Bare) -> None:
    """The old one is gone once the new launcher is there."""
    machine = bare_machine
    machine.sh(f"{UNPACK}; {HOME}/gpu-hook install --no-engines; cd /opt/gpu-hook/lib; cp -r python-* python-00000000")
    machine.sh(
        f"echo lib/python-00000000/bin/python3 >>/opt/gpu-hook/lib/gpu-hook/installed; {HOME}/gpu-hook install --no-engines"
    )
    assert machine.sh("ls -d /opt/gpu-hook/lib/python-* | wc -l") == "1\n"
    assert "python-00000000" not in machine.sh("cat /opt/gpu-hook/lib/gpu-hook/installed")


def test_the_same_sources_give_the_same_bytes(packages: Path, tmp_path: Path) -> None:
    one, other = built_twice("tarball", packages, tmp_path)
    assert one == other


def test_compiled_anew_it_has_the_same_bytes(packages: Path, tmp_path: Path) -> None:
    """Nothing that another build has kept is used."""
    (tarball,) = packages.glob("gpu-hook_*.tar.gz")
    kept = sorted(REPO.glob("build/*/python-*")) + sorted(REPO.glob("build/*/code-*"))
    assert kept
    aside = tmp_path / "aside"
    aside.mkdir()
    for folder in kept:
        shutil.copytree(folder, aside / folder.relative_to(REPO / "build"))
        shutil.rmtree(folder)
    built_twice("tarball", packages, tmp_path)
    for folder in kept:
        was = aside / folder.relative_to(REPO / "build")
        for file in was.rglob("*"):
            if file.is_file() and folder.exists():
                assert (folder / file.relative_to(was)).read_bytes() == file.read_bytes(), file


def test_for_arm64(tmp_path: Path) -> None:
    """Compiled here, run by an emulator, with nothing of this machine's."""
    done = build(tmp_path, "tarball", "--arch", "arm64", SOURCE_DATE_EPOCH="1700000000")
    assert done.returncode == 0, done.stderr
    with tarfile.open(done.stdout.strip()) as tar:
        tar.extractall(tmp_path, filter="tar")
    (home,) = (path for path in tmp_path.iterdir() if path.is_dir())
    found = programs(home)
    assert len(found) > 20 and set(found.values()) == {183}
    if not QEMU:
        pytest.skip("no qemu-aarch64: Debian has it in qemu-user-static")
    (own,) = home.glob("python-*")
    loader = [
        QEMU,
        str(own / "lib/gpu-hook-python"),
        "--library-path",
        str(own / "lib"),
        "--argv0",
        str(own / "bin/python3"),
    ]
    words = [*loader, str(own / "lib/python"), "-I", "-S", str(home / "command.py"), "--version"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert ran.stdout.startswith("gpu-hook "), ran.stderr
    modules = "import ssl, ctypes, resource, json, yaml, click, rich.live, oci_hook.agent.agent, oci_hook.kube.dra.grpc_server"
    code = f"import sys; sys.path.insert(0, {str(home)!r}); {modules}; print(sys.version_info[:2], sys.executable)"
    ran = subprocess.run(
        [*loader, str(own / "lib/python"), "-I", "-S", "-c", code], capture_output=True, text=True, timeout=300
    )
    assert ran.stdout == f"(3, 13) {own}/bin/python3\n", ran.stderr


def test_every_module_can_be_imported(packages: Path, tmp_path: Path) -> None:
    """Whatever ours imports is in it; what it does without is for other systems, or the controller's."""
    (tarball,) = packages.glob("gpu-hook_*.tar.gz")
    with tarfile.open(tarball) as tar:
        tar.extractall(tmp_path, filter="tar")
    (home,) = tmp_path.iterdir()
    (own,) = home.glob("python-*")
    code = (
        "import sys, pkgutil; sys.path.insert(0, sys.argv[1]); import oci_hook\n"
        "for m in pkgutil.walk_packages(oci_hook.__path__, 'oci_hook.'):\n"
        "    if not m.name.endswith('__main__') and '.launcher' not in m.name:\n"
        "        try: __import__(m.name)\n"
        "        except ModuleNotFoundError as e: print(e.name)\n"
    )
    ran = subprocess.run([own / "bin/python3", "-I", "-c", code, home], capture_output=True, text=True)
    assert set(ran.stdout.split()) <= {"aiohttp", "msgspec", "cryptography"}, ran.stderr
    assert ran.returncode == 0, ran.stderr


def test_licences_of_all_of_it(packages: Path) -> None:
    (tarball,) = packages.glob("gpu-hook_*.tar.gz")
    with tarfile.open(tarball) as tar:
        names = {Path(*Path(name).parts[2:]) for name in tar.getnames() if "/python-" in name}
    packages_in_it = {line.split()[1] for line in (REPO / "packaging/python/debian.txt").read_text().splitlines()[1:]}
    found = {path.name for path in names if path.parent == Path("licences")} - {"SOURCE"}
    assert Path("licences/SOURCE") in names
    assert found == packages_in_it


def test_in_its_folder_it_is_found_wherever_it_lies(packages: Path, tmp_path: Path) -> None:
    """Whatever libraries and settings of another Python the caller's environment names."""
    (tarball,) = packages.glob("gpu-hook_*.tar.gz")
    odd = tmp_path / "a b" / "c'd:e;f"  # a colon and a semicolon part the folders of a library path
    odd.mkdir(parents=True)
    with tarfile.open(tarball) as tar:
        tar.extractall(odd, filter="tar")
    (home,) = odd.iterdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/gpu-hook").symlink_to(home / "gpu-hook")
    for name in ("libc.so.6", "libm.so.6"):
        (tmp_path / name).write_text("no library")
    environment = {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONHOME": "/none", "PYTHONPATH": str(REPO), "LC_ALL": "xx_XX"}
    ran = subprocess.run([tmp_path / "bin/gpu-hook", "--version"], capture_output=True, text=True, env=environment)
    assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout.startswith("gpu-hook ")
