"""The output in docs/compute-model.md is what the commands print."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpu_hook_simulator.cli_model import model
from gpu_hook_simulator.model_run import Calibration

TEXT = (Path(__file__).resolve().parent.parent.parent / "docs" / "compute-model.md").read_text()
BLOCKS = re.findall(r"```\n\$ gpu-hook sim model (.*)\n((?:.*\n)*?)```", TEXT)


def test_all_groups_are_shown() -> None:
    assert len(BLOCKS) == TEXT.count("$ gpu-hook sim model") >= 7


def some_rows() -> list[str]:
    """First, middle and last row of each table."""
    tables = [printed.splitlines()[3:] for _, printed in BLOCKS]
    return sorted({rows[i] for rows in tables for i in (0, len(rows) // 2, -1)})


@pytest.mark.slow
@pytest.mark.usefixtures("kept_answers")
@pytest.mark.parametrize("row", some_rows(), ids=lambda row: "-".join(row.split()[:2]))
def test_tables_are_what_the_commands_print(row: str) -> None:
    """After a change of a law: run the commands, look, and put their output in the document."""
    cells = [cell for cell in row.split() if cell != "-"]
    done = CliRunner().invoke(model, [cells[0], "--policy", cells[1]])
    assert done.exit_code == 0
    assert [cell for cell in done.output.splitlines()[-1].split() if cell != "-"] == cells


def test_calibration_is_the_files() -> None:
    assert set(re.findall(r"calibration ([0-9a-f]{16})", TEXT)) == {Calibration().digest[:16]}


def test_it_is_said_that_it_is_simulated() -> None:
    assert "Every figure on this page is simulated" in TEXT
