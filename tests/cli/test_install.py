"""`gpu-hook install` and `uninstall` of one machine's engines, seen from the command line."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from oci_hook.cli.main import cli
from oci_hook.core.grant import Grant, Identity, Life
from oci_hook.engines import edits
from oci_hook.ledger import store
from tests.terms import made

DOCKER = "etc/docker/daemon.json"


class Machine:
    """A machine with dockerd, whose / is a folder, and a prefix for the install."""

    def __init__(self, root: Path) -> None:
        self.root, self.prefix = root / "host", root / "prefix"
        program = self.root / "usr/bin/dockerd"
        program.parent.mkdir(parents=True)
        program.touch()
        self.state = root / "state"

    def run(self, *args: str, status: int = 0) -> Result:
        where = ("--prefix", str(self.prefix), "--host-root", str(self.root))
        result = CliRunner().invoke(cli, [*args, *where], catch_exceptions=False)
        assert result.exit_code == status, result.output
        return result

    def install(self, *args: str) -> str:
        return self.run("install", "--state-dir", str(self.state), *args).stdout


@pytest.fixture
def machine(native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(edits, "LOCK", str(tmp_path / "lock"))
    return Machine(tmp_path)


def test_registered_and_unregistered(machine: Machine) -> None:
    lines = machine.install().splitlines()
    assert lines[0].startswith(f"installed in {machine.prefix}: runtime ")
    assert f"docker: created {machine.root / DOCKER}" in lines
    assert "docker: takes effect after `systemctl reload docker`" in lines
    assert list(json.loads((machine.root / DOCKER).read_text())["runtimes"]) == ["gpu-hook"]
    assert "docker: unchanged" in machine.install()
    text = machine.run("uninstall").stdout
    assert f"docker: removed {machine.root / DOCKER}" in text and text.endswith(f"removed {machine.prefix}\n")
    assert not (machine.root / DOCKER).exists() and not machine.prefix.exists()
    assert machine.run("uninstall", status=1).stderr.startswith("GH-504: ")


def test_json(machine: Machine) -> None:
    data = json.loads(machine.install("--json"))
    assert set(data) == {"prefix", "dry_run", "runtime", "state_dir", "engines"} and not data["dry_run"]
    (engine,) = data["engines"]
    assert (engine["engine"], engine["command"], engine["restarted"]) == ("docker", "systemctl reload docker", False)
    assert [(f["path"], f["change"]) for f in engine["files"]] == [(str(machine.root / DOCKER), "created")]


def test_a_dry_run_changes_nothing(machine: Machine) -> None:
    text = machine.install("--dry-run")
    assert text.startswith(f"would install in {machine.prefix}\n")
    assert f"docker: would create {machine.root / DOCKER}" in text and "+" in text
    assert not machine.prefix.exists() and not (machine.root / "etc").exists()
    machine.install("--no-engines")
    assert not (machine.root / "etc").exists()
    last = f"would remove {machine.prefix} with its settings and ledger"
    assert machine.run("uninstall", "--dry-run").stdout == f"registered with no engine\n{last}\n"
    assert machine.prefix.exists()


def test_a_dry_run_refuses_what_an_install_would(machine: Machine) -> None:
    machine.prefix.mkdir()
    (machine.prefix / "notes").touch()
    for flags in (("--dry-run",), ()):
        refused = machine.run("install", "--no-engines", "--state-dir", str(machine.state), *flags, status=1).stderr
        assert refused.startswith(f"GH-504: {machine.prefix}/notes is not gpu-hook's")
    (machine.prefix / "notes").unlink()
    for flags in (("--dry-run",), ()):
        refused = machine.run("install", "--state-dir", "/", *flags, status=1).stderr
        assert refused == "GH-501: state_dir: '/' must be a directory of its own\n"


def test_what_an_engine_refuses_is_not_installed(machine: Machine) -> None:
    (machine.root / "etc/docker").mkdir(parents=True)
    (machine.root / DOCKER).write_text("{")
    refused = machine.run("install", "--state-dir", str(machine.state), status=1).stderr
    assert refused.startswith("GH-506: ") and not machine.prefix.exists() and not machine.state.exists()
    machine.install("--no-engines")
    machine.run("install", status=1)
    assert machine.prefix.exists()  # what was there stays


def test_a_place_where_no_program_can_run_is_not_installed_to(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    for flags in (("--dry-run",), ()):
        refused = machine.run("install", "--state-dir", str(machine.state), *flags, status=1).stderr
        assert refused.startswith(f"GH-504: no install can be in {machine.prefix}: ") and "is mounted noexec" in refused
        assert not machine.prefix.exists() and not machine.state.exists()


def test_uninstalled_by_force_beside_a_container(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.install()
    web = made(Grant, "k" * 32, Identity("/run/runc", "web", "/b"), Life(""), ())
    monkeypatch.setattr(store, "snapshot", lambda state_dir: (web,))
    assert machine.run("uninstall", status=1).stderr.startswith("GH-504: 1 container(s) hold shares (web)")
    assert machine.run("uninstall", "--force").stdout.splitlines()[-1] == (
        "still running: web; an engine that made them by gpu-hook cannot remove them now: `gpu-hook install --prefix"
        f" {machine.prefix}` again, and end them"
    )


def test_print_only_prints(machine: Machine) -> None:
    text = machine.run("install", "--print", "--engine", "docker").stdout
    assert text.startswith("# docker: merge into /etc/docker/daemon.json") and '"gpu-hook"' in text
    assert not machine.prefix.exists()


def test_an_engine_that_is_not_here(machine: Machine) -> None:
    result = machine.run("install", "--engine", "crio", "--state-dir", str(machine.state), status=1)
    assert result.stderr.startswith("GH-505: crio is not on this machine: no crio in /usr/bin, ")
    assert "engines that are here: " in result.stderr and "--print" in result.stderr
    assert not machine.prefix.exists()
