"""The NVIDIA runtime's edits of a config.json, narrowed to a grant, or taken out where nothing is granted.

For the settings modes below and on-top (apply/nvidia_runtime_mode.py). That runtime's CDI mode edits the spec: mounts
of driver files, device nodes with their rules, createContainer hooks. Its legacy mode adds one prestart hook, which
mounts the driver into the made container, as the environment in the bundle's config.json says at that time. Pure: a
dict in, a dict out. A user who gives a mount of his own the name of a driver file loses that mount, and gains nothing.
"""

from oci_hook.core.device_rules import ANY, CONTROL_MINOR
from oci_hook.core.layout import DRI, NVIDIA_MAJOR, PRIVATE
from oci_hook.core.plan import DeviceNode
from oci_hook.core.value import Value
from oci_hook.core.value_parsers import VOID, WITH_A_SHARE
from oci_hook.errors import refuse
from oci_hook.oci import request_mounts
from oci_hook.oci.nvidia_hooks import LEGACY, program, subcommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from oci_hook.core.grant import Grant
    from oci_hook.core.inventory import Inventory
    from oci_hook.core.plan import Step
    from oci_hook.oci.spec_types import Linux, Mount, Object, Process, Resources, Spec

GOVERNED = ("libcuda.so", "libnvidia-ml.so")
MPS = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")  # one server process for clients that each have a limit
# The toolkit's hooks, as docs/reference/nvidia-toolkit.md lists them. HARMLESS do what their names say and nothing else.
HARMLESS = ("update-ldcache", "chmod", "disable-device-node-modification", "update-application-profile", "noop")
LINKS = "create-symlinks"
COMPAT = ("enable-cuda-compat", "cudacompat")  # taken out: they would put the image's libcuda before the shim
LIMITS = "apply-cuda-memory-limits"  # sets the driver's limits, from variables of the container
LIMITS_FLAGS = ("--driver-root", "--gpu-id")  # each with a word; another may have it read other variables
# The stages before the end of which our createRuntime hook runs (OCI config.md, POSIX-platform Hooks).
BEFORE = ("prestart", "createRuntime")
# Variables that make the NVIDIA runtime inject devices, beside NVIDIA_VISIBLE_DEVICES, which the plan sets.
MORE_ENV = ("NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_GDRCOPY", "NVIDIA_NVSWITCH", "NVIDIA_IMEX_CHANNELS")
NEVER_ENV = ("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES")
SWARM = "DOCKER_RESOURCE_"  # with its setting swarm-resource, these win over NVIDIA_VISIBLE_DEVICES
CDI = "cdi.k8s.io/"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
OFF = "leave it out (nvcdi-disable-hooks in the toolkit's config.toml), or use mode below or standalone"
SYSTEM_NODES = ("/dev/nvidia", "/dev/gdrdrv")


class Narrowed(Value):
    """A spec with the NVIDIA runtime's edits narrowed. cuda, nvml: where it had mounted these libraries.

    files: whether it had mounted any driver file. late: whether it will mount more in the made container, by a hook.
    unknown: the hooks of the toolkit that were taken out because nobody knows what they do.
    """

    spec: "Spec"
    cuda: tuple[str, ...]
    nvml: tuple[str, ...]
    files: bool
    late: bool
    unknown: tuple[str, ...] = ()


def narrow(
    spec: "Spec",
    grant: "Grant",
    inventory: "Inventory",
    nodes: "Iterable[Step]",
    same: "Callable[[str, str], bool]",
) -> Narrowed:
    """The spec less what the NVIDIA runtime injected and the grant does not give.

    nodes: the device nodes that the grant gives, among other steps. same: whether two host paths are one file.
    Raises NodeError GH-302 for the files of another driver version.
    """
    whole = bool(grant.shares) and all(share.whole for share in grant.shares)
    allowed = None if whole else governed_stems(inventory)
    mounts: list[Mount] = []
    cuda: list[str] = []
    nvml: list[str] = []
    files = False
    for mount in spec.get("mounts") or ():
        path, source = mount.get("destination") or "", mount.get("source") or ""
        name = path.rpartition("/")[2]
        if request_mounts.inside(path, PRIVATE):
            mounts.append(mount)
        elif name.startswith(GOVERNED) or _is_governed(mount, inventory, same):
            _check_version(name, inventory)
            files = True
            (nvml if "nvidia-ml" in name or same(source, inventory.libnvml) else cuda).append(path)
        elif allowed is not None and forbidden(name, inventory.driver_version, allowed):
            files = True
        else:
            files = files or name.endswith(".so." + inventory.driver_version)
            mounts.append(mount)
    given = {(node.major, node.minor) for node in nodes if isinstance(node, DeviceNode)}
    out = _without_nodes({**spec, "mounts": mounts}, given, inventory, whole)
    late = has_legacy_hook(spec)
    unknown: list[str] = []
    out = _hooks(out, keep=files or late, unknown=unknown)
    return Narrowed(out, tuple(cuda), tuple(nvml), files, late, tuple(unknown))


