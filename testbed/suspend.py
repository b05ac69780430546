"""Containers whose program does what it is told, and can be suspended."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from oci_hook.core.grant import Grant
from oci_hook.ledger import store
from testbed import REPO
from testbed.stage import CLIENTS, Stage, python_image
from testbed.until import until

ENV = {"PYTHONDONTWRITEBYTECODE": "1", "LD_LIBRARY_PATH": ""}

FIVE = {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": "5Gi"}


class Tenant:
    """A container whose program does what it is told."""

    def __init__(self, node: "Node", annotations: dict[str, str], edit: Callable[[dict[str, Any]], object]) -> None:
        self.node = node
        self.name = f"t{len(node.tenants)}"
        node.tenants.append(self)

        def edits(spec: dict[str, Any]) -> None:
            spec["mounts"].extend(node.mounts)
            edit(spec)

        self.id = node.stage.start(
            node.root, sys.executable, "/clients/tenant.py", self.name, annotations=annotations, env=ENV, edit=edits
        )
        self.program = Program(node, self.name)

    @property
    def grant(self) -> Grant:
        (found,) = (g for g in store.snapshot(str(self.node.stage.state)) if g.who.id == self.id)
        return found

    def pid(self) -> int:
        return self.node.stage.runc.pid(self.id)


class Program:
    def __init__(self, node: "Node", name: str) -> None:
        self.ask = node.root / f"tmp/{name}.ask"
        self.said = node.root / f"tmp/{name}.said"
        self.heard = 0
        until(self.said.exists, f"{name} starts")

    def tell(self, line: str) -> None:
        """Give it a command whose answer may come later."""
        with open(self.ask, "w") as file:
            file.write(line + "\n")

    def answers(self) -> list[str]:
        return self.said.read_text().splitlines()[self.heard :]

    def hear(self) -> str:
        until(lambda: bool(self.answers()), f"{self.said} has an answer")
        (answer,) = self.answers()
        self.heard += 1
        return answer

    def __call__(self, line: str) -> str:
        self.tell(line)
        return self.hear()


class Node:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.root = stage.folder / "python"
        self.mounts = python_image(self.root)
        shutil.copytree(CLIENTS, self.root / "clients")
        self.tenants: list[Tenant] = []

    def tenant(
        self, annotations: dict[str, str] = FIVE, edit: Callable[[dict[str, Any]], object] = lambda spec: None
    ) -> Tenant:
        return Tenant(self, annotations, edit)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "oci_hook", *words, "--prefix", str(self.stage.prefix)]

    def say(self, *words: str, status: int = 0) -> str:
        """gpu-hook's answer: standard output and error."""
        done = subprocess.run(self.command(*words), capture_output=True, text=True, cwd=REPO)
        assert done.returncode == status, (words, done)
        return done.stdout + done.stderr

    def data(self, *words: str) -> Any:
        return json.loads(self.say(*words, "--json"))

    def settings(self) -> Any:
        from oci_hook.config import settings

        return settings.load(str(self.stage.prefix))

    def clean(self) -> None:
        for tenant in self.tenants:
            self.stage.runc("delete", "--force", tenant.id, program=self.stage.program)
        self.tenants.clear()
        for path in (self.root / "tmp").iterdir():
            if not path.is_dir():  # a folder is a mount point, of a checkout below /tmp
                path.unlink()
