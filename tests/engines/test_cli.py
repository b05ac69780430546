"""`gpu-hook install` and `uninstall` with engines, as a user calls them."""

import fcntl
import json
import os
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oci_hook.cli.main import cli
from oci_hook.engines import daemons, edits
from oci_hook.ledger import events
from oci_hook.linux import unix_socket
from testbed.until import until


class Machine:
    """A root directory with docker and podman, an install to be, and the command line run in this process."""

    def __init__(self, root: Path) -> None:
        self.prefix, self.state, self.root = root / "prefix", root / "state", root / "host"
        for program in ("dockerd", "podman"):
            path = self.root / "usr/bin" / program
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        self.daemon_json = self.root / "etc/docker/daemon.json"

    def run(self, *args: str, status: int = 0) -> str:
        where = ["--prefix", str(self.prefix)]
        if args[0] == "install" and "--print" not in args:
            where += ["--state-dir", str(self.state)]
        if "--print" not in args:
            where += ["--host-root", str(self.root)]
        result = CliRunner().invoke(cli, [*args, *where], catch_exceptions=False)
        assert result.exit_code == status, result.output
        return result.output

    def data(self, *args: str, status: int = 0) -> Any:
        return json.loads(self.run(*args, "--json", status=status))


@pytest.fixture
def machine(native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(edits, "LOCK", str(tmp_path / "lock"))
    return Machine(tmp_path)


def test_from_nothing_and_back(machine: Machine) -> None:
    output = machine.run("install")
    assert f"docker: created {machine.daemon_json}" in output
    assert "+++ " in output and f'+      "path": "{machine.prefix}/bin/gpu-hook-runtime"' in output
    assert "docker: takes effect after `systemctl reload docker`" in output
    assert "podman: created" in output and "podman: takes effect" not in output
    again = machine.run("install")
    assert "unchanged" in again and "+++" not in again and "takes effect" not in again
    output = machine.run("uninstall")
    assert f"docker: removed {machine.daemon_json}" in output
    assert not (machine.root / "etc").exists() and not machine.prefix.exists()


def test_uninstall_leaves_no_simulated_gpu_no_event_and_no_lock(machine: Machine, tmp_path: Path) -> None:
    machine.run("install")
    CliRunner().invoke(cli, ["sim", "up", "--prefix", str(machine.prefix)], catch_exceptions=False)
    events.record(str(machine.state), "ended", id="one")
    (machine.state / "events.1").touch()
    lock = machine.state / "agent.lock"
    lock.write_text("1\n")
    with lock.open() as agent:
        fcntl.flock(agent, fcntl.LOCK_EX)
        output = machine.run("uninstall")
        assert f"its agent still runs; stop it by `kill {os.getpid()}`" in output and "stays, since it" not in output
        assert os.listdir(machine.state) == ["agent.lock"] and not machine.prefix.exists()
    machine.run("install")
    CliRunner().invoke(cli, ["sim", "up", "--prefix", str(machine.prefix)], catch_exceptions=False)
    (machine.prefix / "etc/state_dir").unlink()
    output = machine.run("uninstall")
    assert "its state directory stays" in output and "stays, since it" not in output and not machine.prefix.exists()
    machine.run("install")
    unix_socket.listen(f"{machine.state}.sock", 0o600).close()  # as an agent that was killed leaves it
    machine.run("uninstall")
    assert not machine.prefix.exists() and not (tmp_path / "lock").exists()
    assert not os.path.lexists(f"{machine.state}.sock")


def test_an_install_that_the_nvidia_runtime_calls_stays(machine: Machine) -> None:
    machine.run("install")
    file = machine.root / "etc/nvidia-container-runtime/config.toml"
    file.parent.mkdir()
    line = f'[nvidia-container-runtime]\nruntimes = ["{machine.prefix}/bin/gpu-hook-runtime"]\n'
    file.write_text(line)
    for more in ((), ("--dry-run",)):
        output = machine.run("uninstall", *more, status=1)
        assert output.startswith(f"GH-504: {file} calls {machine.prefix}/bin/") and machine.daemon_json.is_file()
    machine.run("uninstall", "--engine", "podman")
    file.write_text(line.replace("runtimes", "# runtimes") + 'log-level = "info"\n')
    machine.run("uninstall", "--dry-run")
    file.write_text(line)
    machine.run("uninstall", "--force")
    assert not machine.prefix.exists() and file.read_text() == line


def test_a_folder_that_is_no_install_keeps_its_sim_folder(machine: Machine) -> None:
    (machine.prefix / "sim/root").mkdir(parents=True)
    assert "GH-504" in machine.run("uninstall", status=1)
    assert (machine.prefix / "sim/root").exists()


def test_dry_run_lays_nothing(machine: Machine) -> None:
    data = machine.data("install", "--dry-run")
    assert data["dry_run"] and [e["engine"] for e in data["engines"]] == ["docker", "podman"]
    assert data["engines"][0]["files"][0]["change"] == "created"
    assert "docker: would create " in machine.run("install", "--dry-run", "--engine", "docker")
    assert not machine.prefix.exists() and not (machine.root / "etc").exists()
    machine.run("install")
    assert "docker: would remove " in machine.run("uninstall", "--dry-run")
    assert machine.daemon_json.exists() and machine.prefix.exists()


def test_one_engine(machine: Machine) -> None:
    machine.run("install", "--engine", "docker", "--set-default")
    assert json.loads(machine.daemon_json.read_text())["default-runtime"] == "gpu-hook"
    assert not (machine.root / "etc/containers").exists()
    machine.run("uninstall", "--engine", "docker")
    assert machine.prefix.exists() and not machine.daemon_json.exists()
    machine.run("install", "--no-engines")
    assert not machine.daemon_json.exists()


def test_a_file_of_its_own(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "rootless.json"
    mine.write_text("{}")
    machine.run("install", "--engine", "docker", "--config", str(mine))
    assert "gpu-hook" in mine.read_text() and not machine.daemon_json.exists()
    machine.run("uninstall")  # knows by itself which file it was
    assert mine.read_text() == "{}"
    monkeypatch.setattr(daemons, "running", lambda program: iter([(7, ["dockerd"])] if program == "dockerd" else []))
    machine.run("install", "--no-engines")
    output = machine.run("install", "--engine", "docker", "--config", str(mine))
    assert "process 7 reads /etc/docker/daemon.json (--config /etc/docker/daemon.json)" in output
    monkeypatch.setattr(daemons, "running", lambda program: iter(()))
    machine.run("uninstall")
    errors = machine.data("install", "--config", str(mine), status=1)["errors"]
    assert errors[0]["code"] == "GH-506" and "--engine" in errors[0]["message"]


def test_refusals_have_codes(machine: Machine) -> None:
    assert machine.run("install", "--engine", "crio", status=1).startswith("GH-505: crio is not on this machine")
    machine.daemon_json.parent.mkdir(parents=True)
    machine.daemon_json.write_text('{"a": 1,}')
    assert f"GH-506: {machine.daemon_json}:1:9: not JSON" in machine.run("install", status=1)
    assert not (machine.root / "etc/containers").exists()


def test_print_is_what_install_writes(machine: Machine) -> None:
    data = machine.data("install", "--print", "--engine", "docker", "--engine", "containerd", "--engine", "crio")
    docker, containerd, crio = data["engines"]
    assert not machine.prefix.exists()
    machine.run("install", "--engine", "docker")
    assert docker["files"] == [{"path": "/etc/docker/daemon.json", "text": machine.daemon_json.read_text()}]
    assert containerd["files"][0]["path"] == "/etc/containerd/config.toml" and "k3s" in containerd["place"]
    assert len(crio["files"]) == 3
    assert "runtimes.gpu-hook]" in machine.run("install", "--print")


SYSTEMCTL = """#!/bin/sh
echo "$@" >> {log}
case "$1" in
  is-active)
    [ "$2" != --quiet ] || exit 0
    if grep -q gpu-hook {file} 2>/dev/null; then [ ! -e {bad} ] || exit 3; else [ ! -e {bad}-without ] || exit 3; fi;;
esac
exit 0
"""


@pytest.fixture
def systemd(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose systemctl writes down its arguments; a docker that dies of our entry while BAD exists, and
    without it while BAD-without does."""
    log, bad = tmp_path / "calls", tmp_path / "bad"
    program = tmp_path / "bin/systemctl"
    program.parent.mkdir()
    program.write_text(SYSTEMCTL.format(log=log, bad=bad, file=machine.daemon_json))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(daemons, "SYSTEMD", str(tmp_path))
    return log


def test_restart_only_what_changed(machine: Machine, systemd: Path) -> None:
    assert "docker: reloaded with its new configuration" in machine.run("install", "--restart")
    assert systemd.read_text().splitlines() == ["is-active --quiet docker", "reload docker", "is-active docker"]
    systemd.unlink()
    machine.run("install", "--restart")
    assert not systemd.exists()


def test_a_restart_that_fails_is_rolled_back(machine: Machine, systemd: Path, tmp_path: Path) -> None:
    machine.daemon_json.parent.mkdir(parents=True)
    machine.daemon_json.write_text('{"debug": true}')
    (tmp_path / "bad").touch()
    output = machine.run("install", "--engine", "docker", "--restart", status=1)
    assert (
        output.startswith("GH-509: systemctl reload docker: ")
        and "its files were put back, and it runs again" in output
    )
    assert machine.daemon_json.read_text() == '{"debug": true}'
    assert systemd.read_text().count("reload docker") == 2
    (tmp_path / "bad").unlink()
    machine.run("install", "--engine", "docker", "--restart")
    machine.run("uninstall")
    assert machine.daemon_json.read_text() == '{"debug": true}'


@pytest.mark.parametrize("before", ['{"debug": true}', None])
def test_an_uninstall_whose_restart_fails_is_rolled_back(
    machine: Machine, systemd: Path, tmp_path: Path, before: str | None
) -> None:
    """Registered as it was, with the backup: the next uninstall leaves the file byte for byte."""
    machine.daemon_json.parent.mkdir(parents=True)
    if before:
        machine.daemon_json.write_text(before)
    machine.run("install", "--engine", "docker", "--restart")
    installed = machine.daemon_json.read_bytes()
    etc = {path: path.is_file() and path.read_bytes() for path in (machine.prefix / "etc").rglob("*")}
    (tmp_path / "bad-without").touch()
    output = machine.run("uninstall", "--engine", "docker", "--restart", status=1)
    assert (
        output.startswith("GH-509: systemctl reload docker: ")
        and "its files were put back, and it runs again" in output
    )
    assert machine.daemon_json.read_bytes() == installed
    assert {path: path.is_file() and path.read_bytes() for path in (machine.prefix / "etc").rglob("*")} == etc
    (tmp_path / "bad-without").unlink()
    machine.run("uninstall", "--restart")
    assert (machine.daemon_json.read_text() if machine.daemon_json.exists() else None) == before
    assert not machine.prefix.exists()


def test_an_engine_that_stays_down_is_said(machine: Machine, systemd: Path, tmp_path: Path) -> None:
    """Also with its old files: both answers are in the one line."""
    machine.daemon_json.parent.mkdir(parents=True)
    machine.daemon_json.write_text("{}")
    for name in ("bad", "bad-without"):
        (tmp_path / name).touch()
    output = machine.run("install", "--engine", "docker", "--restart", status=1)
    assert output.startswith("GH-509: ") and "its files were put back, and it still fails: " in output
    assert machine.daemon_json.read_text() == "{}" and not (machine.prefix / "etc/engines.json").exists()


@pytest.mark.parametrize(
    "act, why", (("printf 'a\\nthe last line\\n' >&2; exit 1", "the last line"), ("exec sleep 100", "no end after 1 s"))
)
def test_what_systemctl_says_is_one_line(
    machine: Machine, systemd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str, why: str
) -> None:
    """A restart that does not end is rolled back as one that fails."""
    monkeypatch.setattr(daemons, "SYSTEMCTL_SECONDS", 1)
    machine.daemon_json.parent.mkdir(parents=True)
    machine.daemon_json.write_text("{}")
    (tmp_path / "bin/systemctl").write_text(f'#!/bin/sh\n[ "$1" != is-active ] || exit 0\n{act}\n')
    output = machine.run("install", "--engine", "docker", "--restart", status=1)
    said = f"GH-509: systemctl reload docker: {why}; its files were put back, and it still fails: {why}; see its log"
    assert output.splitlines()[0] == said
    assert machine.daemon_json.read_text() == "{}"


def test_a_daemon_that_ends_at_the_reload_is_an_error(machine: Machine, tmp_path: Path) -> None:
    """docker 20.10 does so at some files; nothing of ours stays in its file, and nothing says that it was reloaded."""
    machine.daemon_json.parent.mkdir(parents=True)
    machine.daemon_json.write_text("{}")
    program = tmp_path / "dockerd"  # the process's name is the script's
    program.write_text("#!/bin/sh\nwhile sleep 1; do :; done\n")
    program.chmod(0o755)
    # Whoever runs the tests by nohup has the signal ignored.
    heard = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
    dockerd = subprocess.Popen([program, f"--config-file={machine.daemon_json}"], preexec_fn=heard)
    try:
        until(lambda: list(daemons.readers("docker", machine.daemon_json)))
        output = machine.run("install", "--engine", "docker", "--restart", status=1)
        assert output.startswith(f"GH-509: kill -HUP {dockerd.pid}: dockerd ({dockerd.pid}) ended; ")
        assert "its files were put back, and it does not run: start it" in output
        assert machine.daemon_json.read_text() == "{}"
    finally:
        dockerd.kill()
        dockerd.wait()


def tree(folder: Path) -> dict[Path, object]:
    return {path: path.read_bytes() if path.is_file() else path.stat().st_mode for path in folder.rglob("*")}


def test_a_dry_run_with_every_option_changes_nothing(machine: Machine, systemd: Path, tmp_path: Path) -> None:
    """No file anywhere, no engine told; neither by install nor by uninstall."""
    systemd.touch()
    before = tree(tmp_path)
    output = machine.run("install", "--dry-run", "--restart", "--set-default")
    assert "docker: would create" in output and "has read" not in output
    assert tree(tmp_path).keys() - before.keys() <= {Path(edits.LOCK)}
    machine.run("install")
    installed = tree(tmp_path)
    assert "docker: would remove" in machine.run("uninstall", "--dry-run", "--restart", "--force")
    assert tree(tmp_path) == installed and systemd.read_text() == ""


def test_an_engines_file_that_broke_meanwhile_is_not_ours_to_fix(machine: Machine) -> None:
    """An uninstall that cannot take its lines out takes nothing away, of no engine."""
    machine.run("install")
    machine.daemon_json.write_text(machine.daemon_json.read_text().replace("}\n}", "},\n}"))
    before = tree(machine.root) | tree(machine.prefix)
    said = machine.run("uninstall", status=1)
    assert said.startswith(f"GH-506: {machine.daemon_json}:") and "not JSON" in said
    assert tree(machine.root) | tree(machine.prefix) == before
    machine.daemon_json.write_text(machine.daemon_json.read_text().replace("},\n}", "}\n}"))
    machine.run("uninstall")
    assert not machine.prefix.exists() and not (machine.root / "etc").exists()
