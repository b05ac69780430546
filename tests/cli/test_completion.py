"""`gpu-hook completion`: the scripts, and what bash completes with one."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from oci_hook.cli import completion
from oci_hook.cli.main import cli
from oci_hook.core.grant import Share
from tests.cli.box import Install

REPO = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_each_shell_has_its_script(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0 and done.output.rstrip("\n") == completion.script(shell).rstrip("\n")
    assert f"_GPU_HOOK_COMPLETE={shell}_complete" in done.output
    if program := shutil.which(shell):
        assert subprocess.run([program, "-n"], input=done.output, text=True, capture_output=True).returncode == 0


def test_a_shell_that_there_is_none_for() -> None:
    done = CliRunner().invoke(cli, ["completion", "tcsh"])
    assert done.exit_code == 2 and "'bash', 'zsh', 'fish'" in done.output


@pytest.mark.parametrize(
    ("words", "expected"),
    [("un", "uninstall"), ("top --o", "--once"), ("completion z", "zsh"), ("settings ch", "check")],
)
def test_bash_completes(tmp_path: Path, words: str, expected: str) -> None:
    assert completed(tmp_path, words) == expected


def test_bash_completes_containers(tmp_path: Path, install: Install) -> None:
    """By their names; those without one by their ids. Nothing where there is no install."""
    share = Share("GPU-0", 1024, 0)
    install.grant("a" * 64, share, who={"namespace": "ml", "pod": "train-1", "container": "main"})
    install.grant("web-7", share)
    prefix = f"--prefix {install.prefix}"
    for command in ("why", "freeze", "resume", "set", "release"):
        assert completed(tmp_path, f"{command} {prefix} ml/t") == "ml/train-1/main", command
    assert completed(tmp_path, f"events {prefix} -c ml/t") == "ml/train-1/main"
    assert completed(tmp_path, f"why {prefix} web") == "web-7"
    assert completed(tmp_path, f"why --prefix {tmp_path}/none we") == ""


def completed(tmp_path: Path, words: str) -> str:
    """What bash, after Tab, has for the last word."""
    program = tmp_path / "gpu-hook"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m oci_hook "$@"\n')
    program.chmod(0o755)
    typed = ["gpu-hook", *words.split()]
    text = (
        f'eval "$(gpu-hook completion bash)"; COMP_WORDS=({" ".join(typed)}); COMP_CWORD={len(typed) - 1};'
        ' _gpu_hook_completion gpu-hook; echo "${COMPREPLY[*]}"'
    )
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(REPO)}
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, env=environment, timeout=120)
    assert not done.stderr
    return done.stdout.rstrip("\n")
