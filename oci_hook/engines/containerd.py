"""containerd: a runtime handler of the CRI plugin, with the list of annotations that the plugin must pass on.

The names of the tables depend on the version that the root file states; `containerd config dump` may print another one.
containerd 1.x replaces a plugin's whole table by that of a later imported file (containerd issue 5837), so there the
last file that has the table is changed in place. containerd 2.x merges tables, so a drop-in file is used if the root
file imports its directory.
"""

import glob
import os
import subprocess
from pathlib import Path
from typing import Any

from oci_hook.engines import containerd_read, containerd_spec, drop_in, toml_text
from oci_hook.engines.containerd_read import PLUGIN, RUNC
from oci_hook.engines.edits import (
    NAME,
    NOTHING,
    Notes,
    Registration,
    Target,
    Texts,
    annotation_patterns,
    fenced,
    pod_patterns,
    text_at,
    without_fences,
)
from oci_hook.engines.effective import Has, last_word, said
from oci_hook.engines.toml_text import Keys
from oci_hook.errors import GhError, refuse

PROGRAMS = ("containerd",)
FILE = "/etc/containerd/config.toml"
DROP_INS = "/etc/containerd/conf.d"
DROP_IN = DROP_INS + "/99-gpu-hook.toml"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd"
RELOAD = ("containerd", "restart")  # containers keep running meanwhile
CRI = ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")  # of versions 1, 2, and 3 and 4
USUAL = {"runtime_type": RUNC}  # containerd's own runc entry, which it has if the file lists no runtimes


class File:
    """A configuration file. text: None if there is no such file. data: its parsed contents. bare: without our fenced lines."""

    def __init__(self, path: Path, instead: Texts = NOTHING, bare: bool = False) -> None:
        self.path = path
        text = text_at(path, instead)
        self.text = without_fences(text) if text and bare else text
        self.data: dict[str, Any] = {} if self.text is None else toml_text.parse(self.text, path)


def paths(registration: Registration) -> list[Path]:
    files = load(registration, bare=True)
    found = [where(files, version_of(files[0], registration), registration)]
    return [*found, containerd_spec.path(registration)] if containerd_spec.is_used(registration) else found


def disabled(data: dict[str, Any]) -> list[str]:
    """The names by which a root file switches the CRI plugin off."""
    listed = data.get("disabled_plugins")
    return [name for name in CRI if isinstance(listed, list) and name in listed]


def unused(registration: Registration) -> str:
    """Why nobody uses a handler of this containerd, if so; else "". docker's packages switch the CRI plugin off."""
    root = File(registration.main(FILE))
    return f"{root.path} disables its CRI plugin, so no kubelet uses it" if disabled(root.data) else ""


def target(path: Path, registration: Registration) -> Target:
    if path == containerd_spec.path(registration):
        return containerd_spec.target(registration)
    return Target(
        path,
        lambda text, notes: add(text, notes, registration, path),
        lambda text, notes: strip(text, notes, registration, path),
        toml_text.parse,
    )


def place(registration: Registration) -> str:
    return (
        "write the first file as it is, or add its tables at the end of yours; on k0s, make it a file of "
        "/etc/k0s/containerd.d. k3s and rke2 generate their configuration from a template: config.toml.tmpl, or "
        "config-v3.toml.tmpl for containerd 2; rke2's are below /var/lib/rancher/rke2"
    )


def templates(registration: Registration) -> list[tuple[str, str]]:
    """(path, text) of k3s's templates: its own configuration, which brings the version line, then our handler."""
    pages = []
    for version, name in ((2, "config.toml.tmpl"), (3, "config-v3.toml.tmpl")):
        keys = (*PLUGIN[version], "containerd", "runtimes", NAME)
        lines = toml_text.table_lines(keys, wanted([], version, registration))
        lines.append("    SystemdCgroup = {{ .SystemdCgroup }}")  # belongs to our options table, the last one
        pages.append((f"{K3S}/{name}", '{{ template "base" . }}\n\n' + fenced(lines)))
    return pages


def has(registration: Registration, instead: Texts) -> Has:
    files = load(registration, instead)
    newer = version_of(files[0], registration) >= 3 or major(registration) >= 2
    return containerd_read.has([(f.path, f.data) for f in files], newer, str(containerd_spec.path(registration)))


def joined(file: str) -> list[Path]:
    """The files of a containerd with this root file. Those that are not valid are no reason to fail here."""
    try:
        return [found.path for found in load(Registration("", config=file))]
    except GhError:
        return []


def socket(file: str) -> str:
    """The socket of a containerd with this root file; "" for the usual one."""
    data = [(Path(name), File(Path(name)).data) for name in joined(file or FILE)]
    return str(said(data, ("grpc", "address")) or "/run/containerd/containerd.sock")