def decline(spec: "Spec", inventory: "Inventory | None") -> "Spec":
    """The spec of a container that is granted nothing: less what the NVIDIA runtime injected, and with
    NVIDIA_VISIBLE_DEVICES=void. The same object where there was nothing to do.

    inventory: None where it cannot be read; then the nodes of /dev/dri go with what CDI has put into the spec.
    """
    mounts = [m for m in spec.get("mounts") or () if not _driver_mount(m, "") and not request_mounts.is_visible(m)]
    linux = spec.get("linux") or {}
    out: Spec = {**_without_nodes(spec, None, inventory, False), "mounts": mounts}
    out = _hooks(out, keep=False)
    out = ask(out, VOID, True)
    changed = (
        len(mounts) != len(spec.get("mounts") or ())
        or len((out.get("linux") or {}).get("devices") or ()) != len(linux.get("devices") or ())
        or (out.get("linux") or {}).get("resources") != linux.get("resources")
        or out.get("hooks") != spec.get("hooks")
        or out.get("annotations") != spec.get("annotations")
        or (out.get("process") or {}).get("env") != (spec.get("process") or {}).get("env")
    )
    return out if changed else spec


def ask(spec: "Spec", devices: str, share: bool) -> "Spec":
    """The spec less what asks the NVIDIA runtime for devices, which is called with it next, or whose hook reads it.

    devices: the new NVIDIA_VISIBLE_DEVICES of a container that has any NVIDIA variable; "": the plan will set it.
    share: whether the container may have only what a shim governs.
    """
    drop = NEVER_ENV + (MORE_ENV if share else ())
    process: Process = {**(spec.get("process") or {})}
    env = [
        entry
        for entry in process.get("env") or ()
        if entry.partition("=")[0] not in drop and not entry.startswith(SWARM)
    ]
    if devices and any(entry.startswith(("NVIDIA_", "CUDA_VERSION=")) for entry in env):
        env = [entry for entry in env if entry.partition("=")[0] != VISIBLE] + [f"{VISIBLE}={devices}"]
    annotations = spec.get("annotations") or {}
    kept = {k: v for k, v in annotations.items() if not (k.startswith(CDI) and "nvidia.com/" in v)}
    out: Spec = {**spec}
    if spec.get("process"):
        out["process"] = {**process, "env": env} if process.get("env") else process
    if annotations:
        out["annotations"] = kept
    return out


def injected(spec: "Spec") -> str:
    """The first thing that CDI has put into the spec already, in words; "" for none."""
    for stage in _stages(spec).values():
        for entry in stage or ():
            if program(entry) and program(entry) not in LEGACY:
                return f"the hook {str(entry.get('path'))[:100]}"
    for mount in spec.get("mounts") or ():
        path = mount.get("destination") or ""
        if path.rpartition("/")[2].startswith(GOVERNED) and not request_mounts.inside(path, PRIVATE):
            return f"a mount at {path[:100]}"
    return ""


def has_legacy_hook(spec: "Spec") -> bool:
    """True if the NVIDIA runtime's hook will mount the driver into the made container, before our hook runs."""
    stages = _stages(spec)
    return any(program(entry) in LEGACY for stage in BEFORE for entry in stages.get(stage, ()))


def without_hooks(spec: "Spec") -> "Spec":
    """The spec less the NVIDIA toolkit's hooks: they are of an earlier edit, and that runtime adds them anew."""
    return _hooks(spec, keep=False)


def without_void(spec: "Spec") -> "Spec":
    """The spec less NVIDIA_VISIBLE_DEVICES=void. Where CDI has acted, that is CDI's own word to the NVIDIA runtime, and no
    wish of the container's. The same object where it is not there."""
    process: Process = {**(spec.get("process") or {})}
    env = process.get("env") or []
    if f"{VISIBLE}={VOID}" not in env:
        return spec
    process["env"] = [entry for entry in env if entry != f"{VISIBLE}={VOID}"]
    return {**spec, "process": process}


