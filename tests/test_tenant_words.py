"""docs/internals/tenant-words.md: every word that a tenant can write has a row, and the tests that it names exist."""

import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
PAGES = REPO / "oci_hook/shim/pages"
TEXT = (REPO / "docs/internals/tenant-words.md").read_text()
FIELD = re.compile(r"(?:_Atomic\s+)?(?:struct\s+)?\w+\s+((?:\w+(?:\[[^]]*\])*\s*,\s*)*\w+(?:\[[^]]*\])*)\s*;")


def words_of(header: str, struct: str) -> set[str]:
    """The fields of a C struct but for its reserved ones."""
    source = re.sub(r"/\*.*?\*/", " ", (PAGES / header).read_text(), flags=re.S)
    (body,) = re.findall(rf"struct {struct} \{{(.*?)^\}};", source, re.M | re.S)
    names = [re.sub(r"\[.*", "", name).strip() for found in FIELD.findall(body) for name in found.split(",")]
    assert len(names) >= body.count(";"), f"{struct}: a field that is not understood"
    return {name for name in names if not name.startswith("reserved")}


@pytest.mark.parametrize(
    ("header", "struct"),
    [
        ("slot_page.h", "gh_slot_head"),
        ("slot_page.h", "gh_slot_process"),
        ("account_page.h", "gh_account_page"),
        ("account_page.h", "gh_account_gpu"),
        ("account_page.h", "gh_account_entry"),
    ],
)
def test_no_word_is_without_a_row(header: str, struct: str) -> None:
    tables = re.findall(r"^\| words of ([^|]*)\|.*\n((?:\|.*\n)*)", TEXT, re.M)
    rows = {word for head, body in tables if f"`{struct}`" in head for word in re.findall(r"^\|([^|]*)\|", body, re.M)}
    named = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    assert words_of(header, struct) - named == set()


def test_each_row_names_a_test_that_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)
    assert [pair for pair in named if f"def {pair[1] or 'test_'}" not in (REPO / pair[0]).read_text()] == []
    assert len(named) > 30
