"""docs/reference/cli.md is what `--help` of all commands says."""

import sys

import pytest

from testbed import REPO

sys.path.insert(0, str(REPO / "scripts"))

import cli_page


def test_the_page_is_what_the_commands_say() -> None:
    pytest.importorskip("gpu_hook_simulator")  # its commands are on the page
    assert cli_page.PAGE.read_text() == cli_page.page(), "scripts/cli_page.py writes it anew"
