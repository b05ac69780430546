"""The reference pages list every error code and every setting of the code."""

import re
from pathlib import Path

from oci_hook.config import keys
from oci_hook.errors import CODES

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_code_has_its_section() -> None:
    text = (DOCS / "reference/errors.md").read_text()
    sections = re.findall(r"^### (GH-\d{3})\n\nMeaning: (.+?)\.\n\n(?=[A-Z`])", text, re.M | re.S)
    assert {code: " ".join(what.split()) for code, what in sections} == CODES
    assert len(sections) == text.count("\n### ")


def test_every_setting_is_listed() -> None:
    named = re.findall(r"^- `([a-z_.]+)` \(`", (DOCS / "reference/settings.md").read_text(), re.M)
    assert sorted(named) == sorted(keys.READERS)


def test_codes_in_documents_exist() -> None:
    for page in DOCS.rglob("*.md"):
        assert set(re.findall(r"GH-\d{3}", page.read_text())) <= set(CODES), page.name
