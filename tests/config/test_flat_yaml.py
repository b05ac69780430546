"""The text of settings.yaml: the hot path's reader, the launcher's and PyYAML agree on every file."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oci_hook.config import flat_yaml
from oci_hook.install.settings_template import default_settings_yaml
from testbed import REPO
from testbed.compiled import ZIG
from testbed.long import draws

LAUNCHER = REPO / "oci_hook/launcher"
Settings = list[tuple[str, "flat_yaml.Value"]]


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bytes], "Settings | None"]]:
    """What the launcher reads in a file: its settings in order, None where a line is outside the subset."""
    program = tmp_path_factory.mktemp("flat_yaml") / "reader"
    sources = [LAUNCHER / "flat_yaml.c", REPO / "tests/config/flat_yaml_main.c"]
    cc = [*ZIG, "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", str(LAUNCHER)]
    subprocess.run(
        [*cc, "-fsanitize=undefined", "-fsanitize-trap=undefined", "-o", str(program), *map(str, sources)], check=True
    )
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdin and reader.stdout
        stdin, stdout = reader.stdin, reader.stdout

        def text() -> str:
            found = b""
            while (byte := stdout.read(1)) != b"\0":
                assert byte, "the reader ended"
                found += byte
            return found.decode()

        def read(data: bytes) -> "Settings | None":
            stdin.write(b"%d\n" % len(data) + data)
            stdin.flush()
            found, outside = [], False
            while key := text():
                value = text()
                outside |= key == "?"
                items = [item.strip(" ") for item in value[2:-1].split(",")] if value[:1] == "[" else []
                found.append((key, value[1:] if value[:1] != "[" else tuple(items) if items != [""] else ()))
            return None if outside else found

        yield read
        stdin.close()


def hot_path(data: bytes) -> "Settings | None":
    found = list(flat_yaml.lines(data))
    return None if any(problem for *_, problem in found) else [(key, value) for _, key, value, _ in found]


def check(launcher: Callable[[bytes], "Settings | None"], data: bytes) -> None:
    """The three read the same, or the file is outside the subset for us; that PyYAML takes more is no harm."""
    ours = hot_path(data)
    if len(data) <= flat_yaml.MAX_SIZE:
        assert launcher(data) == ours
    if ours is None:
        return
    if len({key for key, _ in ours}) < len(ours):
        return  # config/settings.py refuses a key that is there twice
    read = yaml.load(data, Loader=yaml.BaseLoader)
    if read is not None:
        read = {key: tuple(value) if isinstance(value, list) else value for key, value in read.items()}
    assert (read or {}) == dict(ours)


CHARACTERS = "ab.Z_09 :#'\"[],-/\\&*!|>{}%@`?=~+\n\t\r\0\x7f\x85\xa0\u2028\u2029\ufeff\ufffe\uffffé漢😀"
KEYS = st.sampled_from(["mode", "agent.policy", "a_1.b", "A", "1a", "a b", "é", "-", "", "<<", "y"])
VALUES = st.one_of(
    st.sampled_from(["below", "/usr/sbin/runc", "4Gi", "127.0.0.1:9409", "[::1]:9409", "'[::1]:9409'", "true", "~"]),
    st.sampled_from(["[a, b]", "[]", "[ ]", "[a,b ]", "[a, ]", "[a b]", "['a']", "[[a]]", "[a:b]", "[a", "a#b", "a:"]),
    st.sampled_from(["|", ">", "&a b", "*a", "!!str x", "{a: b}", "- a", "0x10", "1_000", "1:30", "2001-01-01", "no"]),
    st.text(CHARACTERS, max_size=8),
    st.text(CHARACTERS, max_size=8).map(lambda text: f'"{text}"'),
    st.text(CHARACTERS, max_size=8).map(lambda text: f"'{text}'"),
)
TAILS = st.sampled_from(["", "", " ", "  # c", "# c", " #", " x", "\t", "\r", " # é漢", " # \u2028a: b", "\n  more"])
BLANKS = st.sampled_from([": ", ": ", ":  ", ":", " : ", ":\t", ":\n"])
LINES = st.one_of(
    st.builds("{}{}{}{}".format, KEYS, BLANKS, VALUES, TAILS),
    st.builds("{}{}{}{}".format, KEYS, BLANKS, VALUES, TAILS),
    st.sampled_from(
        ["", " ", "# comment", "  # comment", "---", "...", "%YAML 1.2", "rules:", "  a: b", "- a", "\ufeffa: b"]
    ),
    st.text(CHARACTERS, max_size=12),
)
FILES = st.lists(LINES, max_size=6).map("\n".join)


@settings(max_examples=draws(400), deadline=None)
@given(FILES)
@example("a: b\n\ufeff")
@example("a: 'b'#c")
@example("a: b\x85c: d")
@example('a: "b\\"')
@example("a: [b]#c")
@example("a: [b]]")
@example("# \x80")
def test_the_three_readers_agree(launcher, text):
    check(launcher, text.encode())


@settings(max_examples=draws(150), deadline=None)
@given(FILES, st.binary(max_size=3), st.integers(0, 60))
@example("# ", b"\xff", 2)
@example("a: b # ", b"\xed\xa0\x80", 7)  # a surrogate
@example("# ", b"\xc0\x80", 2)  # longer than it need be
@example("# ", b"\xf4\x90\x80\x80", 2)  # beyond U+10FFFF
@example("# ", b"\xe2\x82", 2)  # cut short
def test_the_three_readers_agree_on_any_bytes(launcher, text, more, at):
    data = text.encode()
    check(launcher, data[:at] + more + data[at:])


@settings(max_examples=draws(300), deadline=None)
@given(st.text(CHARACTERS, max_size=10) | st.lists(st.text("ab-.1", max_size=3), max_size=3).map(tuple))
def test_what_is_quoted_is_read_back(launcher, value):
    try:
        line = f"key: {flat_yaml.quoted(value)}"
    except ValueError:
        return
    assert hot_path(line.encode()) == [("key", value)]
    check(launcher, line.encode())


def test_the_commented_file_is_in_the_subset_and_typed_alike(launcher):
    """With YAML's usual types, too: a number of ours is a number there, a flag a flag, everything else text."""
    data = default_settings_yaml(runtime="/srv/it's: #1").encode()
    check(launcher, data)
    assert hot_path(data) is not None
    typed = yaml.safe_load(data)
    for key, value in hot_path(data) or ():
        if isinstance(value, tuple):
            assert typed[key] == list(value)
        elif isinstance(typed[key], bool):
            assert value == str(typed[key]).lower()
        else:
            assert value == str(typed[key])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("rules:\n", "1: rules has no value; write key: value in one line, or remove the line"),
        ("a: b\n  c: d\n", "2: begins with a blank; settings are not nested: write key: value from the line's first"),
        ("a:b\n", "1: a: write a blank after the colon"),
        ("- a\n", "1: '- a' is not a setting; write key: value"),
        ("---\n", "1: '---' is not a setting"),
        ("Mode: x\n", "1: 'Mode: x' is not a setting; write key: value, with a key of lower-case letters"),
        ("a: b c\n", "1: a: 'c' follows the value; a value with blanks needs quotes"),
        ("a: *b\n", "1: a: '*b' has characters that need quotes; write a: \"value\""),
        ("a: b:\n", "1: a: 'b:' has characters that need quotes"),
        ("a: 'b\n", "1: a: end the value with ' on its line; it may have no backslash and no '"),
        ('a: "b\\n"\n', '1: a: end the value with " on its line; it may have no backslash and no "'),
        ("a: [b, [c]]\n", "1: a: write a list of plain words on one line: [a, b]"),
        ("a: b\r\n", "1: has a carriage return; save the file with Unix line ends"),
        ("a:\tb\n", "1: has a tab; use blanks"),
        ("\ufeffa: b\n", "1: begins with a byte order mark; save the file as UTF-8 without it"),
        ("a: b\n# \0\n", "2: has the character U+0000, which settings may not have"),
        ("#\n# \u2028\n", "2: has the character U+2028"),
    ],
)
def test_what_is_outside_the_subset_is_named_with_its_line_and_what_to_write(text, why):
    [said] = [f"{line}: {problem}" for line, _, _, problem in flat_yaml.lines(text.encode()) if problem]
    assert said.startswith(why)


def test_a_file_that_is_no_text_or_too_long():
    assert [problem for *_, problem in flat_yaml.lines(b"a: b\n# \xff")] == [
        "is not UTF-8 text; save the file as UTF-8"
    ]
    assert [line for line, *_ in flat_yaml.lines(b"a: b\n# \xff")] == [2]
    assert list(flat_yaml.lines(b"#" * flat_yaml.MAX_SIZE)) == []
    assert "more than 65536 bytes" in next(flat_yaml.lines(b"#" * (flat_yaml.MAX_SIZE + 1)))[3]
    text = (LAUNCHER / "flat_yaml.h").read_text()
    assert f"FLAT_YAML_MAX ({flat_yaml.MAX_SIZE >> 10} << 10)" in text
    assert Path(flat_yaml.__file__).name in text
