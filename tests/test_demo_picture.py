"""docs/demo.svg: it shows what scripts/demo says now, and the program that writes it loses no line of it."""

import re
import subprocess
import sys
from xml.etree import ElementTree

from scripts import demo_picture
from testbed import REPO

STORY = (REPO / "scripts/demo_story.py").read_text()
TEXT = "{http://www.w3.org/2000/svg}text"


def shown(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(TEXT)][1:]  # without the window's title


def test_the_picture_is_of_the_demo_as_it_is() -> None:
    picture = "\n".join(shown(demo_picture.PICTURE.read_text()))
    promised = re.findall(r'^ *(?:expect\(\s*"|title\(f?"\d\. )([^"{]+)', STORY, re.M)
    promised += ["first about 70 to 30", "then about 30 to 70"]
    assert len(promised) > 10
    assert [words for words in promised if words not in picture] == []
    assert "FAIL" not in picture


def test_no_line_is_lost_or_taken_for_markup() -> None:
    lines = [(0.0, "== 1. <b> & you"), (9.0, ""), *[(0.1, f"   | line {n} " + "word " * 40) for n in range(40)]]
    svg = demo_picture.picture(lines)
    rows = shown(svg)
    assert rows[0] == "== 1. <b> & you"
    assert all(len(row) <= demo_picture.COLUMNS for row in rows)
    assert " ".join(rows).count("word") == 40 * 40
    # Each row appears later than the one before it, and the last scroll leaves the last row at the bottom.
    times = [float(t) for t in re.findall(r"@keyframes r\d+\{0%\{opacity:0\}([\d.]+)%", svg)]
    assert len(times) == len(rows) and times == sorted(times) and times[-1] < 100
    below = (demo_picture.ROWS - len(rows) - 1) * demo_picture.HEIGHT  # one row is empty
    assert f"100%{{transform:translateY({below}px)}}" in svg


def test_only_names_get_shorter() -> None:
    line = (
        "   | x      0    GPU-51de0000-1c0b-5c79-ac9a-d7924f3484a4  2026-11-29 22:35:53 /tmp/gpu-hook-demo-ab12_/prefix"
    )
    assert demo_picture.short(line) == "   | x      0    GPU-51de0000  22:35:53 /tmp/gpu-hook-demo/prefix"
    assert demo_picture.short("71% 65% GH-201: no room") == "71% 65% GH-201: no room"


def test_it_takes_no_arguments() -> None:
    before = demo_picture.PICTURE.stat().st_mtime_ns
    command = [sys.executable, REPO / "scripts/demo_picture.py", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "usage:" in done.stderr
    assert demo_picture.PICTURE.stat().st_mtime_ns == before
