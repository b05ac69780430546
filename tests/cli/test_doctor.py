"""`gpu-hook doctor`: each thing that can be wrong is found, and its fixing command fixes it."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oci_hook.agent.serve import metrics
from oci_hook.cli import agent_check
from oci_hook.cli.main import cli
from oci_hook.config.settings import load
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.policy_page import policy_page
from oci_hook.discovery import char_links, discover, driver_files
from oci_hook.discovery.driver_files import DriverFiles
from oci_hook.engines import containerd, daemons, edits
from oci_hook.engines.cri import Offered
from oci_hook.engines.doctor import node, registered
from oci_hook.install import answer
from oci_hook.ledger import inventory, store
from oci_hook.linux.proc import boot_id, process_life
from testbed import REPO
from testbed.until import until

CheckResult = dict[str, str]


class Node:
    """An install with a simulated GPU, its state on tmpfs, on a machine with docker and containerd, all well."""

    def __init__(self, root: Path, state: Path) -> None:
        self.prefix, self.state, self.root = root / "prefix", state, root / "host"
        for program in ("dockerd", "containerd"):
            path = self.root / "usr/bin" / program
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        self.containerd = self.root / "etc/containerd/config.toml"
        self.docker = self.root / "etc/docker/daemon.json"
        self.run("install", "--state-dir", str(state), "--host-root", str(self.root))
        self.run("sim", "up")

    def run(self, *args: str) -> str:
        result = CliRunner().invoke(cli, [*args, "--prefix", str(self.prefix)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    def doctor(self) -> tuple[int, list[CheckResult]]:
        args = ["doctor", "--json", "--prefix", str(self.prefix), "--host-root", str(self.root)]
        result = CliRunner().invoke(cli, args, catch_exceptions=False)
        return result.exit_code, json.loads(result.output)["findings"]

    def wrong(self) -> list[CheckResult]:
        return [f for f in self.doctor()[1] if f["state"] in ("warn", "fail")]

    def fix(self, finding: CheckResult) -> None:
        """Run the command that it prints, as a user does."""
        folder = self.prefix.parent / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / "gpu-hook"
        program.write_text(
            f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(REPO))} exec {shlex.quote(sys.executable)} -m oci_hook "$@"\n'
        )
        program.chmod(0o755)
        command = finding["fix"]
        if "install" in command:
            command += f" --host-root {self.root}"
        env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True)
        assert done.returncode == 0, command + "\n" + done.stderr


@pytest.fixture(scope="module")
def laid(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Path]]:
    """A node on which all is well, and a folder with its files as they are then."""
    root, saved = tmp_path_factory.mktemp("node"), tmp_path_factory.mktemp("saved")
    with tempfile.TemporaryDirectory(prefix="gh-doctor-", dir="/dev/shm") as state:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(edits, "LOCK", str(root / "lock"))
            node = Node(root, Path(state))
        copy(root, saved / "root")
        copy(Path(state), saved / "state")
        yield node, saved


def copy(source: Path, target: Path) -> None:
    """Driver files stay the same inodes, by which the inventory knows them: nobody writes into one."""
    subprocess.run(["cp", "--archive", "--no-target-directory", source, target], check=True)
    if (driver := source / "prefix/sim").exists():
        shutil.rmtree(target / "prefix/sim")
        subprocess.run(["cp", "--archive", "--link", driver, target / "prefix"], check=True)


@pytest.fixture
def well(laid: tuple[Node, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node on which all is well, whatever engines and agents this machine runs. Each test has its files anew."""
    monkeypatch.setattr(edits, "LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(daemons, "running", lambda program: iter(()))
    monkeypatch.setattr(registered, "version", lambda program: None)
    monkeypatch.setattr(agent_check, "UNIT_FOLDERS", ())
    monkeypatch.setattr(agent_check.node_now, "ask", lambda settings: None)
    node, saved = laid
    prefix = node.prefix
    for folder, part in ((prefix.parent, "root"), (node.state, "state")):
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        copy(saved / part, folder)
    yield node
    node.prefix = prefix


def test_all_is_well(well: Node) -> None:
    status, findings = well.doctor()
    assert status == 0 and not [f for f in findings if f["state"] in ("warn", "fail")], findings
    checks = {f["check"] for f in findings}
    assert checks >= {"prefix", "settings", "runtime", "shim", "driver", "inventory", "ledger", "kernel", "cgroup"}
    assert {f["check"]: f["state"] for f in findings if f["check"] in ("docker", "containerd")}["containerd"] == "ok"
    (driver,) = [f for f in findings if f["check"] == "driver"]
    assert driver["state"] == "note" and "simulated" in driver["message"]
    text = CliRunner().invoke(cli, ["doctor", "--prefix", str(well.prefix), "--host-root", str(well.root)]).output
    assert text.splitlines()[-1] == "all is well" and text.count("fix:") == 1
    (agent,) = [f for f in findings if f["check"] == "agent"]
    assert agent["state"] == "note" and agent["message"].startswith("does not run") and "gpu-hook" in agent["fix"]


def drop(name: str) -> Callable[[Node], object]:
    return lambda n: (n.prefix / name).unlink()


def edit(file: str, old: str, new: str) -> Callable[[Node], object]:
    def change(node: Node) -> None:
        path = node.prefix / file if not file.startswith("/") else node.root / file[1:]
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return change


TOML = "/etc/containerd/config.toml"
TROUBLES: dict[str, tuple[Callable[[Node], object], str, str, str, str]] = {
    "no launcher": (drop("bin/gpu-hook-runtime"), "prefix", "fail", "GH-504", "does not exist"),
    "older install": (
        edit("lib/gpu-hook/oci_hook/__init__.py", '= "', '= "0.'),
        "prefix",
        "warn",
        "GH-504",
        "installed by",
    ),
    "writable library": (
        lambda n: (n.prefix / "lib/shim/libcuda.so.1").chmod(0o666),
        "prefix",
        "fail",
        "GH-504",
        "can be changed by others",
    ),
    "older account folder": (
        lambda n: (n.prefix / "lib/private/container/account").chmod(0o755),
        "prefix",
        "fail",
        "GH-308",
        "non-root users in containers get no GPU memory",
    ),
    "no account folder": (
        lambda n: (n.prefix / "lib/private/container/account").rmdir(),
        "prefix",
        "fail",
        "GH-308",
        "does not exist",
    ),
    "account folder for all": (
        lambda n: (n.prefix / "lib/private").chmod(0o755),
        "prefix",
        "fail",
        "GH-308",
        "is open to others than root",
    ),
    "state directory for all": (
        lambda n: n.state.chmod(0o755),
        "ledger",
        "warn",
        "GH-303",
        "is open to all users of this machine",
    ),
    "settings for all": (
        lambda n: (n.prefix / "etc/settings.yaml").chmod(0o666),
        "prefix",
        "fail",
        "GH-504",
        "can be changed by others",
    ),
    "state directory not known": (drop("etc/state_dir"), "settings", "fail", "GH-504", "does not say which one"),
    "no shim": (drop("lib/shim/libcuda.so.1"), "shim", "fail", "GH-305", "is missing"),
    "a wrong shim": (
        lambda n: shutil.copy(n.prefix / "lib/shim/libcuda.so.1", n.prefix / "lib/shim/libnvidia-ml.so.1"),
        "shim",
        "fail",
        "GH-305",
        "is not libnvidia-ml.so.1",
    ),
    "no inventory": (lambda n: (n.state / "inventory.json").unlink(), "inventory", "fail", "GH-301", "does not exist"),
    "docker forgot": (lambda n: n.docker.unlink(), "docker", "warn", "GH-510", "its lines are not in"),
    "another program": (
        edit(
            "/etc/containerd/config.toml", 'runtime_type = "io.containerd.runc.v2"\n  pod', 'runtime_type = "x"\n  pod'
        ),
        "containerd",
        "fail",
        "GH-510",
        "differs",
    ),
    "annotations": (
        edit("/etc/containerd/config.toml", 'pod_annotations = ["gpu-hook.io/*", ', "pod_annotations = ["),
        "containerd",
        "fail",
        "GH-510",
        "pod_annotations of gpu-hook lacks gpu-hook.io/*",
    ),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_found_and_fixed(well: Node, name: str) -> None:
    trouble, check, state, code, words = TROUBLES[name]
    trouble(well)
    status, findings = well.doctor()
    found = [f for f in findings if f["state"] in ("warn", "fail")]
    assert found, findings
    first = found[0]
    assert (first["check"], first["state"], first["code"]) == (check, state, code) and words in first["message"], first
    assert status == (2 if "fail" in {f["state"] for f in found} else 1)
    for _ in range(3):  # one fixed thing may have hidden another
        for finding in well.wrong()[:1]:
            well.fix(finding)
    assert well.wrong() == []


PROGRAMS = ("bin/gpu-hook-runtime", "bin/oci-gpu-hook")
STARTS = ("lib/gpu-hook/runtime.py", "lib/gpu-hook/hook.py", "lib/gpu-hook/load.py")


@pytest.mark.parametrize("name", [*PROGRAMS, *STARTS])
@pytest.mark.parametrize("left", ["none", "5 bytes", "half", "all but one byte", "something else"])
def test_a_program_that_was_cut_short(well: Node, name: str, left: str) -> None:
    """As a full disk does it: no container starts. Installing again registers with no engine."""
    path = well.prefix / name
    whole = path.read_bytes()
    sizes = {"none": 0, "5 bytes": 5, "half": len(whole) // 2, "all but one byte": len(whole) - 1}
    path.write_bytes(whole[: sizes[left]] if left in sizes else b"#!/bin/sh\nexit 0\n")
    well.docker.write_text("{}")
    (finding, *_) = well.wrong()
    assert (finding["check"], finding["state"], finding["code"]) == ("prefix", "fail", "GH-504")
    assert name in finding["message"]
    assert finding["fix"] == f"gpu-hook install --no-engines --prefix {well.prefix}"
    well.run("install", "--no-engines")
    assert path.read_bytes() == whole and well.docker.read_text() == "{}"
    assert [f["check"] for f in well.wrong()] == ["docker"]


def test_a_program_that_cannot_be_run(well: Node) -> None:
    (well.prefix / "bin/oci-gpu-hook").chmod(0o644)
    (finding,) = well.wrong()
    assert "is not executable" in finding["message"] and finding["code"] == "GH-504"
    well.fix(finding)
    assert well.wrong() == []


def test_what_closes_an_open_prefix_keeps_plain_users_memory(well: Node) -> None:
    (well.prefix / "lib/gpu-hook/hook.py").chmod(0o666)
    (finding,) = well.wrong()
    well.fix(finding)
    assert well.wrong() == [] and (well.prefix / "lib/private/container/account").stat().st_mode & 0o7777 == 0o1777


def test_settings_that_are_not_valid_name_their_line(well: Node) -> None:
    edit("etc/settings.yaml", "compute_step: 1", "compute_step: 0")(well)
    (finding,) = well.wrong()
    assert finding["code"] == "GH-501" and "settings.yaml:" in finding["message"] and finding["state"] == "fail"
    assert f"{well.prefix}/etc/settings.yaml && gpu-hook settings check" in finding["fix"]


def test_a_broken_engine_file_names_its_place(well: Node) -> None:
    well.docker.write_text('{"a": 1,}')
    (finding,) = well.wrong()
    assert (finding["check"], finding["code"]) == ("docker", "GH-506") and ":1:9:" in finding["message"]
    assert finding["fix"] == f"${{EDITOR:-vi}} {well.docker}"


def test_no_install(native: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["doctor", "--prefix", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "GH-504" in result.output and "fix: gpu-hook install --prefix" in result.output


def test_an_engine_that_was_never_told_is_a_note(well: Node) -> None:
    (well.root / "usr/bin/podman").touch()
    status, findings = well.doctor()
    (podman,) = [f for f in findings if f["check"] == "podman"]
    assert status == 0 and podman["state"] == "note" and "install --engine podman" in podman["fix"]


@pytest.mark.parametrize(("leases", "faults"), [("1", "0"), ("0", "1"), ("1", "1"), ("0", "0"), (None, None)])
def test_what_the_kernel_lets_containers_do(
    well: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leases: str | None, faults: str | None
) -> None:
    """Notes, which do not change the exit status; none if the kernel has no such switch."""
    for name, value in (("LEASES", leases), ("USERFAULTFD", faults), ("BREAK_TIME", "45")):
        monkeypatch.setattr(node, name, str(tmp_path / name))
        if value is not None:
            (tmp_path / name).write_text(value + "\n")
    status, findings = well.doctor()
    told = {f["check"]: f for f in findings if f["check"] in ("leases", "userfaultfd")}
    assert status == 0 and all(f["state"] == "note" for f in told.values())
    assert ("leases" in told) == (leases == "1") and ("userfaultfd" in told) == (faults == "1")
    if leases == "1":
        assert "45 s" in told["leases"]["message"] and "sysctl fs.leases-enable=0" in told["leases"]["message"]


RUNC_1_2 = {"linux": {"mountExtensions": {"idmap": {"enabled": True}}}}


@pytest.mark.parametrize(("said", "notes"), [("unknown command", 1), ('{"linux": {}}', 1), (json.dumps(RUNC_1_2), 0)])
def test_a_runtime_without_user_namespaces_is_a_note_on_a_cluster_s_node(
    well: Node, tmp_path: Path, said: str, notes: int
) -> None:
    runtime = tmp_path / "runc"
    runtime.write_text(f"#!/bin/sh\n[ $1 = features ] && echo '{said}' || echo runc version 1\n")
    runtime.chmod(0o755)
    well.run("settings", "set", f"runtime={runtime}", "cluster=local")
    found = [f for f in well.doctor()[1] if "hostUsers" in f["message"]]
    assert [f["state"] for f in found] == ["note"] * notes
    well.run("settings", "set", "cluster=off")
    assert not [f for f in well.doctor()[1] if "hostUsers" in f["message"]]


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        ("", "warn", "says '': is that an OCI runtime?"),
        ("echo 'true (GNU coreutils) 9.1'", "warn", "says 'true (GNU coreutils) 9.1': is that an OCI runtime?"),
        ("sleep 1000", "fail", "does not answer within 1 s"),
        ("yes", "fail", "--version: "),
    ],
)
def test_a_runtime_that_tells_no_version(
    well: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, status: str, why: str
) -> None:
    monkeypatch.setattr(answer, "SECONDS", 1.0 if "sleep" in body else 60.0)
    runtime = tmp_path / "runc"
    runtime.write_text(f"#!/bin/sh\n{body}\n")
    runtime.chmod(0o755)
    well.run("settings", "set", f"runtime={runtime}")
    found = [(f["state"], f["message"]) for f in well.doctor()[1] if f["check"] == "runtime"]
    assert [(state, text[: len(f"{runtime} {why}")]) for state, text in found] == [(status, f"{runtime} {why}")]


def test_an_install_in_a_folder_that_is_cleaned(well: Node) -> None:
    top = well.prefix.parent / "cleaned"
    top.mkdir()
    top.chmod(0o1777)
    well.prefix = top / "prefix"
    well.run("install", "--state-dir", str(well.root.parent / "more"), "--no-engines")
    notes = [f["message"] for f in well.doctor()[1] if f["check"] == "prefix" and f["state"] == "note"]
    assert len(notes) == 1 and "where anyone may create files" in notes[0]


def test_docker_without_annotations(well: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note names two other ways to request; there is none for a docker that passes annotations."""
    for major, notes in ((20, 1), (26, 0)):
        monkeypatch.setattr(registered, "version", lambda program, major=major: major)
        status, findings = well.doctor()
        found = [f["message"] for f in findings if f["check"] == "docker" and f["state"] == "note"]
        assert status == 0 and len(found) == notes, found
        assert not found or ("/dev/null:/run/gpu-hook/request/" in found[0] and "trust_env" in found[0])


def test_daemons_that_have_not_read_their_files(well: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"dockerd": ["dockerd"], "containerd": ["containerd"]}
    monkeypatch.setattr(daemons, "running", lambda program: iter([(os.getpid(), words[program])]))
    monkeypatch.setattr(daemons, "SYSTEMD", "/")
    monkeypatch.setattr(daemons, "FOLDERS", {"docker": well.docker.parent, "containerd": well.containerd.parent})
    runtimes: dict[str, str] = {}
    monkeypatch.setattr(daemons, "docker_has", lambda host: Offered(runtimes, "runc"))
    monkeypatch.setattr(containerd, "socket", lambda file: "/nonexistent")
    os.utime(well.containerd, (4_000_000_000, 4_000_000_000))
    found = {f["check"]: f for f in well.wrong()}
    assert found["docker"]["fix"] == "systemctl reload docker" and "has not read" in found["docker"]["message"]
    assert found["containerd"]["fix"] == "systemctl restart containerd"
    assert "has not read" in found["containerd"]["message"]
    runtimes["gpu-hook"] = f"{well.prefix}/bin/gpu-hook-runtime"
    os.utime(well.containerd, (1, 1))
    assert well.wrong() == []
    os.utime(well.containerd, (4_000_000_000, 4_000_000_000))
    words["containerd"][1:] = ["--config", "/var/run/docker/containerd/containerd.toml"]  # dockerd's own one
    assert well.wrong() == []
    for flag in (["-c", "/k3s.toml"], ["--config=/k3s.toml"]):
        words["containerd"][1:] = flag
        (finding,) = well.wrong()
        assert "reads /k3s.toml instead" in finding["message"]
        assert (
            finding["fix"].startswith("gpu-hook install --engine containerd ")
            and "--config /k3s.toml" in finding["fix"]
        )
    generated = well.containerd.with_name("generated.toml")
    generated.write_text("# Generated. DO NOT EDIT\nversion = 2\n")
    words["containerd"][1:] = ["--config", str(generated)]
    assert [f["fix"] for f in well.wrong()] == ["gpu-hook install --print --engine containerd"]
    assert "which cannot be changed: see --print" in well.run(
        "install", "--engine", "containerd", "--host-root", str(well.root)
    )
    words["containerd"][1:] = ["--config", str(well.containerd)]
    assert [f["check"] for f in well.wrong()] == ["containerd"]
    os.utime(well.containerd, (1, 1))
    words["dockerd"] += ["--config-file", "/elsewhere.json"]
    (finding,) = well.wrong()
    assert "reads /elsewhere.json instead" in finding["message"]
    assert finding["fix"] == f"gpu-hook install --engine docker --prefix {well.prefix} --config /elsewhere.json"


@pytest.mark.parametrize(
    "answer, rc, known",
    (
        ('{"runtimes": {"runc": {"path": "runc"}}, "default": "runc"}', 0, True),
        ('{"runtimes": null, "default": null}', 0, False),
        ("", 0, False),
        ("{}", 1, False),
    ),
)
def test_a_dockerd_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, rc: int, known: bool
) -> None:
    """docker 26's command line says null and ends with 0 where its dockerd listens elsewhere."""
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\necho '{answer}'\nexit {rc}\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert daemons.docker_has(daemons.SOCKET) == (Offered({"runc": "runc"}, "runc") if known else None)


def test_docker_offers_what_was_uninstalled(well: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload does not take the last runtime away: both commands say so, if dockerd can be asked."""
    answers = (
        (None, False),
        ({"runc": ""}, False),
        ({"gpu-hook": "", "runc": ""}, True),
        ({"gpu-hook": "/nonexistent/bin/gpu-hook-runtime"}, True),
        ({"gpu-hook": "/usr/bin/dockerd"}, False),  # another install's program, which is there
    )
    (well.root / "usr/bin/dockerd").touch()
    for known, offered in answers:
        has = None if known is None else Offered(known)
        monkeypatch.setattr(daemons, "docker_has", lambda host, has=has: has)
        monkeypatch.setattr(daemons, "docker_hosts", lambda: [daemons.SOCKET])
        well.run("install", "--engine", "docker", "--host-root", str(well.root))
        said = well.run("uninstall", "--engine", "docker", "--host-root", str(well.root))
        assert (
            "still offers the runtime gpu-hook, until it is restarted: `systemctl restart docker`" in said
        ) == offered
        found = [f for f in well.wrong() if f["check"] == "docker"]
        assert [f["fix"] for f in found] == ["systemctl restart docker"] * offered
        said = well.run("uninstall", "--engine", "docker", "--host-root", str(well.root))
        assert "still offers" not in said  # nothing was changed


@pytest.mark.parametrize("by", ("DOCKER_HOST", "-H", "--host=", "file"))
def test_another_dockerd_offers_what_was_uninstalled(
    well: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by: str
) -> None:
    """It listens where DOCKER_HOST, its command line or its file says."""
    socket, file, words = f"unix://{tmp_path}/socket", tmp_path / "own.json", ["dockerd"]
    program = tmp_path / "bin/docker"
    program.parent.mkdir()
    program.write_text(
        f"""#!/bin/sh\n[ "$2" = {socket} ] || exit 1\necho '{{"runtimes":{{"gpu-hook":{{}}}},"default":"runc"}}'\n"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    if by == "DOCKER_HOST":
        monkeypatch.setenv("DOCKER_HOST", socket)
    elif by == "file":
        file.write_text(json.dumps({"hosts": ["tcp://0.0.0.0:1", socket]}))
        words += ["--config-file", str(file)]
    else:
        words += ["-H", "fd://", by + socket] if by.endswith("=") else ["-H", "fd://", by, socket]
    processes = [] if by == "DOCKER_HOST" else [(os.getpid(), words)]
    monkeypatch.setattr(daemons, "running", lambda name: iter(processes if name == "dockerd" else []))
    well.run("install", "--engine", "docker", "--host-root", str(well.root))
    said = well.run("uninstall", "--engine", "docker", "--host-root", str(well.root))
    told = f"the running dockerd at {socket} still offers the runtime gpu-hook, until it is restarted"
    assert f"docker: {told}\n" in said
    (found,) = [f for f in well.wrong() if f["check"] == "docker"]
    assert (found["message"], found["fix"]) == (told, "")


@pytest.mark.parametrize("engine, name", (("podman", "containers/containers.conf"), ("crio", "crio/crio.conf")))
def test_a_file_of_hooks_engines_by_config(well: Node, engine: str, name: str) -> None:
    """The fix names the file that `install` was given."""
    (well.root / "usr/bin" / engine).touch()
    file = well.root / "etc" / name
    file.parent.mkdir(parents=True)
    file.write_text("# of this site\n")
    well.run("install", "--engine", engine, "--config", str(file), "--host-root", str(well.root))
    assert well.wrong() == []
    file.write_text("# of this site\n")
    (lost,) = well.wrong()
    assert lost["fix"].endswith(f" --config {file}"), lost
    well.fix(lost)
    assert well.wrong() == [] and "gpu-hook" in file.read_text()


def test_nvidias_own_hook(well: Node) -> None:
    (well.root / "usr/bin/podman").touch()
    well.run("install", "--engine", "podman", "--host-root", str(well.root))
    other = well.root / "etc/containers/oci/hooks.d/oci-nvidia-hook.json"
    other.write_text(json.dumps({"version": "1.0.0", "hook": {"path": "/usr/bin/nvidia-container-runtime-hook"}}))
    notes = [f["message"] for f in well.doctor()[1] if f["check"] == "podman"]
    assert len(notes) == 2 and str(other) in notes[1] and "GH-409" in notes[1]


def test_nvidia_as_the_default(well: Node) -> None:
    data = json.loads(well.docker.read_text())
    well.docker.write_text(json.dumps({**data, "default-runtime": "nvidia"}))
    (finding,) = well.wrong()
    assert finding["code"] == "GH-403" and "every GPU" in finding["message"]
    assert finding["fix"] == f"${{EDITOR:-vi}} {well.docker} && systemctl restart docker"


def test_cri_switched_off(well: Node) -> None:
    for before, after in (('["cri"]', "[]"), ('["cri", "zfs"]', '["zfs"]')):
        text = well.containerd.read_text()
        well.containerd.write_text(f"disabled_plugins = {before}\n{text}")
        (finding,) = well.wrong()
        assert finding["check"] == "containerd" and "disabled_plugins" in finding["message"]
        assert finding["fix"] == f"${{EDITOR:-vi}} {well.containerd} && systemctl restart containerd"
        well.containerd.write_text(f"disabled_plugins = {after}\n{text}")
        assert well.wrong() == []
        well.containerd.write_text(text)


def test_a_containerd_that_serves_docker_alone(well: Node) -> None:
    well.run("uninstall", "--engine", "containerd", "--host-root", str(well.root))
    well.containerd.parent.mkdir(exist_ok=True)
    well.containerd.write_text('disabled_plugins = ["cri"]\n')
    (found,) = (f for f in well.doctor()[1] if f["check"] == "containerd")
    assert (found["state"], found["fix"]) == ("note", "") and "no kubelet uses it" in found["message"]


def grant(well: Node, uuid: str) -> None:
    settings = load(str(well.prefix))
    life = Life(boot_id(), creator=process_life(os.getpid()))
    one = Grant(store.grant_key("/run/runc", "c"), Identity("/run/runc", "c", "/b"), life, (Share(uuid, 1024),))
    with store.open_ledger(settings.state_dir) as ledger:
        ledger.put(one, policy_page(one, inventory.load(settings)))


def test_ledger_beside_the_gpus(well: Node) -> None:
    grant(well, inventory.load(load(str(well.prefix))).gpus[0].uuid)
    (ledger,) = [f for f in well.doctor()[1] if f["check"] == "ledger"]
    assert (ledger["state"], ledger["message"]) == ("ok", "1 container holds a share")
    well.run("sim", "up", "--force")
    (ledger,) = [f for f in well.wrong() if f["check"] == "ledger"]
    assert ledger["code"] == "GH-202" and "container c holds" in ledger["message"]


@pytest.mark.root
@pytest.mark.parametrize("page", ["there", "gone"])
def test_a_container_that_the_ledger_does_not_know(well: Node, page: str) -> None:
    """Its grant was released by force while it runs (the page is gone), or its ledger file was removed by hand."""
    grant(well, inventory.load(load(str(well.prefix))).gpus[0].uuid)
    key = store.grant_key("/run/runc", "c")
    mounts = "mount -t tmpfs none /run && mkdir /run/gpu-hook && touch /run/gpu-hook/policy"
    script = f"{mounts} && mount --bind {well.state}/pages/{key}/policy /run/gpu-hook/policy"
    argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "sh", "-c"]
    with subprocess.Popen([*argv, f"{script} && echo ready && exec sleep 100"], stdout=subprocess.PIPE) as container:
        try:
            assert container.stdout and container.stdout.readline() == b"ready\n"
            assert well.wrong() == []
            if page == "gone":
                well.run("release", "--force", "c")
            else:
                (well.state / f"ledger/{key}.json").unlink()
            (finding,) = well.wrong()
            assert (finding["check"], finding["state"], finding["code"]) == ("ledger", "warn", "GH-303")
            assert "has a share that is not in the ledger" in finding["message"]
            well.fix(finding)
            container.wait(20)
            until(lambda: well.wrong() == [])
        finally:
            container.kill()


def test_a_damaged_ledger(well: Node) -> None:
    grant(well, inventory.load(load(str(well.prefix))).gpus[0].uuid)
    (file,) = (well.state / "ledger").glob("*.json")
    file.write_text("{")
    (finding,) = well.wrong()
    assert (finding["check"], finding["code"], finding["state"]) == ("ledger", "GH-303", "fail")
    assert "stop its container first" in finding["fix"]
    assert finding["message"].count("(") == finding["message"].count(")")
    well.fix(finding)
    assert well.wrong() == []


@pytest.mark.parametrize("where", ["elsewhere", "elsewhere, in use", "the usual place", "the usual place, in use"])
def test_state_on_a_disk(well: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A fixing command is named only if it helps: not for the usual directory, and not while containers live."""
    state, usual = tmp_path / "state", tmp_path / "usual"
    edit("etc/settings.yaml", str(well.state), str(state))(well)
    well.run("settings", "set", f"state_dir={state}")
    well.run("gpus", "--refresh")
    if "in use" in where:
        grant(well, inventory.load(load(str(well.prefix))).gpus[0].uuid)
    monkeypatch.setattr(node, "USUAL", str(state if "usual" in where else usual))
    monkeypatch.setattr(node, "is_tmpfs", lambda path: path != str(state))
    (finding,) = [f for f in well.wrong() if "not on tmpfs" in f["message"]]
    assert (finding["check"], finding["state"], finding["code"]) == ("ledger", "warn", "GH-303")
    if where != "elsewhere":
        assert finding["fix"] == ""
        assert ("mount a tmpfs there before" if "usual" in where else "end its containers") in finding["message"]
        return
    well.fix(finding)
    assert load(str(well.prefix)).state_dir == str(usual) and not (state / "ledger").exists()


def test_state_on_a_disk_that_run_is_on_as_well(well: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual directory would be on the same file system: a tmpfs is mounted there first."""
    state, usual = tmp_path / "state", tmp_path / "usual/gpu-hook"
    edit("etc/settings.yaml", str(well.state), str(state))(well)
    well.run("settings", "set", f"state_dir={state}")
    well.run("gpus", "--refresh")
    monkeypatch.setattr(node, "USUAL", str(usual))
    monkeypatch.setattr(node, "is_tmpfs", lambda path: False)
    (finding,) = [f for f in well.wrong() if "not on tmpfs" in f["message"]]
    assert finding["fix"].startswith(
        f"mkdir -p {usual} && mount -t tmpfs -o mode=0700 tmpfs {usual} && gpu-hook settings set"
    )
    try:
        well.fix(finding)
        assert load(str(well.prefix)).state_dir == str(usual)
        monkeypatch.undo()
        assert node.is_tmpfs(str(usual)) and node.existing(str(usual / "a/b")) == str(usual)
    finally:
        subprocess.run(["umount", usual])


# Parts that this machine lacks, simulated by files.


def gpus(*minors: int) -> Any:
    gpu = inventory.Gpu
    device = inventory.DeviceFile
    return inventory.Inventory(
        boot_id="",
        driver_version="1",
        driver_root="/",
        simulated=False,
        gpus=tuple(gpu(f"GPU-{m}", m, m, 1024) for m in minors),
        control=(device("/dev/null", 1, 3),),
        files=(),
        libcuda="",
        libnvml="",
    )


def test_device_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = list(node.check_devices(gpus(), ""))
    assert findings[0].state == "ok" and findings[0].message == "1 device node"
    absent = list(node.check_devices(gpus(77), ""))[0]
    assert (absent.state, absent.code) == ("warn", "GH-302") and "/dev/nvidia77" in absent.message
    assert not char_links.is_device("/dev/null", 1, 5) and not char_links.is_device("/etc/passwd", 1, 3)
    monkeypatch.setattr(char_links, "FOLDER", str(tmp_path / "char"))
    (_, unlinked) = node.check_devices(gpus(), " --prefix /p")
    assert unlinked.state == "warn" and "daemon-reload" in unlinked.message
    assert unlinked.fix == "gpu-hook gpus --refresh --prefix /p"
    for _ in range(2):  # what that command does
        char_links.make(gpus())
        assert char_links.is_device(str(tmp_path / "char/1:3"), 1, 3) and len(list(node.check_devices(gpus(), ""))) == 1


def test_a_real_driver(well: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    well.run("sim", "down")
    monkeypatch.setattr(node.discover, "kernel_version", lambda: "")
    (driver,) = [f for f in well.wrong() if f["check"] == "driver"]
    assert (driver["code"], driver["state"], driver["fix"]) == ("GH-302", "fail", "modprobe nvidia")


def test_persistence(well: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a driver that is loaded: its daemon keeps idle GPUs initialised, or the mode does that `nvidia-smi -pm 1` sets."""
    simulated = load(str(well.prefix)).driver_root
    library = driver_files.find(simulated, "").libnvml
    assert discover.persistence(simulated, library, 60)
    assert not discover.persistence(simulated, str(tmp_path / "none"), 60)
    well.run("sim", "down")
    found = load(str(well.prefix)).replace(driver_root=str(tmp_path))
    monkeypatch.setattr(node.discover, "kernel_version", lambda: "550")
    files = DriverFiles("550", "", "", ())
    monkeypatch.setattr(node.driver_files, "find", lambda root, version: files)
    monkeypatch.setattr(node, "PERSISTENCED", str(tmp_path / "socket"))
    driver, idle = node.check_driver(found, "")
    assert (driver.state, driver.message) == ("ok", f"550, files in {tmp_path}")
    assert (idle.state, idle.fix) == ("warn", "systemctl enable --now nvidia-persistenced")
    asked: list[tuple[str, ...]] = []

    def ask(library: str, env: dict[str, str], seconds: float, *words: str) -> dict[str, bool]:
        asked.append(words)
        return {"persistence": True}

    monkeypatch.setattr(node.discover, "ask_nvml", ask)
    _, on = node.check_driver(found, "")
    assert (on.state, on.message) == ("ok", "persistence mode is on, though nvidia-persistenced does not run")
    assert asked == [("persistence",)]
    (tmp_path / "socket").touch()
    assert [f.state for f in node.check_driver(found, "")] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("error", "state", "code"),
    [(OSError(38, "mount_setattr"), "warn", "GH-404"), (PermissionError(1, "x"), "warn", "")],
)
def test_a_kernel_that_lacks_something(monkeypatch: pytest.MonkeyPatch, error: OSError, state: str, code: str) -> None:
    def no(*_: object) -> None:
        raise error

    monkeypatch.setattr(node.mount, "mount_setattr", no)
    kernel, _ = node.check_kernel("")
    assert (kernel.check, kernel.state, kernel.code) == ("kernel", state, code)
    assert "the hooks need openat2" in kernel.message or "cannot be tested" in kernel.message


def test_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(v1: str | None, v2: bool) -> tuple[str, str]:
        exists = os.path.exists
        with monkeypatch.context() as patch:
            patch.setattr(node.cgroup, "v1_path", lambda pid, controller: v1)
            patch.setattr(os.path, "exists", lambda p: v2 if str(p).endswith("cgroup.controllers") else exists(p))
            (found,) = [f for f in node.check_kernel("") if f.check == "cgroup"]
        return found.state, found.message

    assert said("/x", True) == ("ok", "version 1, with the devices controller")
    assert said(None, True) == ("ok", "version 2")
    assert said(None, False)[0] == "fail"


def test_a_daemon_is_as_old_as_its_start(tmp_path: Path) -> None:
    """The kernel makes /proc/PID when somebody looks, and again where it forgot it."""
    file = tmp_path / "file"
    with subprocess.Popen(["sleep", "100"]) as process:
        try:
            for _ in range(2):  # a start time is in clock ticks
                time.sleep(0.02)
                file.touch()
            assert daemons.started_before(process.pid, file)
        finally:
            process.kill()
    assert not daemons.started_before(process.pid, file)


def test_daemons_of_this_machine(tmp_path: Path) -> None:
    """A process is known by its name, its arguments and whether it was there before the file."""
    before, after = tmp_path / "before", tmp_path / "after"
    before.touch()
    program = tmp_path / "dockerd"
    shutil.copy("/bin/sleep", program)
    process = subprocess.Popen([program, "100"])
    try:
        # /proc shows a new program's name and words a moment after Popen returns
        until(lambda: dict(daemons.running("dockerd")).get(process.pid, [])[1:2] == ["100"])
        os.utime(before, (1, 1))
        after.touch()
        os.utime(after, (4_000_000_000, 4_000_000_000))
        assert daemons.started_before(process.pid, after)
        assert not daemons.started_before(process.pid, before)
    finally:
        process.kill()
        process.wait()
    assert daemons.flag_value(["dockerd", "--config-file", "/a"], "--config-file") == "/a"
    assert daemons.flag_value(["dockerd", "--config-file=/a"], "--config-file") == "/a"
    assert daemons.flag_value(["dockerd", "--config-files=/a", "--config-file"], "--config-file") == ""


def test_an_agent_whose_process_is_not_seen(well: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user other than root cannot read the state directory: no "process 0", and no command that would kill it."""
    answer = {"agent": {"version": "0", "problems": {}}}
    monkeypatch.setattr(agent_check.node_now, "ask", lambda settings: answer)
    monkeypatch.setattr(agent_check, "UNIT_FOLDERS", ())
    found = [f for f in well.doctor()[1] if f["check"] == "agent"]
    assert [f["fix"] for f in found] == ["", f"sudo gpu-hook doctor --prefix {well.prefix}"][::-1]
    assert not any("process 0" in f["message"] for f in found) and found[-1]["message"].endswith(" runs, no web page")


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_an_agent_whose_socket_has_no_room(well: Node, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A restart would not help: it removes nothing but sockets."""
    path = Path(f"{well.state}.sock")
    {"file": path.touch, "directory": path.mkdir, "link": lambda: path.symlink_to("/none")}[kind]()
    monkeypatch.setattr(agent_check.whereabouts, "holder", lambda lock: os.getpid())
    (found,) = [f for f in well.doctor()[1] if f["check"] == "agent"]
    assert found["code"] == "GH-321" and found["fix"] == f"ls -l {path}"
    assert f"at {path}: something else has this name" in found["message"]
    path.rmdir() if kind == "directory" else path.unlink()
    (found,) = [f for f in well.doctor()[1] if f["check"] == "agent"]
    assert found["code"] == "" and "gpu-hook" in found["fix"]


def test_each_problem_of_the_agent_has_a_next_step() -> None:
    assert set(agent_check.FIXES) == set(metrics.PROBLEMS)


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ("/etc/a.toml: line 3 column 1: not TOML", "${EDITOR:-vi} /etc/a.toml"),
        ("/etc/a b.json:3:1: not JSON", "${EDITOR:-vi} '/etc/a b.json'"),
        (
            "/etc/c.conf already exists, with lines that contradict gpu-hook's; remove it first",
            "${EDITOR:-vi} /etc/c.conf",
        ),
        ("no such engine", ""),
    ],
)
def test_the_fix_names_the_file_and_nothing_more(message: str, fix: str) -> None:
    assert registered.edit(message) == fix


def test_lending_of_before(well: Node) -> None:
    """The setting is off, and containers that began before still lend."""
    there = inventory.load(load(str(well.prefix)))
    uuid, life = there.gpus[0].uuid, Life(boot_id(), creator=process_life(os.getpid()))

    def hold(id: str, share: Share, **more: Any) -> None:
        grant = Grant(store.grant_key("/r", id), Identity("/r", id, f"/b/{id}"), life, (share,), **more)
        with store.open_ledger(str(well.state)) as ledger:
            ledger.put(grant, policy_page(grant, there))

    hold("whole", Share(uuid, 256))
    assert not well.wrong()
    hold("lends", Share(uuid, 512, request_mib=256))
    (found,) = well.wrong()
    assert found["check"] == "agent" and found["message"].endswith("and brings back who was moved for them")
    hold("away", Share(uuid, 512, request_mib=256), suspended=7, lent_to="lends")
    (found,) = well.wrong()
    assert found["message"].endswith("and brings back who was moved for them (away now: away)")


def test_what_lending_needs(well: Node) -> None:
    """A driver that moves memory (570), and the agent."""
    well.run("settings", "set", "oversubscribe=1.0")
    assert not well.wrong()
    well.run("settings", "set", "oversubscribe=2.0")
    (found,) = well.wrong()
    assert found["check"] == "lending" and "cannot move it" in found["message"]
    well.run("sim", "up", "--driver", "570")
    (found,) = well.wrong()
    assert found["check"] == "agent" and "only the agent makes room" in found["message"]
