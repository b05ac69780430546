"""docs/internals/benchmarks.md: its tables are those of data/benchmarks, and each benchmark has both."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import _page

FIGURE = {"value": 1.44, "unit": "x python", "budget": 1.7, "ok": True}
FREE = {"value": 24.2, "unit": "ms", "budget": None, "ok": True}
HEAD = {"date": "2026-11-26", "machine": "2 cores, load 1", "command": "scripts/bench start"}


def test_the_page_is_what_the_data_says() -> None:
    text = _page.PAGE.read_text()
    assert text == _page.page(text, _page.results()), "scripts/bench --write writes it anew"


def test_each_benchmark_has_a_section_and_data() -> None:
    names = {p.stem for p in Path(_page.__file__).parent.glob("*.py") if not p.stem.startswith("_")}
    assert set(re.findall(r"^## (\w+)$", _page.PAGE.read_text(), re.M)) == names
    assert set(_page.MARKS.findall(_page.PAGE.read_text())) == names == set(_page.results())
    for name, data in _page.results().items():
        assert data["command"].startswith(f"scripts/bench {name}"), name
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", data["date"]) and data["machine"], name
        assert all(f.keys() >= {"value", "unit", "budget", "ok"} for f in data["figures"].values()), name


def test_a_table_shows_what_has_a_budget_unless_that_is_little() -> None:
    few = _page.table({**HEAD, "figures": {"a": FIGURE, "b": FREE}})
    assert few.splitlines()[-2:] == ["| `a` | 1.7 | 1.44 x python |", "| `b` |  | 24.2 ms |"]
    many = _page.table({**HEAD, "simulated": True, "figures": {**dict.fromkeys("acde", FIGURE), "b": FREE}})
    assert "`b`" not in many and many.count("1.44 x python") == 4
    assert many.startswith("`scripts/bench start`, 2026-11-26, 2 cores, load 1, **simulated**:\n")
    assert "**missed**" in _page.table({**HEAD, "figures": {"a": {**FIGURE, "ok": False}}})


def test_a_run_is_kept_with_its_conditions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_page, "DATA", tmp_path / "new")
    _page.record("start", {"a": FIGURE}, "scripts/bench start --short", 3.4, False, {})
    kept = json.loads((tmp_path / "new/start.json").read_text())
    assert kept["command"] == "scripts/bench start --short" and kept["figures"] == {"a": FIGURE}
    assert kept["machine"].endswith(", load 3") and "simulated" not in kept
    # A later part of the same: what it did not measure stays, its own date and figures count.
    before = {**kept, "date": "2020-01-01", "rows": [1], "figures": {"a": FREE, "b": FREE}}
    _page.record("start", {"a": FIGURE}, "scripts/bench start --pure", 0, True, before)
    again = _page.results()["start"]
    assert (again["rows"], again["simulated"], again["date"]) == ([1], True, kept["date"])
    assert again["figures"] == {"a": FIGURE, "b": FREE}


def test_a_section_without_data_is_told() -> None:
    with pytest.raises(KeyError, match="nothing"):
        _page.page("<!-- figures: nothing -->\n<!-- end -->", {})
