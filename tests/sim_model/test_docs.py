"""What docs/compute-model.md prints is what the commands print."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from oci_hook.cli.sim_model import model

TEXT = (Path(__file__).resolve().parent.parent.parent / "docs" / "compute-model.md").read_text()
BLOCKS = re.findall(r"```\n\$ gpu-hook sim model (.*)\n((?:.*\n)*?)```", TEXT)


def test_all_groups_are_shown() -> None:
    assert len(BLOCKS) == TEXT.count("$ gpu-hook sim model") >= 7


@pytest.mark.slow
@pytest.mark.usefixtures("share_model")
@pytest.mark.parametrize(("command", "printed"), BLOCKS, ids=[b[0] for b in BLOCKS])
def test_tables_are_what_the_command_prints(command: str, printed: str) -> None:
    """After a change of a law: run the command, look, and put its output in the document."""
    done = CliRunner().invoke(model, shlex.split(command))
    assert done.exit_code == 0
    assert done.output == printed


def test_it_is_said_that_nothing_is_enforced() -> None:
    assert "Nothing enforces compute shares yet" in TEXT
