"""Every client of this folder: the modules that have a `CLIENT`."""

import ast
import importlib
from pathlib import Path

from tests.clients.frame import Client

HERE = Path(__file__).resolve().parent


def clients() -> tuple[Client, ...]:
    """In the order of their names; the heavy ones last."""
    found = []
    for path in sorted(HERE.glob("*.py")):
        targets = [t for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign) for t in node.targets]
        if any(isinstance(target, ast.Name) and target.id == "CLIENT" for target in targets):
            found.append(importlib.import_module(f"tests.clients.{path.stem}").CLIENT)
    return tuple(sorted(found, key=lambda client: client.heavy))
