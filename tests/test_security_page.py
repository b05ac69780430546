"""docs/internals/security-rules.md: every rule has a test, and the tests that it names exist."""

import re
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
PAGE = (REPO / "docs/internals/security-rules.md").read_text()


def test_every_rule_names_tests_that_exist() -> None:
    rules = dict(re.findall(r"^## (R\d+)\n(.*?)(?=^#)", PAGE, re.M | re.S))
    assert list(rules) == [f"R{n}" for n in range(1, 27)]
    assert all("::test_" in text for text in rules.values())
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", PAGE)
    missing = [pair for pair in named if f"def {pair[1]}(" not in (REPO / pair[0]).read_text()]
    assert named and not missing
