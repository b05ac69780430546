"""containerd: a runtime handler of the CRI plugin, with the list of annotations that it must let through.

The tables' names follow from the version that the root file states, never from `containerd config dump`, which prints
another. containerd 1.x replaces a plugin's whole table by that of a later imported file (containerd issue 5837): there
the file that counts is changed in place. containerd 2.x merges: a drop-in file is used where the root file imports any.
"""

import glob
import os
import subprocess
from pathlib import Path
from typing import Any

from oci_hook.engines import toml_text
from oci_hook.engines.edits import (
    NAME,
    Notes,
    Registration,
    Target,
    annotation_patterns,
    fenced,
    read,
    text_of,
    without_fences,
)
from oci_hook.engines.toml_text import Keys
from oci_hook.errors import refuse

PROGRAMS = ("containerd",)
FILE = "/etc/containerd/config.toml"
DROP_INS = "/etc/containerd/conf.d"
DROP_IN = DROP_INS + "/99-gpu-hook.toml"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd"
RELOAD = ("containerd", "restart")  # containers run on
RUNC = "io.containerd.runc.v2"
USUAL = {"runtime_type": RUNC}  # what containerd has for runc where the file has no runtimes at all

# Config version -> the table of the CRI plugin's runtime part.
PLUGIN: dict[int, Keys] = {
    1: ("plugins", "cri"),
    2: ("plugins", "io.containerd.grpc.v1.cri"),
    3: ("plugins", "io.containerd.cri.v1.runtime"),
    4: ("plugins", "io.containerd.cri.v1.runtime"),
}


class File:
    def __init__(self, path: Path) -> None:
        self.path = path
        real, data = read(path)
        self.text = None if data is None else text_of(real, data)
        self.data: dict[str, Any] = {} if self.text is None else toml_text.parse(self.text, real)


def paths(registration: Registration) -> list[Path]:
    files = load(registration)
    return [where(files, version_of(files[0], registration), registration)]


def target(path: Path, registration: Registration) -> Target:
    return Target(
        path,
        lambda text, notes: add(text, notes, registration, path),
        lambda text, notes: strip(text, notes, registration, path),
        toml_text.parse,
    )


def place(registration: Registration) -> str:
    return (
        "the first file as it is, or its tables at the end of yours; k0s: as a file of /etc/k0s/containerd.d. k3s and "
        "rke2 write their own: give them a template, config-v3.toml.tmpl for containerd 2; rke2's are below "
        "/var/lib/rancher/rke2"
    )


def templates(registration: Registration) -> list[tuple[str, str]]:
    """(path, text) for k3s: its own configuration, whose version line comes with it, and our handler behind it."""
    pages = []
    for version, name in ((2, "config.toml.tmpl"), (3, "config-v3.toml.tmpl")):
        keys = (*PLUGIN[version], "containerd", "runtimes", NAME)
        lines = toml_text.table_lines(keys, wanted([], version, registration))
        lines.append("    SystemdCgroup = {{ .SystemdCgroup }}")  # into our options, which come last
        pages.append((f"{K3S}/{name}", '{{ template "base" . }}\n\n' + fenced(lines)))
    return pages


def load(registration: Registration) -> list[File]:
    """The root file, then what it imports, in the order in which containerd reads them."""
    root = registration.main(FILE)
    files = [File(root)]
    imports = files[0].data.get("imports", [])
    if not isinstance(imports, list) or not all(isinstance(name, str) for name in imports):
        raise refuse("GH-506", f"{root}: imports is not a list of file names; correct it first")
    for pattern in imports:
        for name in sorted(glob.glob(str(located(pattern, root, registration)))):
            if os.path.realpath(name) != os.path.realpath(root):
                files.append(File(Path(name)))
    return files


def located(pattern: str, root: Path, registration: Registration) -> Path:
    return registration.host(pattern) if pattern.startswith("/") else root.parent / pattern


def version_of(root: File, registration: Registration) -> int:
    if root.text is None:
        return 3 if major(registration) >= 2 else 2
    version = root.data.get("version", 1)
    if type(version) is not int or version not in PLUGIN:
        raise refuse("GH-506", f"{root.path}: version = {version!r:.40} is not one of 1 to 4; gpu-hook may be too old")
    if version == 1 and major(registration) >= 2:
        raise refuse(
            "GH-506",
            f"{root.path} is of version 1, whose plugins containerd 2 ignores; see `containerd config migrate`",
        )
    return version


def major(registration: Registration) -> int:
    """Of the containerd on this machine: 1 where it cannot be asked, since 2.x reads its files too."""
    if registration.host_root != "/":
        return 1
    try:
        said = subprocess.run(["containerd", "--version"], capture_output=True, text=True, timeout=20).stdout
        return int(said.split()[2].removeprefix("v").partition(".")[0])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return 1


def where(files: list[File], version: int, registration: Registration) -> Path:
    drop_in = registration.host(DROP_IN)
    root = files[0]
    if version >= 3:
        patterns = [str(located(p, root.path, registration)) for p in root.data.get("imports", [])]
        return drop_in if any(drop_in.match(p) for p in patterns) else root.path
    defining = [file.path for file in files if toml_text.get(file.data, PLUGIN[version]) is not None]
    return defining[-1] if defining else root.path


