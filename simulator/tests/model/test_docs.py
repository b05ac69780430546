"""The outputs in data/model are what the commands print, and docs/compute-model.md leads to them."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpu_hook_simulator.cli_model import model
from gpu_hook_simulator.model_run import Calibration

REPO = Path(__file__).resolve().parents[3]
PAGE = (REPO / "simulator/docs/compute-model.md").read_text()
OUTPUTS = {path.stem: path.read_text().splitlines() for path in sorted((REPO / "data/model").glob("*.txt"))}


def test_each_output_has_its_command_and_the_page_names_it() -> None:
    assert len(OUTPUTS) >= 7
    for name, printed in OUTPUTS.items():
        assert printed[0].startswith(f"$ gpu-hook sim model {name}") and printed[1].startswith("# simulated")
        assert f"`{name}`" in PAGE


def some_rows() -> list[str]:
    """First, middle and last row of each table."""
    tables = [printed[4:] for printed in OUTPUTS.values()]
    return sorted({rows[i] for rows in tables for i in (0, len(rows) // 2, -1)})


@pytest.mark.slow
@pytest.mark.usefixtures("kept_answers")
@pytest.mark.parametrize("row", some_rows(), ids=lambda row: "-".join(row.split()[:2]))
def test_tables_are_what_the_commands_print(row: str) -> None:
    """After a change of a law: run the commands, look, and put their output there."""
    cells = [cell for cell in row.split() if cell != "-"]
    done = CliRunner().invoke(model, [cells[0], "--policy", cells[1]])
    assert done.exit_code == 0
    assert [cell for cell in done.output.splitlines()[-1].split() if cell != "-"] == cells


def test_calibration_is_the_files() -> None:
    named = re.findall(r"calibration ([0-9a-f]{16})", "\n".join(printed[2] for printed in OUTPUTS.values()))
    assert len(named) == len(OUTPUTS) and set(named) == {Calibration().digest[:16]}


def test_it_is_said_that_it_is_simulated() -> None:
    assert "Every figure on this page is simulated" in PAGE