def moved(path: Path, registration: Registration) -> bool:
    """True if our lines in this file belong to the containerd for which we would write now."""
    return path.suffix == ".toml" and any(file.path.resolve() == path for file in load(registration))


def doubts(registration: Registration) -> list[str]:
    """Sentences that a person should know of our handler."""
    files = load(registration, bare=True)
    return containerd_read.doubts(known(files, version_of(files[0], registration), registration))


def known(files: list[File], version: int, registration: Registration) -> dict[str, Any]:
    """The table `containerd` of the CRI plugin's runtime part, as containerd has it from these files."""
    newer = version >= 3 or major(registration) >= 2
    return containerd_read.merged(containerd_read.tables([(file.path, file.data) for file in files], newer))


def load(registration: Registration, instead: Texts = NOTHING, bare: bool = False) -> list[File]:
    """The root file, then the files that it and they import, in the order in which containerd reads them."""
    files: list[File] = []
    loaded = set()
    pending = [str(registration.main(FILE))]
    for name in pending:
        if (real := os.path.realpath(name)) not in loaded:
            loaded.add(real)
            files.append(File(Path(name), instead, bare))
            for pattern in imports(files[-1], registration):
                planned = {str(path) for path, text in instead.items() if text is not None and path.match(str(pattern))}
                there = planned.union(glob.glob(str(pattern)))
                pending += sorted(there.difference(str(path) for path, text in instead.items() if text is None))
    return files


def imports(file: File, registration: Registration) -> list[Path]:
    """The files and patterns that a file imports. Raises SettingsError GH-506."""
    listed = file.data.get("imports", [])
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise refuse("GH-506", f"{file.path}: imports is not a list of file names; correct it first")
    return [registration.host(name) if name.startswith("/") else file.path.parent / name for name in listed]


def version_of(root: File, registration: Registration) -> int:
    """The configuration version of the root file, or for a new file. Raises SettingsError GH-506."""
    if root.text is None:
        return 3 if major(registration) >= 2 else 2
    version = root.data.get("version", 1)
    if type(version) is not int or version not in PLUGIN:
        raise refuse(
            "GH-506", f"{root.path}: version = {version!r:.40} is not one of 1 to 4; a newer gpu-hook may know it"
        )
    if version == 1 and major(registration) >= 2:
        raise refuse(
            "GH-506",
            f"{root.path} has version 1, whose plugins containerd 2 ignores; run `containerd config migrate` first",
        )
    return version


def major(registration: Registration) -> int:
    """The major version of this machine's containerd; 1 if it cannot be run, since 2.x reads files for 1.x too."""
    if registration.host_root != "/":
        return 1
    try:
        text = subprocess.run(["containerd", "--version"], capture_output=True, text=True, timeout=20).stdout
        return int(text.split()[2].removeprefix("v").partition(".")[0])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return 1


def where(files: list[File], version: int, registration: Registration) -> Path:
    """The file to put our handler into (see the module's docstring)."""
    ours = registration.host(DROP_IN)
    root = files[0]
    if version >= 3:
        if not any(ours.match(str(p)) for p in imports(root, registration)):
            return root.path
        found = containerd_read.tables([(file.path, file.data) for file in files], newer=True)
        return drop_in.last(ours, last_word(found, ("default_runtime_name",)) if registration.default else None)
    defining = [file.path for file in files if toml_text.get(file.data, PLUGIN[version]) is not None]
    return defining[-1] if defining else root.path


def tables(files: list[File], version: int, registration: Registration) -> dict[str, dict[str, Any]]:
    """The runtime tables to add. If the files configure any runtime, containerd's built-in entry for runc is gone, and
    the CRI plugin does not start: so runc is added if the files list no other runtime."""
    configured = set(containerd_read.runtimes(known(files, version, registration)))
    usual = {} if configured - {NAME} else {"runc": USUAL}
    return {**usual, NAME: wanted(files, version, registration)}


def wanted(files: list[File], version: int, registration: Registration) -> dict[str, Any]:
    """Our handler: the options of the runtime that the node uses, our program, and the annotations that we read."""
    table, options, binary = containerd_read.model(known(files, version, registration))
    program: dict[str, Any] = {"BinaryName": registration.program}
    if containerd_spec.is_used(registration):
        program = {"BinaryName": binary} if binary else {}
        table["base_runtime_spec"] = str(containerd_spec.path(registration))
    for key in ("runtime_engine", "runtime_root", "runtime_path"):
        table.pop(key, None)
    patterns, of_pods = annotation_patterns(), pod_patterns()
    passed = [p for p in table.get("pod_annotations", []) if p not in of_pods]
    own = [p for p in table.get("container_annotations", []) if p not in patterns]
    table.update(
        runtime_type=RUNC,
        pod_annotations=of_pods + passed,
        container_annotations=patterns + own,
        options={**program, **options},
    )
    return {"runtime_type": table.pop("runtime_type"), **table}


