"""containerd: a runtime handler of the CRI plugin, with the list of annotations that the plugin must pass on.

The names of the tables depend on the version that the root file states; `containerd config dump` may print another one.
containerd 1.x replaces a plugin's whole table by that of a later imported file (containerd issue 5837), so there the
last file that has the table is changed in place. containerd 2.x merges tables, so a drop-in file is used if the root
file imports its directory.
"""

import glob
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from oci_hook.engines import containerd_own, containerd_place, containerd_read, containerd_spec, drop_in, toml_text
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
RANCHER = "/var/lib/rancher/k3s/agent/etc/containerd"  # rke2's: rke2 for k3s
RELOAD = ("containerd", "restart")  # containers keep running meanwhile
FIRST_WITH_BASE = (1, 7, 3)  # containerd in the first k3s and rke2 of which a template can have the base
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
    place = containerd_place.of(registration)
    if place.name == "Bottlerocket":
        raise refuse("GH-505", f"containerd is {place.says}, so no handler can be added to it")
    if place.name == "Talos":
        return []
    files = load(registration, bare=True)
    found = [where(files, version_of(files[0], registration), registration), *place.also]
    return [*found, containerd_spec.path(registration)] if containerd_spec.is_used(registration) else found


def found(registration: Registration) -> str:
    """Which containerd it is, for people; "" for the machine's own in its usual place."""
    return containerd_place.of(registration).says


def elsewhere(registration: Registration) -> str:
    """The program of a distribution's own containerd; "" if there is none."""
    place = containerd_place.of(registration)
    return (place.program or str(place.config)) if place.name else ""


def by_hand(registration: Registration) -> list[tuple[str, str]]:
    """(what to do with it, document) where only a person can register us."""
    place = containerd_place.of(registration)
    return containerd_own.talos(tables_of(load(registration), 3, registration)) if place.name == "Talos" else []


def disabled(data: dict[str, Any]) -> list[str]:
    """The names by which a root file switches the CRI plugin off."""
    listed = data.get("disabled_plugins")
    return [name for name in CRI if isinstance(listed, list) and name in listed]


def unused(registration: Registration) -> str:
    """Why nobody uses a handler of this containerd, if so; else "". docker's packages switch the CRI plugin off."""
    place = containerd_place.of(registration)
    if place.name == "Bottlerocket":
        return f"it is {place.says}"
    root = File(place.main)
    return f"{root.path} disables its CRI plugin, so no kubelet uses it" if disabled(root.data) else ""


def target(path: Path, registration: Registration) -> Target:
    if path == containerd_spec.path(registration):
        return containerd_spec.target(registration)
    place = containerd_place.of(registration)
    if path.name in containerd_place.TEMPLATES.values():
        return containerd_own.template(path, lambda base: template_lines(base, path, registration))
    if path.suffix == ".conf":
        return containerd_own.whole(path, lambda: containerd_own.unit(place.drop_in))
    if path.suffix == ".yaml":
        return containerd_own.whole(path, lambda: node_config(registration))
    return Target(
        path,
        lambda text, notes: add(text, notes, registration, path),
        lambda text, notes: strip(text, notes, registration, path),
        toml_text.parse,
    )


def place(registration: Registration) -> str:
    here = found(registration)
    if here:
        return f"here it is {here}; write its own files below"
    return (
        "write the first file as it is, or add its tables at the end of yours; the others are for systems that write that file"
        " themselves: k3s, rke2 (its templates are below /var/lib/rancher/rke2), k0s, EKS, Talos"
    )


