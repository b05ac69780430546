"""The head of a slot file: the host finds what the stand-in's header puts there."""

import subprocess
import sys
from pathlib import Path

import pytest

from oci_hook.core import slot_page

SHIM = Path(__file__).resolve().parents[2] / "oci_hook" / "shim"

WRITER = r"""
#include <stdio.h>
#include "slot_page.h"
int main(void) {
    static struct gh_slot_head head = {.magic = GH_SLOT_MAGIC, .version = GH_SLOT_VERSION, .preempt_bound = 1234567};
    _Static_assert(sizeof head == 512, "head");
    return fwrite(&head, 1, sizeof head, stdout) != sizeof head;
}
"""


@pytest.mark.skipif(not (SHIM / "slot_page.h").exists(), reason="the stand-in writes no slot files yet")
def test_python_reads_what_c_wrote(tmp_path: Path) -> None:
    (tmp_path / "writer.c").write_text(WRITER)
    cc = [sys.executable, "-m", "ziglang", "cc"]
    subprocess.run([*cc, "-I", str(SHIM), "-o", tmp_path / "writer", tmp_path / "writer.c"], check=True)
    head = subprocess.run([tmp_path / "writer"], check=True, capture_output=True).stdout
    assert len(head) == slot_page.HEAD_SIZE and slot_page.preempt_bound_us(head) == 1235


@pytest.mark.parametrize("head", [b"", bytes(512), b"\xff" * 512, b"x" * 100])
def test_anything_else_says_nothing(head: bytes) -> None:
    assert slot_page.preempt_bound_us(head) == 0