def handlers(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The tables of our handler in a file, under any version's plugin name."""
    found = [toml_text.get(data, (*plugin, "containerd", "runtimes", NAME)) for plugin in {*PLUGIN.values()}]
    return [table for table in found if isinstance(table, dict)]


def is_whole(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """True if a file does with our handler what `new` would do, in other lines, as `containerd config migrate` writes it."""
    version = old.get("version", 1)
    if version not in PLUGIN:
        return False
    keys = (*PLUGIN[version], "containerd", "runtimes", NAME)
    have, should = toml_text.get(old, keys), toml_text.get(new, keys)
    if not isinstance(have, dict) or not isinstance(should, dict):
        return False
    same = ["runtime_type", "base_runtime_spec", "privileged_without_host_devices"]
    options = ("BinaryName", "SystemdCgroup")
    passed = all(set(should[key]) <= set(have.get(key, ())) for key in ("pod_annotations", "container_annotations"))
    alike = all(containerd_read.option(have, key) == containerd_read.option(should, key) for key in options)
    return passed and alike and all((have.get(key) or None) == (should.get(key) or None) for key in same)


def add(text: str | None, notes: Notes, registration: Registration, path: Path) -> str:
    """The file's text with our handler. Raises SettingsError GH-506, GH-508."""
    # `text` is this file without our lines; the disk may have them.
    files = load(registration, {path.resolve(): text}, bare=True)
    version = version_of(files[0], registration)
    text = text or ""
    data = toml_text.parse(text, path)
    refuse_if_taken(data, version, path)
    expected = data
    runtimes = (*PLUGIN[version], "containerd", "runtimes")
    if version < 3 and major(registration) < 2:  # the table of this file replaces those of the others
        files = [file for file in files if file.path.resolve() == path.resolve()]
    added = tables(files, version, registration)
    for name, table in added.items():
        expected = toml_text.put(expected, (*runtimes, name), table)
    if not text.strip():
        text = f"version = {version}\n"  # outside of the fence: it also holds for lines that are added later
        expected = {**expected, "version": version}
    lines: list[str] = []
    if registration.default or "default" in notes:
        text, expected, lines = with_default(text, data, expected, version, notes)
    if text and not text.endswith("\n"):
        notes["newline"] = True
        text += "\n"
    for name, table in added.items():
        lines += toml_text.table_lines((*runtimes, name), table)
    new = text + ("\n" if text else "") + fenced(lines)
    try:
        right = toml_text.parse(new, path) == expected
    except Exception:
        right = False
    if not right:
        why = "is written in a form (inline tables?) that cannot be added to safely"
        raise refuse("GH-506", f"{path} {why}; add the lines of `gpu-hook install --print` by hand")
    return new


def refuse_if_taken(data: dict[str, Any], version: int, path: Path) -> None:
    there = toml_text.get(data, (*PLUGIN[version], "containerd", "runtimes", NAME))
    if there is not None:
        whose = toml_text.get(there, ("options", "BinaryName"))
        raise refuse("GH-508", f"{path} already has a runtime {NAME}, which is {whose!r:.100}; remove it first")


def with_default(
    text: str, data: dict[str, Any], expected: dict[str, Any], version: int, notes: Notes
) -> tuple[str, dict[str, Any], list[str]]:
    """Make our handler the default: (text, what it is expected to say then, lines for our fence)."""
    containerd = (*PLUGIN[version], "containerd")
    key = (*containerd, "default_runtime_name")
    notes["default"] = toml_text.get(data, key)
    expected = toml_text.put(expected, key, NAME)
    if toml_text.has_header(text, containerd):
        return toml_text.set_string(text, containerd, key[-1], NAME), expected, []
    return text, expected, [toml_text.header(containerd), f'  default_runtime_name = "{NAME}"']


def strip(text: str, notes: Notes, registration: Registration, path: Path) -> str | None:
    """The text without our handler, under any version's plugin name, also if the administrator removed the comments of
    our fence. Raises SettingsError GH-506."""
    data = toml_text.parse(text, path)
    for plugin in dict.fromkeys(PLUGIN.values()):
        handler = toml_text.get(data, (*plugin, "containerd", "runtimes", NAME))
        program = containerd_read.option(handler, "BinaryName")
        base = toml_text.get(handler, ("base_runtime_spec",))
        if program == registration.program or base == str(containerd_spec.path(registration)):
            return strip_plugin(text, data, (*plugin, "containerd"), notes, path)
    return text


def strip_plugin(text: str, data: dict[str, Any], containerd: Keys, notes: Notes, path: Path) -> str | None:
    """The text without our handler, which is below the table `containerd`; None if nothing else is in the file."""
    keys = (*containerd, "runtimes", NAME)
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
    empty = not set(rest) - {"version"}
    return None if empty and not notes.get("file") and "#" not in text else text