def tables(files: list[File], version: int, registration: Registration) -> dict[str, dict[str, Any]]:
    """The runtimes to add. Any table of runtimes replaces containerd's own, so runc's comes with ours if it is missing:
    else the CRI plugin does not start."""
    keys = (*PLUGIN[version], "containerd", "runtimes")
    configured = {name for file in files for name in toml_text.get(file.data, keys) or ()}
    usual = {} if configured - {NAME} else {"runc": USUAL}
    return {**usual, NAME: wanted(files, version, registration)}


def wanted(files: list[File], version: int, registration: Registration) -> dict[str, Any]:
    """Our handler: as the one that is now the default, but with our program and the annotations that we read."""
    table: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for file in files:
        containerd = toml_text.get(file.data, (*PLUGIN[version], "containerd"))
        runtimes = toml_text.get(containerd, ("runtimes",))
        if isinstance(runtimes, dict):
            usual = containerd.get("default_runtime_name", "runc")
            model = runtimes.get("runc", runtimes.get(usual))
            if isinstance(model, dict) and model.get("runtime_type", RUNC) == RUNC:
                table = {k: v for k, v in model.items() if k != "options" and v not in ("", [])}
                options = dict(model.get("options", {}))
    patterns = annotation_patterns()
    for key in ("runtime_engine", "runtime_root", "runtime_path"):
        table.pop(key, None)
    passed = [p for p in table.get("pod_annotations", []) if p not in patterns]
    own = [p for p in table.get("container_annotations", []) if p not in patterns]
    table.update(
        runtime_type=RUNC,
        pod_annotations=patterns + passed,
        container_annotations=patterns + own,
        options={
            "BinaryName": registration.program,
            **{k: v for k, v in options.items() if k not in ("BinaryName", "Runtime") and v != ""},
        },
    )
    return {"runtime_type": table.pop("runtime_type"), **table}


def handlers(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Our handler's table, wherever a file has one."""
    found = [toml_text.get(data, (*plugin, "containerd", "runtimes", NAME)) for plugin in {*PLUGIN.values()}]
    return [table for table in found if isinstance(table, dict)]


def add(text: str | None, notes: Notes, registration: Registration, path: Path) -> str:
    files = load(registration)
    for file in files:
        if file.path.resolve() == path.resolve():  # without us, whatever it says on the disk
            file.text, file.data = text, toml_text.parse(text or "", path)
    version = version_of(files[0], registration)
    added = tables(files, version, registration)
    text = text or ""
    data = toml_text.parse(text, path)
    containerd = (*PLUGIN[version], "containerd")
    keys = (*containerd, "runtimes", NAME)
    there = toml_text.get(data, keys)
    if there is not None:
        whose = toml_text.get(there, ("options", "BinaryName"))
        raise refuse("GH-508", f"{path} has a runtime {NAME} already, which is {whose!r:.100}; remove it first")
    expected = data
    for name, table in added.items():
        expected = toml_text.put(expected, (*keys[:-1], name), table)
    lines = []
    if not text.strip():
        text = f"version = {version}\n"  # outside of the fence: the administrator's later lines are of that version
        expected = {**expected, "version": version}
    if registration.default or "default" in notes:
        former = toml_text.get(data, (*containerd, "default_runtime_name"))
        notes["default"] = former
        expected = toml_text.put(expected, (*containerd, "default_runtime_name"), NAME)
        if toml_text.has_header(text, containerd):
            text = toml_text.set_string(text, containerd, "default_runtime_name", NAME)
        else:
            lines += [toml_text.header(containerd), f'  default_runtime_name = "{NAME}"']
    if text and not text.endswith("\n"):
        notes["newline"] = True
        text += "\n"
    for name, table in added.items():
        lines += toml_text.table_lines((*keys[:-1], name), table)
    new = text + ("\n" if text else "") + fenced(lines)
    try:
        right = toml_text.parse(new, path) == expected
    except Exception:
        right = False
    if not right:
        raise refuse(
            "GH-506", f"{path} is written in a way (inline tables?) that cannot be added to safely; see --print"
        )
    return new


def strip(text: str, notes: Notes, registration: Registration, path: Path) -> str | None:
    """Whatever the version now is, and also where the administrator took the comments of our fence away."""
    data = toml_text.parse(text, path)
    for plugin in dict.fromkeys(PLUGIN.values()):
        containerd = (*plugin, "containerd")
        keys = (*containerd, "runtimes", NAME)
        if toml_text.get(data, (*keys, "options", "BinaryName")) != registration.program:
            continue
        text = toml_text.drop_table(without_fences(text), keys)
        default = (*containerd, "default_runtime_name")
        expected = toml_text.put(data, keys, None)
        if toml_text.get(data, default) == NAME:
            former = notes.get("default")
            expected = toml_text.put(expected, default, former)
            if former is None:
                text = toml_text.drop_key(text, containerd, default[-1])
            elif toml_text.has_header(text, containerd):
                text = toml_text.set_string(text, containerd, default[-1], former)
        rest = toml_text.parse(text, path)
        runc = (*keys[:-1], "runc")
        if toml_text.get(rest, runc) is None and toml_text.get(data, runc) == USUAL:
            expected = toml_text.put(expected, runc, None)
        if toml_text.pruned(rest) != toml_text.pruned(expected):
            raise refuse("GH-506", f"{path} was changed around the table of {NAME}; remove that table by hand")
        if notes.get("newline") and text.endswith("\n"):
            text = text[:-1]
        nothing = not set(rest) - {"version"}
        return None if nothing and not notes.get("file") and "#" not in text else text
    return text
