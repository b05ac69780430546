"""The command table, what all commands share, and the program as a process."""

import importlib
import json
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from oci_hook import __version__
from oci_hook.cli import main, output
from oci_hook.errors import Problem, SettingsError
from tests.cli.box import Install


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rich", "rich.console", "rich.live", "rich.table", "rich.text"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "oci_hook.cli.top", raising=False)
    done = CliRunner().invoke(main.cli, ["top", "--json"])
    last = done.output.splitlines()[-1]
    assert done.exit_code == 2 and "needs the Python package rich" in last


def test_what_a_terminal_has_no_room_for() -> None:
    rows = [("c1", "GPU-51de0000-6f33-4bf0-a35a-08465603b98f", "3Gi", "running"), ("c2", "-", "12Gi", "x" * 60)]
    header, spare = ("CONTAINER", "UUID", "MEMORY", "STATE"), ("UUID", "MEMORY")
    assert max(map(len, output.table(header, rows, spare, 0))) > 100
    table = output.table(header, rows, spare, 100)
    assert table[1].split() == ["c1", rows[0][1], "3Gi", "running"] and len(table[2]) == 100
    table = output.table(header, rows, spare, 50)
    assert table[1].split() == ["c1", "GPU-51de0000…", "3Gi", "running"] and len(table[2]) == 50 and table[2][-1] == "…"
    assert output.table(header, rows, spare, 40)[0].split() == ["CONTAINER", "MEMORY", "STATE"]
    assert output.table(header, rows, spare, 25)[0].split() == ["CONTAINER", "STATE"]
    assert output.folded("  GPU 1: " + "word " * 9, 40) == [
        "  GPU 1: word word word word word word",
        "    word word word",
    ]
    assert output.folded("x" * 90, 0) == ["x" * 90] and output.folded("", 40) == [""]


def test_every_command_has_a_summary_and_is_there() -> None:
    assert set(main.SUMMARIES) == set(main.COMMANDS)
    for name, where in main.COMMANDS.items():
        module, _, attribute = where.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command) and command.name == name


def subcommands() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name in main.COMMANDS:
        command = main.cli.get_command(click.Context(main.cli), name)
        if isinstance(command, click.Group):
            found += [(name, below) for below in command.commands]
        else:
            found.append((name,))
    return found


WITHOUT_AN_INSTALL = [("completion",), ("controller",), ("sim", "model"), ("translate",)]
# Two answer nobody (a page and an address do), one answers a shell.
WITHOUT_JSON = [("agent",), ("completion",), ("controller",)]


@pytest.mark.parametrize("names", subcommands(), ids=" ".join)
def test_every_command_takes_json_and_if_it_uses_an_install_prefix(names: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main.cli, [*names, "--help"])
    assert result.exit_code == 0
    assert ("--json" in result.output) == (names not in WITHOUT_JSON)
    assert ("--prefix DIR" in result.output) == (names not in WITHOUT_AN_INSTALL)


def test_help() -> None:
    result = CliRunner().invoke(main.cli, ["--help"])
    assert result.exit_code == 0
    for name, summary in main.SUMMARIES.items():
        assert f"  {name} " in result.output and summary in result.output