def templates(registration: Registration) -> list[tuple[str, str]]:
    """(path, text) of the files of systems that write containerd's configuration themselves."""
    place = containerd_place.of(registration)
    if place.name:
        files = [target(path, registration) for path in paths(registration)]
        return [(str(each.path), each.add(None, {})) for each in files if not each.path.exists()] + by_hand(
            registration
        )
    pages = []
    for version, name in containerd_place.TEMPLATES.items():
        table = wanted([], version, registration)
        lines = toml_text.table_lines((*PLUGIN[version], "containerd", "runtimes", NAME), table)
        lines.append(f"    SystemdCgroup = {containerd_own.SYSTEMD}")  # belongs to our options table, the last one
        pages.append((f"{RANCHER}/{name}", f"{containerd_own.BASE}\n{fenced(lines)}"))
    lines = toml_text.table_lines((*PLUGIN[3], "containerd", "runtimes", NAME), wanted([], 3, registration))
    k0s = Path(containerd_place.K0S).parent / "containerd.d" / containerd_place.DROP_IN
    pages.append((f"{k0s} (of k0s 1.36; before, the first file)", f"version = 3\n{fenced(lines)}"))
    toml = tables_of([], 3, registration)
    pages.append(("/etc/eks/nodeadm.d/gpu-hook.yaml (EKS)", containerd_own.node_config(toml)))
    return pages + containerd_own.talos(toml)


def template_lines(base: bool, path: Path, registration: Registration) -> list[str]:
    """Our tables for a template of k3s's; base: below its own configuration, which knows how the node's cgroups are driven."""
    files = load(registration)
    version = 2 if path.name == containerd_place.TEMPLATES[2] else 3
    if registration.default:
        raise refuse(
            "GH-506", "a template cannot set the default runtime; start k3s or rke2 with --default-runtime gpu-hook"
        )
    if base and (version_here(registration) or (9,)) < FIRST_WITH_BASE:
        raise refuse(
            "GH-506", f"{path}: this k3s or rke2 is older than September 2023 and has no base template; renew it first"
        )
    table = wanted(files, version, registration)
    if base:
        table["options"].pop("SystemdCgroup", None)
    lines = toml_text.table_lines((*PLUGIN[version], "containerd", "runtimes", NAME), table)
    return [*lines, f"    SystemdCgroup = {containerd_own.SYSTEMD}"] if base else lines


def tables_of(files: list[File], version: int, registration: Registration) -> str:
    """Our handler's tables alone, in the names of that version."""
    keys = (*PLUGIN[version], "containerd", "runtimes", NAME)
    return "".join(f"{line}\n" for line in toml_text.table_lines(keys, wanted(files, version, registration)))


def node_config(registration: Registration) -> str:
    files = load(registration)
    version = version_of(files[0], registration)
    cache = text_at(registration.host("/run/eks/nodeadm/config.json"))
    named = containerd_own.users_version(cache or "", version)
    table = wanted(files, version, registration)
    keys = (*PLUGIN[named], "containerd", "runtimes", NAME)
    return containerd_own.node_config("".join(f"{line}\n" for line in toml_text.table_lines(keys, table)))


def has(registration: Registration, instead: Texts) -> Has:
    place = containerd_place.of(registration)
    files = load(registration, instead)
    if place.template and where(files, version_of(files[0], registration), registration) == place.template:
        # It is no TOML, and what is made of it is so at the next start only.
        program = registration.program if registration.program in (text_at(place.template, instead) or "") else ""
        return Has(program, "runc", place.template, None)
    newer = merges(files, registration)
    return containerd_read.has([(f.path, f.data) for f in files], newer, str(containerd_spec.path(registration)))


def merges(files: list[File], registration: Registration) -> bool:
    """True where tables of several files are merged key by key: by containerd 2, or by the distribution."""
    version = version_of(files[0], registration)
    return version >= 3 or containerd_place.of(registration).merged or major(registration) >= 2


def joined(file: str) -> list[Path]:
    """The files of a containerd with this root file. Those that are not valid are no reason to fail here."""
    try:
        return [found.path for found in load(Registration("", config=file))]
    except GhError:
        return []


