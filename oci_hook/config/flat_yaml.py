"""settings.yaml as text: `key: value` lines, a strict subset of YAML that three readers understand alike.

The readers are this module, launcher/flat_yaml.c and any YAML parser that keeps scalars as text (YAML's failsafe
schema; yaml.BaseLoader). What this module accepts, the other two read as the same keys and values. What is outside the
subset is refused here with its line; the launcher then hands the start of a container over to Python.
tests/config/test_flat_yaml.py compares all three on random files.

A file is UTF-8 text of at most MAX_SIZE bytes. Lines end with a line feed. A line is one of
  - nothing, or blanks
  - blanks and a comment, which begins with #
  - KEY, a colon, one or more blanks, VALUE, and after that nothing, blanks, or blanks and a comment
KEY begins in the first column, with a lower-case letter; lower-case letters, digits, _ and . follow.
VALUE is one of
  - a word of PLAIN characters that begins with a letter, a digit or / and does not end with a colon
  - any characters but the quote between two " or between two '; between two " no backslash either
  - a list [WORD, WORD] of words of letters, digits, _ . and - that begin with a letter or a digit; blanks around them
Every value is text, quoted or not; `true` and `5` become a boolean and a number only where a setting takes one.
Control characters (a tab, a carriage return), U+FEFF, U+2028, U+2029, U+FFFE and U+FFFF are nowhere allowed.
"""

MAX_SIZE = 64 << 10

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
KEY = f"{LETTERS}{DIGITS}_."
WORD = f"{LETTERS}{LETTERS.upper()}{DIGITS}"
ITEM = f"{WORD}_.-"
PLAIN = f"{ITEM}/:+%@=,~"
PRINTABLE = bytes(range(0x20, 0x7F)) + b"\n"
FORBIDDEN = "\ufeff\u2028\u2029\ufffe\uffff"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

    Value: TypeAlias = str | tuple[str, ...]


def lines(data: bytes) -> "Iterator[tuple[int, str, Value, str]]":
    """(line number, key, value, "") of each setting in order; (line number, "", "", what is wrong and what to write
    instead) of each line that is outside the subset. Line 0: the whole file."""
    if len(data) > MAX_SIZE:
        yield 0, "", "", f"more than {MAX_SIZE} bytes"
        return
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        yield data.count(b"\n", 0, e.start) + 1, "", "", "is not UTF-8 text; save the file as UTF-8"
        return
    clean = not data.translate(None, PRINTABLE)
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line[0] == "#" and clean:
            continue
        try:
            if not clean:
                _check_characters(line, number)
            found = split_line(line)
        except ValueError as e:
            yield number, "", "", str(e)
            continue
        if found:
            yield number, found[0], found[1], ""


def split_line(line: str) -> "tuple[str, Value, str] | None":
    """(key, value, what follows the value: blanks and a comment) of one line without its end, None for a line without a
    setting. Raises ValueError with words to put after the line's number."""
    key, colon, rest = line.partition(":")
    if line[:1] in (" ", "#", ""):
        if line.lstrip(" ")[:1] in ("", "#"):
            return None
        raise ValueError("begins with a blank; settings are not nested: write key: value from the line's first column")
    if not colon or key.strip(KEY) or key[:1] not in LETTERS or not key:
        raise ValueError(f"{_show(line)} is not a setting; write key: value, with a key of lower-case letters")
    if rest[:1] not in (" ", ""):
        raise ValueError(f"{key}: write a blank after the colon")
    rest = rest.lstrip(" ")
    first = rest[:1]
    value: Value
    if first in ("", "#"):
        raise ValueError(f"{key} has no value; write key: value in one line, or remove the line")
    if first in "\"'":
        value, end, tail = rest[1:].partition(first)
        if not end or (first == '"' and "\\" in value):
            raise ValueError(f"{key}: end the value with {first} on its line; it may have no backslash and no {first}")
    elif first == "[":
        inside, end, tail = rest[1:].partition("]")
        value = tuple(item.strip(" ") for item in inside.split(",")) if inside.strip(" ") else ()
        if not end or not all(item and item[0] in WORD and not item.strip(ITEM) for item in value):
            raise ValueError(f"{key}: write a list of plain words on one line: [a, b]")
    else:
        value, blank, tail = rest.partition(" ")
        tail = blank + tail
        if value.strip(PLAIN) or first not in WORD + "/" or value[-1] == ":":
            raise ValueError(f'{key}: {_show(rest)} has characters that need quotes; write {key}: "value"')
    if tail and (tail[0] != " " or tail.lstrip(" ")[:1] not in ("", "#")):
        raise ValueError(f"{key}: {_show(tail.strip(' '))} follows the value; a value with blanks needs quotes")
    return key, value, tail


def quoted(value: "Value") -> str:
    """The value as a line of settings.yaml has it. Raises ValueError for text that no line can hold."""
    for text in (value, f'"{value}"', f"'{value}'") if isinstance(value, str) else (f"[{', '.join(value)}]",):
        try:
            if "\n" not in text and split_line(f"x: {text}") == ("x", value, ""):
                _check_characters(text, 0)
                text.encode()  # a name of the command line that is not UTF-8 cannot be
                return text
        except ValueError:
            pass
    raise ValueError(
        "has characters that settings.yaml cannot hold: control characters, bytes that are not UTF-8, or both kinds of quotes"
    )


def _check_characters(line: str, number: int) -> None:
    """Raises ValueError for a character that YAML reads as the end of a line, or refuses."""
    if "\t" in line:
        raise ValueError("has a tab; use blanks")
    if "\r" in line:
        raise ValueError("has a carriage return; save the file with Unix line ends")
    if number == 1 and line[:1] == "\ufeff":
        raise ValueError("begins with a byte order mark; save the file as UTF-8 without it")
    for character in line:
        if not " " <= character <= "~" and (character < "\xa0" or character in FORBIDDEN):
            raise ValueError(f"has the character U+{ord(character):04X}, which settings may not have")


def _show(text: str) -> str:
    shown = ascii(text[:40])
    return shown if len(text) <= 40 and len(shown) <= 42 else f"{shown[:38]}..."