def check_hooks(spec: "Spec", own: str, words: "dict[str, str | None]") -> None:
    """Raises ApplyError GH-409 for a hook of the NVIDIA toolkit that could undo a share after our createRuntime hook.

    own: the path of ours, which runs now. What ran before it is covered and checked by it, whatever it was: the mounts,
    the device cgroup, and the driver's limits, which are set after it. After poststop nothing is left to undo. Each other
    stage is later than ours, in the container's mount namespace or able to enter it. words: what the variables of the
    toolkit's memory hook must be, whoever changed them since (core/nvidia_runtime_mode.py).
    """
    env = (spec.get("process") or {}).get("env") or ()
    said = [entry for entry in env if entry.partition("=")[0] in words]
    for stage, entries in _stages(spec).items():
        last = max(
            (i for i, entry in enumerate(entries) if isinstance(entry, dict) and entry.get("path") == own), default=-1
        )
        for i, entry in enumerate(entries):
            before = stage in BEFORE[:1] or (stage in BEFORE and i < last)
            if not program(entry) or before or stage == "poststop":
                continue
            verb, rest = subcommand(entry)
            if verb == LIMITS and _only_gpus(rest):
                if sorted(said) != sorted(f"{name}={value}" for name, value in words.items() if value is not None):
                    raise refuse(
                        "GH-409", f"{_shown(entry)} would set {', '.join(said)[:60]}, which is not the share; {OFF}"
                    )
            elif verb not in (*HARMLESS, *COMPAT, LINKS):
                raise refuse(
                    "GH-409", f"gpu-hook does not know what {_shown(entry)} ({stage[:20]}) does after it; {OFF}"
                )


def past_the_share(spec: "Spec", inventory: "Inventory") -> list[str]:
    """The places at which the NVIDIA runtime's CDI mode mounts files that a container with a share may not have. That mode mounts the
    files of all driver capabilities."""
    allowed = governed_stems(inventory)
    paths = [mount.get("destination") or "" for mount in spec.get("mounts") or ()]
    return [
        path
        for path in paths
        if not path.rpartition("/")[2].startswith(GOVERNED)
        and forbidden(path.rpartition("/")[2], inventory.driver_version, allowed)
    ]


def governed_stems(inventory: "Inventory") -> frozenset[str]:
    """The names, without what follows .so, of the driver's libraries that containers with a share may have: libcuda,
    libnvidia-ptxjitcompiler, ..."""
    names = (n for f in inventory.files if f.kind == "library" and f.capability in WITH_A_SHARE for n in f.names)
    return frozenset(_stem(name) for name in names)


def forbidden(name: str, version: str, allowed: frozenset[str]) -> bool:
    """True if a file of this name is the driver's and would reach a GPU past the shims. allowed: governed_stems()."""
    return name in MPS or (_driver_library(name, version) and _stem(name) not in allowed)


def _driver_library(name: str, version: str) -> bool:
    if not name.startswith("lib") or ".so" not in name:
        return False
    return "nvidia" in name or bool(version and name.endswith(".so." + version)) or name.startswith("libnvoptix")


def _driver_mount(mount: "Mount", version: str) -> bool:
    path = mount.get("destination") or ""
    name = path.rpartition("/")[2]
    return not request_mounts.inside(path, PRIVATE) and (name.startswith(GOVERNED) or _driver_library(name, version))


def _is_governed(mount: "Mount", inventory: "Inventory", same: "Callable[[str, str], bool]") -> bool:
    source = mount.get("source") or ""
    return source.startswith("/") and (same(source, inventory.libcuda) or same(source, inventory.libnvml))


def _check_version(name: str, inventory: "Inventory") -> None:
    version = name.partition(".so.")[2]
    if "." in version and version != inventory.driver_version:
        raise refuse(
            "GH-302",
            f"the NVIDIA runtime brings {name[:60]}, the inventory is of driver {inventory.driver_version};"
            " set driver_root to the same driver and run `gpu-hook gpus --refresh`",
        )


def _stem(name: str) -> str:
    return name.rpartition("/")[2].partition(".so")[0]


