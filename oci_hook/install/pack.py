"""Writes the pack of an install: all modules of the container path, compiled. The install's own Python runs this file, as
`python -I -S pack.py FOLDER FILES...`, and prints what its packs are called; launcher/start.py and load.py read the pack.

FOLDER/TAG.pack.new is: the magic number of this Python's code, the size of the index (4 bytes, little endian), the index,
and the parts. The index is (modules, programs): {module: (is a package, offset, size)} and {program: (offset, size)},
offsets from the end of the index. A module's part is its code. A program's part is all modules that importing it loads:
(name, is a package, code) of each, after those that it imports itself. The part of load.py is its code.
"""

import marshal
import sys
from importlib.machinery import ModuleSpec
from importlib.util import MAGIC_NUMBER
from types import CodeType, ModuleType

PROGRAMS = {
    "runtime.py": "oci_hook.runtime",
    "hook.py": "oci_hook.hook",
    "precreate.py": "oci_hook.precreate",
    "boundary_stage.py": "oci_hook.boundary_stage",
}
LOADER = "load.py"
SIZE = 4

Modules = dict[str, tuple[bool, CodeType]]


class Recorder:
    """Imports the modules from their code, and notes the order in which they are complete."""

    def __init__(self, modules: Modules) -> None:
        self.modules = modules
        self.order: list[str] = []

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in self.modules:
            return None
        return ModuleSpec(name, self, is_package=self.modules[name][0])  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(self.modules[module.__name__][1], module.__dict__)
        self.order.append(module.__name__)


def compiled(path: str) -> CodeType:
    with open(path, "rb") as f:
        return compile(f.read(), path, "exec", dont_inherit=True, optimize=2)  # no docstrings: less to read


def imported(modules: Modules, name: str) -> list[str]:
    """The modules that importing this one loads, each after those that it imports."""
    recorder = Recorder(modules)
    sys.meta_path.insert(0, recorder)
    try:
        __import__(name)
    finally:
        sys.meta_path.remove(recorder)
        for loaded in [loaded for loaded in sys.modules if loaded in modules]:
            del sys.modules[loaded]
    return recorder.order


def main(folder: str, names: list[str]) -> None:
    modules: Modules = {}
    for name in names:
        code = compiled(f"{folder}/{name}")
        module = name[: -len(".py")].replace("/", ".")
        modules[module.removesuffix(".__init__")] = (module.endswith(".__init__"), code)
    parts: list[bytes] = []
    size = 0
    index: tuple[dict[str, tuple[bool, int, int]], dict[str, tuple[int, int]]] = ({}, {})
    for name, (is_package, code) in modules.items():
        parts.append(marshal.dumps(code))
        index[0][name] = (is_package, size, len(parts[-1]))
        size += len(parts[-1])
    for program, start in (*PROGRAMS.items(), (LOADER, "")):
        loaded = tuple((name, *modules[name]) for name in imported(modules, start)) if start else None
        parts.append(marshal.dumps(loaded or compiled(f"{folder}/{LOADER}")))
        index[1][program] = (size, len(parts[-1]))
        size += len(parts[-1])
    head = marshal.dumps(index)
    with open(f"{folder}/{sys.implementation.cache_tag}.pack.new", "wb") as f:
        f.write(b"".join([MAGIC_NUMBER, len(head).to_bytes(SIZE, "little"), head, *parts]))
    sys.stdout.write(sys.implementation.cache_tag + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
