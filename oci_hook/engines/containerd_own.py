"""The files of ours by which a distribution tells its containerd of us, and the documents that a person gives it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from textwrap import indent

from oci_hook.engines.edits import BEGIN, END, NAME, Notes, Target, fenced, without_fences
from oci_hook.errors import refuse

BASE = '{{ template "base" . }}\n'  # k3s's own configuration, in a template of one's own; since September 2023
SYSTEMD = "{{ .SystemdCgroup }}"
TAKEN = re.compile(rf"^[ \t]*\[plugins\..*\.runtimes\.[\"']?{NAME}[\"']?\]", re.M)


def template(path: Path, lines: Callable[[bool], list[str]]) -> Target:
    """A file that k3s renders config.toml from. lines(base): of our tables; base: below k3s's own configuration."""

    def add(text: str | None, notes: Notes) -> str:
        text = text if text and text.strip() else BASE + "\n"
        if TAKEN.search(text):
            raise refuse("GH-508", f"{path} already has a runtime {NAME}; remove it first")
        if not text.endswith("\n"):
            notes["newline"] = True
            text += "\n"
        return text + fenced(lines(bool(re.search(r'\{\{-? *template +"base"', text))))

    def strip(text: str, notes: Notes) -> str | None:
        text = without_fences(text)
        if notes.get("newline") and text.endswith("\n"):
            text = text[:-1]
        return text if text.strip() != BASE.strip() or notes.get("file") else None

    return Target(path, add, strip, lambda text, path: text)


def whole(path: Path, text: Callable[[], str]) -> Target:
    """A file that is ours alone."""

    def add(there: str | None, notes: Notes) -> str:
        if there is not None and there.strip():
            raise refuse("GH-508", f"{path} already exists, and is not gpu-hook's; remove it first")
        return f"{BEGIN}\n{text()}{END}\n"

    def strip(there: str, notes: Notes) -> str | None:
        rest = without_fences(there)
        return rest if rest.strip() or notes.get("file") else None

    return Target(path, add, strip, lambda text, path: text)


def unit(config: Path) -> str:
    """A drop-in for Flatcar's containerd.service, which names its file by a variable. The lines are systemd's."""
    return f"[Service]\nEnvironment=CONTAINERD_CONFIG={config}\n"


def node_config(toml: str) -> str:
    """What EKS's nodeadm merges into containerd's configuration at each boot."""
    head = "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  containerd:\n    config: |\n"
    return head + indent(toml, "      ")


def talos(toml: str) -> list[tuple[str, str]]:
    """(which Talos, patch) of its machine configuration. The documents are of Talos 1.14 (its CHANGELOG); a file before."""
    new = f"apiVersion: v1alpha1\nkind: CRICustomizationConfig\nname: {NAME}\ncontent: |\n"
    part = "machine:\n  files:\n    - path: /etc/cri/conf.d/20-customization.part\n      op: create\n      content: |\n"
    return [
        ("Talos 1.14 and newer: talosctl patch machineconfig --patch @FILE, with this FILE", new + indent(toml, "  ")),
        ("Talos up to 1.13: the same with this one, and a reboot", part + indent(toml, "        ")),
    ]


def users_version(text: str, version: int) -> int:
    """The configuration version whose names our NodeConfig must have. text: nodeadm's cache of the user's: it takes a template
    of version 2 where the user's lines are of version 2, and one of 3 where any is."""
    try:
        said = json.dumps(json.loads(text).get("spec", {}).get("containerd", {}).get("config", ""))
    except (ValueError, AttributeError):
        return version
    return 2 if "io.containerd.grpc.v1.cri" in said and "io.containerd.cri.v1." not in said else version
