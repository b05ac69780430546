"""What every text of the repository keeps: its width, the field's words, subjects first, and links that lead to a heading."""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
WIDTH = 140
# What no person writes or reads by the line.
NOT_TEXT = re.compile(r"^data/|packages\.txt$|\.(svg|json|png)$")
# Words that one of the field's words replaced: GPU, shim, fix.
OLD_WORDS = re.compile(r"(?<![\w-])(cards?|stand-?ins?|mend(?:s|ed|ing)?)(?![\w-])", re.IGNORECASE)
# Where such a word means something else.
OTHER_MEANINGS = {
    "oci_hook/discovery/discover.py": '"card"',  # the kernel's name for nodes of /dev/dri
    "tests/test_docs.py": "card|stand|mend",  # this list
}


def lines() -> Iterator[tuple[str, int, str]]:
    """(file, number, line) of every tracked text file."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, capture_output=True, text=True, check=True).stdout
    for name in names.split("\0"):
        path = REPO / name
        if name and path.is_file() and not NOT_TEXT.search(name):
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                yield name, number, line


def test_no_line_is_wider_than_a_reader_sees() -> None:
    assert [f"{name}:{number}" for name, number, line in lines() if len(line) > WIDTH] == []


def test_old_words_do_not_come_back() -> None:
    found = []
    for name, number, line in lines():
        if OLD_WORDS.search(line) and not re.search(OTHER_MEANINGS.get(name, "^(?!)"), line):
            found.append(f"{name}:{number}: {line.strip()[:100]}")
    assert found == []


def test_no_merge_is_half_done() -> None:
    assert [f"{name}:{number}" for name, number, line in lines() if re.match(r"(<{7}|>{7}) ", line)] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them; headings in fenced blocks are none."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", h).lower() for h in headings)
    return {re.sub(r"[^\w\- ]", "", h).replace(" ", "-") for h in plain}


def test_links_lead_to_files_and_headings() -> None:
    broken = []
    for name in {name for name, _, _ in lines() if name.endswith(".md")}:
        page = REPO / name
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", page.read_text()):
            there = page.parent / target if target else page
            if not there.exists() or there.suffix == ".md" and anchor and anchor not in anchors(there):
                broken.append(f"{name}: {target}#{anchor}")
    assert broken == []


def test_files_that_the_pages_for_developers_name_are_there() -> None:
    missing = []
    for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "docs/internals/recipes.md", "oci_hook/shim/README.md"):
        page = REPO / name
        for path in re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|c|h|def|md|toml|txt))`", page.read_text()):
            if "NAME" not in path and not any(
                (folder / path).exists() for folder in (REPO, REPO / "oci_hook", page.parent)
            ):
                missing.append(f"{name}: {path}")
    assert missing == []


def test_tests_that_pages_name_are_there() -> None:
    known = {"test_NAME.py"}
    for path in [*REPO.glob("tests/**/*.py"), *REPO.glob("simulator/tests/**/*.py")]:
        known |= {path.name, *re.findall(r"^def (test_\w+)", path.read_text(), re.M)}
    missing = []
    for page in [REPO / "ARCHITECTURE.md", REPO / "CONTRIBUTING.md", *(REPO / "docs").rglob("*.md")]:
        missing += [
            f"{page.name}: {n}" for n in re.findall(r"`(?:\w+/)*(test_[\w.]+)`", page.read_text()) if n not in known
        ]
    assert missing == []


# Parts whose comments and docstrings begin with their subject, and the share per hundred that may not.
PARTS = {
    "product": ("oci_hook/", 3.0),
    "kube": ("oci_hook/kube/", 3),
    "agent": ("oci_hook/agent/", 3.0),
    "around": (("scripts/", "build_c/", "testbed/", "benchmarks/", "validation/"), 3.0),
    "simulator": ("simulator/", 3.0),
    "shim": ("oci_hook/shim/", 3.0),
}
# A question and "how to" are no such beginning.
QUESTION_WORD = re.compile(r"(?:who|what|whether|where|how)\b(?! to\b)(?![^.?!]*\?)", re.IGNORECASE)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
C_TEXT = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|/\*.*?\*/|(?:[ \t]*//[^\n]*\n?)+", re.DOTALL)


def python_comments(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of docstrings and comments; only the first line of a block of comments counts."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and (words := ast.get_docstring(node)) is not None:
            yield node.body[0].lineno, words
    block = 0  # the line after a comment that stands alone
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            alone = token.line.lstrip().startswith("#")
            if not alone or token.start[0] != block:
                yield token.start[0], token.string.lstrip("#! ")
            block = token.start[0] + 1 if alone else 0


def c_comments(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of C comments; neighbouring lines of // are one."""
    for found in C_TEXT.finditer(text):
        if (words := found.group().lstrip()).startswith("/"):
            yield text.count("\n", 0, found.start()) + 1, re.sub(r"\s*\n\s*(//|\*)?\s*", " ", words).strip("/* ")


def inverted(name: str, text: str) -> tuple[int, list[str]]:
    """The number of comments, and those that begin with a question word in place of their subject."""
    comments = list((python_comments if name.endswith(".py") else c_comments)(text))
    return len(comments), [f"{name}:{line}: {words[:80]}" for line, words in comments if QUESTION_WORD.match(words)]


def test_comments_begin_with_their_subject() -> None:
    names = {name for name, _, _ in lines() if name.endswith((".py", ".c", ".h", ".def"))}
    for part, (folder, bound) in PARTS.items():
        counts = [inverted(name, (REPO / name).read_text()) for name in sorted(names) if name.startswith(folder)]
        total, found = sum(count for count, _ in counts), [line for _, more in counts for line in more]
        assert total > 300, part
        assert 100 * len(found) < bound * total, f"{part}: {len(found)} of {total}\n" + "\n".join(found)


def test_inverted_comments_are_found_in_python_and_c() -> None:
    python = '"""Who asks is told."""\n# What is it?\nx = "# How"  # whether it is so\n# It is\n# what it is\ny = 1  # How to run it\n'
    assert inverted("a.py", python) == (5, ["a.py:1: Who asks is told.", "a.py:3: whether it is so"])
    c = '/* What is kept. */\n// It goes on\n// where nobody is\nchar *s = "/* Who */"; // how often\n'
    assert inverted("a.c", c) == (3, ["a.c:1: What is kept.", "a.c:4: how often"])
