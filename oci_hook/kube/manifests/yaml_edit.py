"""Changes small parts of a YAML text and keeps every other byte: comments, order, quotes, indentation.

PyYAML's marks tell the place of each node. Writing the whole document anew, even by a library that keeps comments, would fold and
indent unrelated lines. JSON is YAML in flow style.
"""

import gc
import json
from collections.abc import Iterable
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.resolver import Resolver

from oci_hook.errors import refuse
from oci_hook.kube.manifests import kinds

Entry = tuple[yaml.Node, yaml.Node]  # key, value
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # only for text that `documents` has read
BOM = "\ufeff"  # libyaml does not count it


def _quick_composer() -> Any:
    """A loader by libyaml, some five times as quick, with PyYAML's composer: libyaml's own recurses without a limit, and ends the
    process. None where PyYAML came without libyaml."""
    try:
        from yaml._yaml import CParser
    except ImportError:
        return None

    class QuickComposer(Composer, CParser, Resolver):
        def __init__(self, stream: str) -> None:
            CParser.__init__(self, stream)
            Composer.__init__(self)
            Resolver.__init__(self)

    return QuickComposer


QUICK = _quick_composer()


def documents(text: str) -> list[yaml.Node]:
    """The root node of each document. Raises RequestError GH-107 with the line that is not YAML."""
    if QUICK is not None and not text.startswith(BOM):
        collects = gc.isenabled()
        gc.disable()  # all nodes stay, and looking through them again and again takes as long as reading
        try:
            return [node for node in yaml.compose_all(text, Loader=QUICK) if node is not None]
        except (yaml.YAMLError, RecursionError):
            pass  # PyYAML's own parser accepts a little more, and says what is wrong
        finally:
            if collects:
                gc.enable()
    try:
        return [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node is not None]
    except (yaml.YAMLError, RecursionError) as e:
        mark = getattr(e, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise refuse("GH-107", f"{where}not YAML: {getattr(e, 'problem', None) or type(e).__name__}") from None


def entries(node: yaml.Node | None) -> list[Entry]:
    """The entries of a mapping; [] for other nodes. Raises RequestError GH-107 for a key that is no scalar."""
    if not isinstance(node, yaml.MappingNode):
        return []
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise refuse(
                "GH-107", f"line {key.start_mark.line + 1}: a key is a list or a mapping; Kubernetes has no such keys"
            )
    return list(node.value)


def get(node: yaml.Node | None, *path: str) -> yaml.Node | None:
    """The node at a path of keys; None if it is missing or null."""
    for key in path:
        node = value_of(node, key)
    return None if node is None or is_null(node) else node


def value_of(node: yaml.Node | None, key: str) -> yaml.Node | None:
    """The node at one key, null or not; None if it is missing."""
    return next((value for name, value in entries(node) if name.value == key), None)


def is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def is_flow(node: yaml.Node | None) -> bool:
    """True if a node is written as {...} or [...]."""
    return bool(isinstance(node, yaml.CollectionNode) and node.flow_style)


def parts(node: yaml.Node) -> list[tuple[str, yaml.Node]]:
    """The items of a list by their names, or numbers; the values of a mapping by their keys."""
    if isinstance(node, yaml.SequenceNode):
        named = [next((said[key] for key in kinds.NAMES if key in (said := scalars(one))), "") for one in node.value]
        return [(name or str(number), one) for number, (name, one) in enumerate(zip(named, node.value, strict=True))]
    return [(key.value, value) for key, value in entries(node) if not is_null(value)]


def scalars(node: yaml.Node | None) -> dict[str, str]:
    """Key -> text as written, for the scalars of a mapping."""
    return {k.value: v.value for k, v in entries(node) if isinstance(v, yaml.ScalarNode)}


def values(node: yaml.Node | None) -> dict[str, object]:
    """Key -> what YAML means by it, for the scalars of a mapping: 0x10 is 16, and "0x10" a text."""
    return {k.value: _meant(v) for k, v in entries(node) if isinstance(v, yaml.ScalarNode)}


def _meant(node: yaml.ScalarNode) -> object:
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except (yaml.YAMLError, ValueError, OverflowError):
        return node.value


def quoted(value: str) -> str:
    """The string as a scalar for block style, quoted if YAML would read it as something else."""
    try:
        plain = yaml.safe_load(value) == value and value == value.strip() and " #" not in value
    except yaml.YAMLError:
        plain = False
    if plain and not value.startswith("%") and value.isascii() and value.isprintable():
        return value
    return f"'{value}'" if '"' in value and "'" not in value and value.isprintable() else json.dumps(value)


class Edit:
    """Collects changes of a text; `result` applies them."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.changes: dict[
            tuple[int, int], str
        ] = {}  # (start, end) -> new text; by place, so that an alias is changed once
        self.lines = [0, *(i + 1 for i, c in enumerate(text) if c == "\n")]
        self.end = "\r\n" if "\r\n" in text else "\n"

    def result(self) -> str:
        text = self.text
        for (start, stop), new in sorted(self.changes.items(), reverse=True):
            text = text[:start] + new + text[stop:]
        return text

    def change(self, start: int, stop: int, new: str) -> None:
        self.changes[start, stop] = new

    def line(self, number: int) -> int:
        """The index of a line's start; the end of the text for the line after the last."""
        return self.lines[number] if number < len(self.lines) else len(self.text)

    def alone(self, node: yaml.Node) -> bool:
        """True if only blanks precede the node on its line."""
        return not self.text[self.line(node.start_mark.line) : node.start_mark.index].strip(" ")

    def insert(self, number: int, lines: Iterable[str]) -> None:
        """Inserts lines before the line of this number."""
        at = self.line(number)
        before = self.end if at and self.text[at - 1] != "\n" else ""
        text = before + "".join(line + self.end for line in lines)
        self.change(at, at, self.changes.get((at, at), "") + text)

    def replace(self, node: yaml.Node, new: str) -> None:
        self.change(node.start_mark.index, node.end_mark.index, new)

    def remove(self, mapping: yaml.Node, keys: Iterable[str]) -> None:
        """Removes entries of a mapping; comments on lines of their own stay. A block mapping must keep an entry, since an empty
        one is no mapping; remove it from its parent instead. Raises RequestError GH-107."""
        keys = set(keys)
        found = entries(mapping)
        gone = [entry for entry in found if entry[0].value in keys]
        if is_flow(mapping):
            self._remove_flow(mapping, found, gone)
            return
        for key, value in gone:
            if not self.alone(key):
                raise refuse(
                    "GH-107",
                    f"line {key.start_mark.line + 1}: {key.value} cannot be removed; write it on its own line",
                )
            for number in range(key.start_mark.line, end_line((key, value)) + 1):
                start, stop = self.line(number), self.line(number + 1)
                stripped = self.text[start:stop].strip()
                if stripped and not stripped.startswith("#"):
                    self.change(start, stop, "")

    def _remove_flow(self, mapping: yaml.Node, found: list[Entry], gone: list[Entry]) -> None:
        kept = [entry for entry in found if entry not in gone]
        if not kept:
            self.replace(mapping, "{}")
            return
        last = found.index(kept[-1])
        for number, (key, _) in enumerate(found[:last]):
            if (key, _) in gone:
                self.change(key.start_mark.index, found[number + 1][0].start_mark.index, "")
        if found[last + 1 :]:
            self.change(kept[-1][1].end_mark.index, found[-1][1].end_mark.index, "")

    def empty(self, entry: Entry) -> None:
        """Replaces the value of a block entry by `{}`."""
        key, value = entry
        if is_flow(value):
            self.replace(value, "{}")
            return
        colon = self.text.index(":", key.end_mark.index) + 1
        self.change(colon, colon, " {}")
        for child, _ in entries(value):
            self.remove(value, [child.value])

    def add(self, mapping: yaml.Node, new: dict[str, str]) -> None:
        """Adds string entries to a flow mapping, or at the end of a non-empty block mapping."""
        if not new:
            return
        if is_flow(mapping):
            self.put_flow(mapping, [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in new.items()])
            return
        found = entries(mapping)
        indent = " " * found[0][0].start_mark.column
        self.insert(end_line(found[-1]) + 1, [f"{indent}{quoted(k)}: {quoted(v)}" for k, v in new.items()])

    def put_flow(self, mapping: yaml.Node, new: list[str]) -> None:
        """Inserts entries, given as text, at the start of a flow mapping; each on its own line if the others are."""
        found = entries(mapping)
        at = self.text.index("{", mapping.start_mark.index) + 1
        separator = ", "
        if found and self.alone(found[0][0]):
            first = found[0][0].start_mark
            at = first.index
            separator = "," + self.end + self.text[self.line(first.line) : at]
        text = separator.join(new) + (separator if found else "")
        self.change(at, at, self.changes.get((at, at), "") + text)


def end_line(entry: Entry) -> int:
    """The number of an entry's last line. An alias (*x) has the marks of its anchor, further up."""
    key, value = entry
    if value.start_mark.index < key.start_mark.index:
        return int(key.end_mark.line)
    return last_line(value)


def last_line(node: yaml.Node) -> int:
    """The number of a node's last line. A block's end mark is the start of the next node, so it does not help."""
    if isinstance(node, yaml.ScalarNode):
        block = node.style in ("|", ">")
        return int(node.end_mark.line) - (1 if block and node.end_mark.column == 0 else 0)
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.line)
    if isinstance(node, yaml.MappingNode):
        return end_line(node.value[-1])
    return max(int(node.start_mark.line), last_line(node.value[-1]))
