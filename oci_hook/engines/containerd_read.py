"""containerd's files, merged as it merges them itself. Tests compare the result with `containerd config dump`.

containerd 1.x takes a plugin's whole table from the last file that has it (containerd issue 5837), by the name that the last
`version` line says. containerd 2 merges tables key by key, each file with the names of its own version.
"""

from pathlib import Path
from typing import Any

from oci_hook.engines import toml_text
from oci_hook.engines.edits import NAME
from oci_hook.engines.effective import Has, last_word, overlaid
from oci_hook.engines.toml_text import Keys

RUNC = "io.containerd.runc.v2"
IN_TEMPLATE = "${RUNTIME_TYPE}"  # the same in microk8s's template

# Config version -> the table of the CRI plugin's runtime part.
PLUGIN: dict[int, Keys] = {
    1: ("plugins", "cri"),
    2: ("plugins", "io.containerd.grpc.v1.cri"),
    3: ("plugins", "io.containerd.cri.v1.runtime"),
    4: ("plugins", "io.containerd.cri.v1.runtime"),
}


def tables(files: list[tuple[Path, dict[str, Any]]], newer: bool) -> list[tuple[Path, dict[str, Any]]]:
    """(file, its table `containerd` of the CRI plugin's runtime part) of those of these files, in the order in which containerd
    reads them, that count. newer: containerd 2."""
    versions = [version(data) for _, data in files]
    if newer:
        # One of version 2 is read as such below a root file of version 2; containerd 2.1 ignores it below one of version 3.
        names = [PLUGIN[versions[0] if versions[0] >= 3 else stated or versions[0] or 1] for stated in versions]
        found = [(path, toml_text.get(data, name)) for (path, data), name in zip(files, names, strict=True)]
    else:
        name = PLUGIN[next(filter(None, reversed(versions)), 1)]
        found = [(path, toml_text.get(data, name)) for path, data in files]
        found = [(path, plugin) for path, plugin in found if plugin is not None][-1:]
    pairs = [(path, toml_text.get(plugin, ("containerd",))) for path, plugin in found]
    return [(path, table) for path, table in pairs if isinstance(table, dict)]


def version(data: dict[str, Any]) -> int:
    """The configuration version that a file states; 0 where it states none that is known."""
    stated = data.get("version", 0)
    if stated == 2 and toml_text.get(data, (*PLUGIN[3], "containerd")) is not None:
        return 3  # as AKS writes it; containerd 2 takes these names before those of version 2
    return stated if type(stated) is int and stated in PLUGIN else 0


def merged(found: list[tuple[Path, dict[str, Any]]]) -> dict[str, Any]:
    """The table `containerd` as containerd has it, without its defaults."""
    table: dict[str, Any] = {}
    for _, other in found:
        table = overlaid(table, other)
    return table


def option(table: Any, key: str) -> Any:
    """An option of a runtime's table, whose case does not count; None for one that is left out or empty."""
    options = table.get("options") if isinstance(table, dict) else None
    for name, value in options.items() if isinstance(options, dict) else ():
        if name.lower() == key.lower() and value:
            return value
    return None


def runtimes(table: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = table.get("runtimes")
    return {name: each for name, each in found.items() if isinstance(each, dict)} if isinstance(found, dict) else {}


def used(table: dict[str, Any]) -> list[dict[str, Any]]:
    """The tables of runc that a node uses: the default's, and that of the name runc."""
    names = dict.fromkeys((str(table.get("default_runtime_name") or "runc"), "runc"))
    found = [runtimes(table)[name] for name in names if name != NAME and name in runtimes(table)]
    return [each for each in found if each.get("runtime_type", RUNC) in (RUNC, IN_TEMPLATE)]


def model(table: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], str]:
    """(table, options, program) of the runtime that the node uses, its default. Where the cgroup drivers of that and of runc
    differ, ours is systemd's, which a kubelet of today uses."""
    models = used(table)
    options = dict(models[0].get("options") or {}) if models else {}
    systemd = any(option(each, "SystemdCgroup") for each in models)
    replaced = ("binaryname", "runtime", *(["systemdcgroup"] if systemd else []))
    options = {key: value for key, value in options.items() if key.lower() not in replaced and value != ""}
    binaries = [str(option(each, "BinaryName") or "") for each in models]
    usual = [name for name in binaries if "nvidia" not in name]
    return (
        {key: value for key, value in models[0].items() if key != "options" and value not in ("", [])}
        if models
        else {},
        {**options, **({"SystemdCgroup": True} if systemd else {})},
        usual[0] if usual else "",
    )


def doubts(table: dict[str, Any]) -> list[str]:
    systemd = {bool(option(each, "SystemdCgroup")) for each in used(table)}
    default = table.get("default_runtime_name")
    if len(systemd) < 2:
        return []
    return [f"SystemdCgroup of {default}, the default, and of runc differ; {NAME}'s is true"]


def has(files: list[tuple[Path, dict[str, Any]]], newer: bool, spec: str) -> Has:
    """spec: the file that stands for our program where we are registered by hooks."""
    found = tables(files, newer)
    table = merged(found)
    handler = runtimes(table).get(NAME, {})
    program = option(handler, "BinaryName") or (RUNC if handler else "")
    return Has(
        spec if handler.get("base_runtime_spec") == spec else program,
        str(table.get("default_runtime_name") or "runc"),
        last_word(found, ("runtimes", NAME)),
        last_word(found, ("default_runtime_name",)),
    )
