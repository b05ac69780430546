"""data/mistakes.txt: what people write and what they see, word for word. `python -m tests.test_mistakes` writes the
answers anew; read what changed before it is committed."""

import re
import shlex
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from oci_hook.core.grant import Share
from oci_hook.discovery.save import save_inventory
from oci_hook.install import settings_edit
from tests.cli.box import Install

PAGE = Path(__file__).resolve().parents[1] / "data/mistakes.txt"
ROW = re.compile(r"^    (\S.*)\n      → (.*(?:\n {8}.*)*)$", re.MULTILINE)
SETTING = re.compile(r"([a-z_]+)=(\S+): (.*)")
WIDTH = 138


def node(folder: Path) -> Install:
    """Two GPUs of 24 GiB, whose programs take 300 MiB for a context; on GPU 1 is a container with 20 GiB and 80 %."""
    install = Install(folder)
    gpus = tuple(gpu.replace(context_mib=300, arch="8.6", brand="tesla") for gpu in install.inventory.gpus)
    save_inventory(install.settings, install.inventory.replace(gpus=gpus, cuda_version="12.4"))
    install.grant("other", Share("GPU-1", 20480, 80))
    return install


def answer(install: Install, words: str) -> str:
    """The first line that `gpu-hook explain` says on standard error."""
    setting = SETTING.fullmatch(words)
    if setting:
        settings_edit.change(str(install.prefix), **{setting[1]: setting[2]})
    try:
        return install.run("explain", *shlex.split(setting[3] if setting else words)).stderr.partition("\n")[0]
    finally:
        if setting:
            settings_edit.change(str(install.prefix), **{setting[1]: DEFAULTS[setting[1]]})


DEFAULTS = {"near_misses": "auto", "trust_env": "false", "profile": "none"}


def rows() -> list[tuple[str, str]]:
    """(what is written, the line that is said) of each row."""
    return [(words, said.replace("\n       ", "")) for words, said in ROW.findall(PAGE.read_text())]


def folded(line: str) -> str:
    first, then = "      → ", " " * 8
    return textwrap.fill(line, WIDTH, initial_indent=first, subsequent_indent=then, break_on_hyphens=False)


def test_there_are_sixty_mistakes() -> None:
    assert len({words for words, _ in rows()}) == len(rows()) >= 60
    assert PAGE.read_text().count("\n      → ") == len(rows())


@pytest.mark.root
def test_each_mistake_is_told_as_written_down(tmp_path: Path) -> None:
    install = node(tmp_path)
    assert [(words, answer(install, words)) for words, _ in rows()] == rows()


def write() -> None:
    with tempfile.TemporaryDirectory() as folder:
        install = node(Path(folder))
        PAGE.write_text(ROW.sub(lambda row: f"    {row[1]}\n{folded(answer(install, row[1]))}", PAGE.read_text()))


if __name__ == "__main__":
    sys.exit(write())
