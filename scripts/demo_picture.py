"""Writes docs/demo.svg: a recording of `scripts/demo` that plays in a browser, without a program or a service beside it.

usage: .venv/bin/python scripts/demo_picture.py     (root, as the demo)
"""

import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from xml.sax.saxutils import escape

REPO = Path(__file__).resolve().parent.parent
PICTURE = REPO / "docs/demo.svg"
COLUMNS, ROWS = 120, 24
WIDTH, HEIGHT = 7.25, 17  # pixels of a character of 12 px
MARGIN, BAR = 14, 30
LONGEST, SHORTEST, END = 1.6, 0.18, 6.0  # seconds: a wait that is cut, a line at least, the last picture
# Of no use to a reader, and wider than the picture: a run's own folder, the ends of UUIDs, dates.
SHORTER = [
    (re.compile(r"gpu-hook-demo-\w+"), "gpu-hook-demo"),
    (re.compile(r"(GPU-[0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), r"\1"),
    (re.compile(r"\bUUID {28}"), "UUID"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[ T](?=\d\d:)"), ""),
]
STYLE = """
.page { fill: #0d1117; stroke: #30363d } text { fill: #c9d1d9; font: 12px ui-monospace, Menlo, Consolas, monospace; white-space: pre }
.title { fill: #ffffff; font-weight: 600 } .ok { fill: #3fb950 } .code { fill: #ff7b72 } .out { fill: #8b949e } .dot { fill: #30363d }
"""

Line = tuple[float, str]  # seconds after the one before it; text


def recorded() -> list[Line]:
    """Lines of a run of the demo, from its first chapter on. SystemExit where the demo fails."""
    lines: list[Line] = []
    began = 0.0
    with subprocess.Popen([REPO / "scripts/demo"], stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            now = time.monotonic()
            if lines or line.startswith("== "):
                lines.append((now - began if lines else 0.0, short(line.rstrip())))
            began = now
    if demo.returncode != 0:
        raise SystemExit("demo_picture: the demo failed; nothing was written")
    return lines


def short(text: str) -> str:
    for pattern, words in SHORTER:
        text = pattern.sub(words, text)
    return text


def rows(lines: list[Line]) -> list[Line]:
    """The same as rows of the terminal: what is too long goes on, indented, in the next one."""
    out: list[Line] = []
    for wait, text in lines:
        indent = "   |   " if text.startswith("   | ") else "     "
        pieces = [text]
        if len(text) > COLUMNS:
            pieces = textwrap.wrap(text, COLUMNS, subsequent_indent=indent, break_on_hyphens=False)
        out += [(wait if n == 0 else 0.0, piece) for n, piece in enumerate(pieces)]
    return out


def kind(text: str) -> str:
    """The class of a row in STYLE."""
    if text.startswith("== "):
        return "title"
    if text.startswith("   ok "):
        return "ok"
    if "GH-" in text or "CUDA_ERROR" in text or "not permitted" in text:
        return "code"
    return "out" if text.startswith("   |") else ""


def picture(lines: list[Line]) -> str:
    """The SVG. Rows appear one by one and the terminal scrolls; without animations it shows the first rows."""
    shown = rows(lines)
    at, now = [], 0.5
    for wait, text in shown:
        now += min(max(wait, SHORTEST if text else 0.0), LONGEST)
        at.append(now)
    whole = now + END
    part = [f"{100 * t / whole:.2f}%" for t in at]
    width, height = 2 * MARGIN + COLUMNS * WIDTH, BAR + MARGIN + ROWS * HEIGHT
    moves = [f"{part[n]}{{transform:translateY({(ROWS - 1 - n) * HEIGHT}px)}}" for n in range(ROWS, len(shown))]
    style = [STYLE, "@media not (prefers-reduced-motion: reduce) {"]
    style += [f".r{{animation:{whole:.1f}s step-end infinite}}", f"#s{{animation:s {whole:.1f}s step-end infinite}}"]
    style += [
        "@keyframes s{0%{transform:none}",
        *moves,
        f"100%{{transform:translateY({(ROWS - len(shown)) * HEIGHT}px)}}}}",
    ]
    body = []
    for n, (_, text) in enumerate(shown):
        if text:
            style.append(f"#r{n}{{animation-name:r{n}}}@keyframes r{n}{{0%{{opacity:0}}{part[n]},100%{{opacity:1}}}}")
            y = BAR + HEIGHT * (n + 1) - 4
            body.append(f'<text class="r {kind(text)}" id="r{n}" x="{MARGIN}" y="{y}">{escape(text)}</text>')
    style.append("}")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" aria-label="scripts/demo">',
            "<title>A recording of scripts/demo</title>",
            "<style>" + "\n".join(style) + "</style>",
            f'<clipPath id="c"><rect x="0" y="{BAR}" width="{width:.0f}" height="{ROWS * HEIGHT}"/></clipPath>',
            f'<rect class="page" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1}" rx="8"/>',
            *(f'<circle class="dot" cx="{18 + 16 * n}" cy="16" r="5"/>' for n in range(3)),
            f'<text class="out" x="{MARGIN + 56}" y="20">scripts/demo</text>',
            '<g clip-path="url(#c)"><g id="s">',
            *body,
            "</g></g></svg>\n",
        ]
    )


def main() -> int:
    if len(sys.argv) > 1:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 1
    PICTURE.write_text(picture(recorded()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