def socket(file: str) -> str:
    """The socket of a containerd with this root file; "" for the usual one."""
    data = [(Path(name), File(Path(name)).data) for name in joined(file or containerd_place.FILE)]
    return str(said(data, ("grpc", "address")) or containerd_place.SOCKET)


def moved(path: Path, registration: Registration) -> bool:
    """True if our lines in this file belong to the containerd for which we would write now."""
    if path.suffix == ".tmpl":
        return containerd_place.of(registration).template == path
    return path.suffix == ".toml" and any(file.path.resolve() == path for file in load(registration))


def doubts(registration: Registration) -> list[str]:
    """Sentences that a person should know of our handler."""
    files = load(registration, bare=True)
    return containerd_read.doubts(known(files, version_of(files[0], registration), registration))


def known(files: list[File], version: int, registration: Registration) -> dict[str, Any]:
    """The table `containerd` of the CRI plugin's runtime part, as containerd has it from these files."""
    newer = bool(files) and merges(files, registration)
    return containerd_read.merged(containerd_read.tables([(file.path, file.data) for file in files], newer))


def load(registration: Registration, instead: Texts = NOTHING, bare: bool = False) -> list[File]:
    """The root file, then the files that it and they import, in the order in which containerd reads them."""
    files: list[File] = []
    loaded = set()
    place = containerd_place.of(registration)
    pending = [str(place.main)]
    for name in pending:
        if (real := os.path.realpath(registration.real(Path(name)))) not in loaded:
            loaded.add(real)
            files.append(File(registration.real(Path(name)), instead, bare))
            for pattern in imports(files[-1], registration):
                planned = {str(path) for path, text in instead.items() if text is not None and path.match(str(pattern))}
                there = planned.union(glob.glob(str(pattern)))
                pending += sorted(there.difference(str(path) for path, text in instead.items() if text is None))
    if place.merged and os.path.realpath(place.drop_in) not in loaded:
        files.append(File(place.drop_in, instead, bare))
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
    if containerd_read.version(root.data) == 3:
        return 3
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
    return (version_here(registration) or (1,))[0]


def version_here(registration: Registration) -> tuple[int, ...]:
    """The version of this machine's containerd; () if it cannot be run. k3s is one program, which goes by its first word."""
    if registration.host_root != "/":
        return ()
    place = containerd_place.of(registration)
    program = f"/proc/{place.pid}/exe" if place.pid else place.program or "containerd"
    words = ["containerd", "--version"]
    try:
        text = subprocess.run(words, executable=program, capture_output=True, text=True, timeout=20).stdout
        found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", text.split()[2])
        return tuple(map(int, found.groups())) if found else ()
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return ()


def where(files: list[File], version: int, registration: Registration) -> Path:
    """The file to put our handler into (see the module's docstring)."""
    place = containerd_place.of(registration)
    root = files[0]
    newer = version >= 3 or major(registration) >= 2
    imported = newer and any(place.drop_in.match(str(p)) for p in imports(root, registration))
    if place.name == "Flatcar" and not newer:
        why = "copy it to /etc/containerd/config.toml, and let containerd's unit name that (CONTAINERD_CONFIG)"
        raise refuse(
            "GH-506", f"{root.path} is read-only, and containerd 1 cannot join another file to it; {why}; then install"
        )
    if place.merged or place.name == "Flatcar" or imported and (version >= 3 or place.template):
        found = containerd_read.tables([(file.path, file.data) for file in files], newer=True)
        rival = last_word(found, ("default_runtime_name",)) if registration.default else None
        return drop_in.last(place.drop_in, rival)
    if place.template or version >= 3:
        return place.template or root.path
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
        if (
            containerd_place.of(registration).name == "Flatcar"
        ):  # whose own file is read-only, and joined to ours instead
            text += f'imports = ["{files[0].path}"]\n'
            expected["imports"] = [str(files[0].path)]
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
    empty = not set(rest) - {"version", "imports"}
    return None if empty and not notes.get("file") and "#" not in text else text