def test_help_loads_no_command() -> None:
    code = (
        "import sys; from oci_hook.cli.main import cli; cli(['--help'], standalone_mode=False);"
        "print([m for m in sys.modules if m.startswith('oci_hook.cli.') and m != 'oci_hook.cli.main'])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_a_command_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(main.COMMANDS, "sim", "no_such_package.cli:sim")
    for words in (["sim"], ["sim", "up", "--gpus", "2"], ["sim", "--help"], ["sim", "model", "table", "--json"]):
        result = CliRunner().invoke(main.cli, words)
        assert (result.exit_code, result.stdout) == (2, "")
        (line,) = result.stderr.splitlines()
        assert line.endswith("the simulator is not installed: run scripts/setup")
    for home, kind in ((main.PACKAGED, "simulator-deb"), ("/opt/venv/lib/python3.11/site-packages", "simulator-wheel")):
        monkeypatch.setattr(main, "HOME", home)
        (line,) = CliRunner().invoke(main.cli, ["sim"]).stderr.splitlines()
        assert f"`scripts/package {kind}`" in line and "pip install" not in line and len(line) < 300
    assert CliRunner().invoke(main.cli, ["--help"]).exit_code == 0


def test_version_and_unknown_command() -> None:
    said = CliRunner().invoke(main.cli, ["--version"]).output
    assert re.fullmatch(rf"gpu-hook {__version__}( \([0-9a-f]{{7,12}}, 20\d\d-\d\d-\d\d\))?\n", said)
    result = CliRunner().invoke(main.cli, ["bogus"])
    assert result.exit_code == 2 and "No such command 'bogus'" in result.output


@pytest.mark.parametrize(
    ("word", "end"),
    [
        ("evnts", "'evnts'. Did you mean 'events'?"),
        ("instal", "'instal'. Did you mean 'install' or 'uninstall'?"),
        ("PS", "'PS'. Did you mean 'ps'?"),
        ("stop", "'stop'. The engine does that: docker stop, podman stop."),
        ("rm", "'rm'. The engine does that: docker rm, podman rm."),
        ("unfreeze", "'unfreeze'. Did you mean 'resume' or 'freeze'?"),
        ("status", "'status'. Did you mean 'ps'?"),
        ("xyzzy", "'xyzzy'."),
        ("x" * 5000, "x'."),
        ("", "''."),
    ],
)
def test_what_an_unknown_command_resembles(word: str, end: str) -> None:
    result = CliRunner().invoke(main.cli, [word, "--json", "c1"])
    assert result.exit_code == 2 and result.stderr.endswith(end + "\n")
    assert "No such option" in CliRunner().invoke(main.cli, ["--bogus"]).stderr


def test_what_other_tools_call_it_is_no_command_and_leads_to_one() -> None:
    assert set(main.OTHER_WORDS.values()) <= set(main.COMMANDS) and not set(main.OTHER_WORDS) & set(main.COMMANDS)


# One place that prints and exits


@click.command()
@output.answers
def answering(prefix: str) -> output.Report:
    """Answer with a warning."""
    return output.Report({"a": 1}, ["one", "two"], [Problem("GH-505", "w")], exit_status=3)


@click.command()
@output.answers
def failing(prefix: str) -> output.Report:
    """Fail with two problems."""
    raise SettingsError(Problem("GH-501", "first\nline"), Problem("GH-503", "second"))


def test_a_report_for_people_and_as_json() -> None:
    plain = CliRunner().invoke(answering, [])
    assert (plain.exit_code, plain.stdout, plain.stderr) == (3, "one\ntwo\n", "warning: GH-505: w\n")
    as_json = CliRunner().invoke(answering, ["--json"])
    assert json.loads(as_json.stdout) == {"a": 1, "warnings": [{"code": "GH-505", "message": "w"}]}


def test_problems_for_people_and_as_json() -> None:
    plain = CliRunner().invoke(failing, [])
    assert (plain.exit_code, plain.stdout, plain.stderr) == (1, "", "GH-501: first?line\nGH-503: second\n")
    as_json = CliRunner().invoke(failing, ["--json"])
    assert as_json.exit_code == 1 and as_json.stderr == ""
    assert json.loads(as_json.stdout) == {
        "errors": [{"code": "GH-501", "message": "first?line"}, {"code": "GH-503", "message": "second"}]
    }


def test_tables() -> None:
    assert output.table(("A", "LONG"), [("xyz", ""), (1, "e\x1bf")]) == ["A    LONG", "xyz  -", "1    e?f"]
    assert output.table(("A", "B"), []) == ["A  B"]


def test_sizes() -> None:
    assert [output.size(n) for n in (0, 1, 1023, 1024, 1025, 24576)] == [
        "0Mi",
        "1Mi",
        "1023Mi",
        "1Gi",
        "1025Mi",
        "24Gi",
    ]


# The program


def program(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "oci_hook", *args]
    return subprocess.run(argv, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", **env})


def test_the_prefix_comes_from_the_option_or_the_environment(install: Install) -> None:
    prefix = str(install.prefix)
    assert program("ps", "--prefix", prefix).stdout == "no container holds a share\n"
    assert program("ps", GPU_HOOK_PREFIX=prefix).stdout == "no container holds a share\n"
    other = program("ps", "--prefix", "/no/prefix", GPU_HOOK_PREFIX=prefix)
    assert other.returncode == 1 and other.stderr.startswith("GH-501: no gpu-hook install in /no/prefix: ")
    assert len(other.stderr.splitlines()) == 1


def test_exit_status_of_the_process(install: Install) -> None:
    args = ["explain", "--prefix", str(install.prefix), "-a", "gpu-hook.io/memory=x"]
    p = program(*args)
    assert (p.returncode, p.stdout) == (1, "") and p.stderr.startswith("GH-101: ")
    p = program(*args, "--json")
    assert (p.returncode, p.stderr) == (1, "") and json.loads(p.stdout)["errors"][0]["code"] == "GH-101"


def test_a_reader_that_leaves_early_is_no_error(install: Install, tmp_path: Path) -> None:
    err = tmp_path / "err"
    command = (
        f"{shlex.quote(sys.executable)} -m oci_hook settings check --json --prefix {install.prefix} 2>{err} | true"
    )
    subprocess.run(["bash", "-c", command], check=True)
    assert "Traceback" not in err.read_text() and "BrokenPipe" not in err.read_text()


def test_an_answer_that_cannot_be_written(install: Install) -> None:
    command = f"{shlex.quote(sys.executable)} -m oci_hook settings show --json --prefix {install.prefix} >/dev/full"
    done = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "the answer cannot be written: No space left on device\n")


def test_without_a_standard_input(install: Install) -> None:
    command = f"{shlex.quote(sys.executable)} -m oci_hook top --prefix {install.prefix} <&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done


@pytest.mark.root
def test_the_agents_token_is_for_the_agent_alone(install: Install, tmp_path: Path) -> None:
    """Without an agent, any user may listen on its port."""
    token = tmp_path / "token"
    token.write_text("a-secret-of-32-characters-or-more\n")
    token.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0.5)
        install.text(
            "settings", "set", f"agent.address=127.0.0.1:{other.getsockname()[1]}", f"agent.token_file={token}"
        )
        install.text("top", "--once")
        with pytest.raises(TimeoutError):
            other.accept()