def _without_nodes(
    spec: "Spec", given: "set[tuple[int, int]] | None", inventory: "Inventory | None", whole: bool
) -> "Spec":
    """The spec less the GPUs' and the driver's device nodes that are not given, and the rules that permit those or a
    GPU that is not given. given: (major, minor) of the granted nodes; None without a grant: then a rule for every GPU
    goes, which is refused beside a grant. whole: whether the GPUs are granted whole."""
    gpus = {(node.major, node.minor) for node in inventory.nodes} if inventory else set()
    names = SYSTEM_NODES if inventory or not injected(spec) else (*SYSTEM_NODES, DRI)
    linux: Linux = {**(spec.get("linux") or {})}

    def goes(node: "Object") -> bool:
        path, number = str(node.get("path")), (node.get("major"), node.get("minor"))
        if given and number in given:
            return False
        if number in gpus or (number[0] == NVIDIA_MAJOR and _below(number[1], CONTROL_MINOR)):
            return True  # another GPU, by any name
        system = path.startswith(SYSTEM_NODES) and path not in ("/dev/nvidiactl", "/dev/nvidia-uvm")
        return system and (not whole or path.startswith("/dev/nvidia-caps"))  # nvidia-caps-imex-channels too

    nodes = linux.get("devices") or []
    # Without granted nodes, none of the driver's stays.
    gone = [n for n in nodes if goes(n) or (not given and str(n.get("path")).startswith(names))]
    numbers = {(n.get("major"), n.get("minor")) for n in gone} | (gpus - (given or set()))
    linux["devices"] = [n for n in nodes if n not in gone]
    resources: Resources = {**(linux.get("resources") or {})}
    if rules := resources.get("devices"):
        resources["devices"] = [
            r
            for r in rules
            if not (
                r.get("allow") is True
                and r.get("type") == "c"
                and ((r.get("major"), r.get("minor")) in numbers or _other_gpu(r, given))
            )
        ]
        linux["resources"] = resources
    return {**spec, "linux": linux}


def _other_gpu(rule: "Object", given: "set[tuple[int, int]] | None") -> bool:
    number = (rule.get("major"), rule.get("minor"))
    if number[0] != NVIDIA_MAJOR or (given and number in given):
        return False
    return _below(number[1], CONTROL_MINOR) or (given is None and number[1] in (None, ANY))


def _below(minor: object, most: int) -> bool:
    return isinstance(minor, int) and 0 <= minor < most


def _stages(spec: "Spec") -> "dict[str, list[Any]]":
    hooks = spec.get("hooks") or {}
    if not isinstance(hooks, dict):
        return {}
    return {stage: entries for stage, entries in hooks.items() if isinstance(entries, list)}


def _hooks(spec: "Spec", keep: bool, unknown: "list[str] | None" = None) -> "Spec":
    """The spec less those hooks of the NVIDIA toolkit that would put a library where a shim is to be, or set limits;
    without `keep` less all of them.

    Also less those that are not known, which are added to `unknown`: our mounts may be made before any hook runs. The
    toolkit's next release does not stop a node thereby, and a share needs none of the toolkit's hooks: it has none in
    mode standalone.
    """
    stages = _stages(spec)
    if not any(program(entry) for stage in stages.values() for entry in stage):
        return spec
    hooks = dict(spec["hooks"])
    for name, stage in stages.items():
        kept = []
        for entry in stage:
            if not program(entry):
                kept.append(entry)
            elif keep and (narrowed := _hook(entry, name, unknown)):
                kept.append(narrowed)
        if kept or not stage:
            hooks[name] = kept
        else:
            del hooks[name]
    return {**spec, "hooks": hooks}


def _hook(entry: "Object", stage: str, unknown: "list[str] | None") -> "Object | None":
    """A hook of the NVIDIA toolkit, less its links to libcuda and libnvidia-ml; None if nothing is left of it."""
    if program(entry) in LEGACY and stage in BEFORE:
        return entry
    verb, rest = subcommand(entry)
    if verb in HARMLESS:
        return entry
    if verb == LINKS:
        return _without_our_links(entry, rest)
    if verb not in (*COMPAT, LIMITS) and unknown is not None:
        unknown.append(_shown(entry))
    return None


def _without_our_links(entry: "Object", rest: list[str]) -> "Object | None":
    kept: list[str] = entry["args"][: -len(rest)] if rest else entry["args"]
    words, pairs = iter(rest), 0
    for word in words:
        if word in ("--link", "-link"):
            link = next(words, "")
        elif word.startswith(("--link=", "-link=")):
            link = word.partition("=")[2]
        else:
            kept = [*kept, word]
            continue
        if not any(part.startswith(GOVERNED) for part in link.replace(",", "/").replace(":", "/").split("/")):
            kept = [*kept, "--link", link]  # a comma separates links, too
            pairs += 1
    return {**entry, "args": kept} if pairs else None


def _only_gpus(words: list[str]) -> bool:
    """True if the words after LIMITS name a driver root and GPUs only."""
    names = [word for word in words if word.startswith("-")]
    return all(name.partition("=")[0] in LIMITS_FLAGS for name in names)


def _shown(entry: "Object") -> str:
    words = entry.get("args")
    text = " ".join(map(str, words)) if isinstance(words, list) else str(entry.get("path"))
    return f"the hook {text[:70]}"
