"""Every example of docs/reference/annotations.md, run: what stands behind # is in the answer."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from oci_hook.cli.main import cli
from oci_hook.install import settings_edit
from tests.cli.box import Install

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/annotations.md").read_text()
EXAMPLES = re.findall(r"^    gpu-hook (explain .*?) +# (.*)$", PAGE, re.MULTILINE)


def test_every_example_says_what_it_shows() -> None:
    assert len(EXAMPLES) == PAGE.count("    gpu-hook explain ") >= 12


@pytest.mark.root
@pytest.mark.parametrize(("command", "answer"), EXAMPLES, ids=lambda text: text[-40:])
def test_example(install: Install, command: str, answer: str) -> None:
    yaml = (install.prefix / "etc/settings.yaml").read_text()
    install.say(yaml.replace("dialects: [", "dialects: [qgpu, ").replace("unit: none", "unit: GiB"))
    settings_edit.change(str(install.prefix))
    said = " ".join(install.text(*shlex.split(command)).split())
    for part in answer.split("; "):
        assert part in said


def test_the_manifest() -> None:
    before, after = (re.search(rf"```yaml {name}\n(.*?)```", PAGE, re.DOTALL) for name in ("before", "after"))
    assert before and after
    result = CliRunner().invoke(cli, ["translate", "-"], input=before[1])
    assert (result.exit_code, result.stdout, result.stderr) == (0, after[1], "")
