"""Chooses what our code imports of the standard library, and compiles Python. The interpreter itself runs this file.

`python -I -S trim.py choose STDLIB HOT ALL` prints as JSON [names in STDLIB of what the code in the folder HOT imports, of
what that in ALL does], directly or not, in whatever function. `trim.py compile FOLDER IN OUT OPTIMIZE NAME...` compiles
FOLDER/NAME to OUT/NAME as the import system has it: IN is "cache" for __pycache__ beside sources, "alone" for no sources.
"""

import ast
import json
import py_compile
import sys
from collections.abc import Iterable, Iterator
from importlib.util import cache_from_source
from pathlib import Path

# Modules whose import is tried and may fail, or which only people at a prompt reach.
LEFT_OUT = """
    test unittest doctest pdb bdb cmd code codeop pydoc pydoc_data tkinter turtle idlelib curses readline rlcompleter _pyrepl dbm
    sqlite3 ensurepip venv lib2to3 bz2 lzma _bz2 _lzma _uuid webbrowser xmlrpc ftplib antigravity this profile cProfile pstats
    _testcapi _testinternalcapi multiprocessing optparse tomllib
"""
# What the interpreter itself imports, by name.
ALWAYS = """
    os site runpy traceback linecache threading warnings importlib importlib.util importlib.machinery zipimport
    encodings encodings.aliases encodings.utf_8 encodings.ascii encodings.latin_1
"""
# What programs with network and files name by a string.
MORE = """
    encodings.idna encodings.utf_8_sig encodings.utf_16 encodings.utf_16_le encodings.utf_16_be encodings.utf_32
    encodings.utf_32_le encodings.utf_32_be encodings.unicode_escape encodings.raw_unicode_escape encodings.hex_codec
    encodings.punycode stringprep _strptime
"""
SLOWER = tuple(f"lib-dynload/{name}." for name in ("_hashlib", "_decimal", "_ssl"))  # the hot path does without


def imports(file: Path, package: str) -> Iterator[str]:
    """Each name that the file's import statements may mean, dotted."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: 1 - node.level or None] if node.level else []
            name = ".".join([*filter(None, base), *filter(None, [node.module])])
            yield name
            yield from (f"{name}.{alias.name}" for alias in node.names)


class Library:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.extensions = {path.name.partition(".")[0]: path for path in (folder / "lib-dynload").glob("*.so")}

    def file(self, module: str) -> Path | None:
        """Its source or extension; None for what is built in, of others, or left out."""
        parts = module.split(".")
        if parts[0] in LEFT_OUT.split():
            return None
        path = self.folder.joinpath(*parts)
        for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
            if file.is_file():
                return file
        return self.extensions.get(module)

    def needed(self, names: Iterable[str]) -> dict[str, Path]:
        """The modules and all that they import, with their files."""
        found: dict[str, Path] = {}
        todo = list(names)
        while todo:
            name = todo.pop()
            todo += [name.rpartition(".")[0]] if "." in name else []
            if name in found or (file := self.file(name)) is None:
                continue
            found[name] = file
            if file.suffix == ".py":
                todo += imports(file, name if file.name == "__init__.py" else name.rpartition(".")[0])
        return found


def choose(library: Library, hot: Path, all_: Path) -> list[list[str]]:
    said = []
    for folder in (hot, all_):
        named = {name for file in sorted(folder.rglob("*.py")) for name in imports(file, "")}
        found = library.needed({*named, *ALWAYS.split(), *("" if folder is hot else MORE).split()})
        names = (str(file.relative_to(library.folder)) for file in found.values())
        said.append(sorted(name for name in names if not (folder is hot and name.startswith(SLOWER))))
    return said


def compile_all(folder: Path, alone: bool, out: Path, optimize: int, names: list[str]) -> None:
    """No file's time or hash is looked at when it is imported."""
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for name in names:
        compiled = out / (f"{name}c" if alone else cache_from_source(name, optimization=""))
        compiled.parent.mkdir(parents=True, exist_ok=True)
        py_compile.compile(str(folder / name), str(compiled), name, True, optimize, unchecked)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["choose", library, hot, all_]:
            json.dump(choose(Library(Path(library)), Path(hot), Path(all_)), sys.stdout)
        case ["compile", folder, kind, out, optimize, *names]:
            compile_all(Path(folder), kind == "alone", Path(out), int(optimize), names)
