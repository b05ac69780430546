"""Plan -> edits of config.json, so that the runtime itself makes the changes: the only way that reaches a process's
environment, and that no `systemctl daemon-reload` undoes. Pure: dicts in, a dict out."""

from oci_hook.core.device_rules import starts_closed
from oci_hook.core.layout import (
    DRI,
    ENV_SET,
    MARKER,
    MEMORY_WORDS,
    NVIDIA_MAJOR,
    PRIVATE,
    REQUEST_DIR,
    SIM_GPUS,
    VISIBLE_DIR,
)
from oci_hook.core.plan import Bind, DeviceNode, DeviceRule, EnvVar, Tmpfs
from oci_hook.errors import refuse
from oci_hook.oci import fastjson, request_mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_hook.core.grant import Grant
    from oci_hook.core.plan import Step
    from oci_hook.oci.spec_types import Linux, Mount, Object, Process, Resources, Spec

VARIABLES = (*ENV_SET, *MEMORY_WORDS)  # those that a step may set or remove
DENY_ALL = {"allow": False, "access": "rwm"}
GPU_NAMES = (
    *("libcuda.so", "libcudadebugger.so", "libnvcuvid.so", "libnvoptix.so", "libGLX_indirect.so", "libnvidia-"),
    *("nvidia-", "nvidia_", "nvidia.icd", "nvoptix.bin", "gsp_", "gsp.bin"),
)
# Seconds, as in runtime-config. Our programs give up after 20; where a machine boots with all its containers, a program may
# need the others to start.
HOOK_TIMEOUT = 30
BOUNDARY_CLIENT = "gpu-hook-boundary"


def marked(spec: "Spec") -> str:
    """The key of the grant that the spec was edited for, as it says itself; "" where it was not."""
    return str((spec.get("annotations") or {}).get(MARKER) or "").partition(" ")[0]


def own_hook(prefix: str) -> str:
    """The path of our hook's program, by which it is known in a spec."""
    return f"{prefix}/bin/oci-gpu-hook"


def with_hook(spec: "Spec", prefix: str) -> "Spec":
    """The spec with our createRuntime hook, the last of that stage, once. Raises ApplyError GH-401."""
    hooks = _hooks(spec)
    entry = {
        "path": own_hook(prefix),
        "args": ["oci-gpu-hook", "createRuntime"],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        "timeout": HOOK_TIMEOUT,
    }
    there = [e for e in hooks.get("createRuntime") or () if e != entry]
    return {**spec, "hooks": {**hooks, "createRuntime": [*there, entry]}}


def with_boundary(spec: "Spec", prefix: str, state_dir: str, key: str) -> "Spec":
    """The spec with the hooks that set the driver's limits before the container's program starts, and clear them when it
    has ended, each the last of its stage. Raises ApplyError GH-401."""
    hooks = _hooks(spec)
    path = f"{prefix}/bin/{BOUNDARY_CLIENT}"
    for stage, word in (("createRuntime", "set"), ("poststop", "clear")):
        entry = {
            "path": path,
            "args": [BOUNDARY_CLIENT, word, state_dir, key],
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            "timeout": HOOK_TIMEOUT,
        }
        hooks = {**hooks, stage: [*(hooks.get(stage) or ()), entry]}
    return {**spec, "hooks": hooks}


def has_boundary(spec: "Spec", key: str) -> bool:
    """Whether the spec's own hooks set the driver's limits for this grant."""
    entries = _hooks(spec).get("createRuntime") or ()
    return any(_is_boundary(entry) and entry.get("args", [])[-1:] == [key] for entry in entries)


def _is_boundary(entry: "object") -> bool:
    return isinstance(entry, dict) and str(entry.get("path")).endswith(f"/bin/{BOUNDARY_CLIENT}")


def _hooks(spec: "Spec") -> "dict[str, list[Object]]":
    """The spec's hooks by stage. Raises ApplyError GH-401."""
    hooks = spec.get("hooks") or {}
    if not isinstance(hooks, dict) or not all(isinstance(entries or [], list) for entries in hooks.values()):
        raise refuse("GH-401", "the spec's hooks are not an object of lists; the engine wrote it wrongly")
    return hooks


def _without_boundary(spec: "Spec") -> "Spec":
    """The spec less the hooks of `with_boundary`, whose grant is gone; `spec` itself where it has none."""
    hooks = spec.get("hooks")
    if not isinstance(hooks, dict):
        return spec
    left = {
        stage: [entry for entry in entries if not _is_boundary(entry)] if isinstance(entries, list) else entries
        for stage, entries in hooks.items()
    }
    if left == hooks:
        return spec
    left = {stage: entries for stage, entries in left.items() if entries or not hooks[stage]}
    rest: Spec = {**spec, "hooks": left}
    if not left:
        del rest["hooks"]
    return rest


def scrub(spec: "Spec") -> "Spec":
    """The spec as it was before our edit, if it carries our marker; else `spec` itself.

    A forged marker can only take GPU things away, and ask for a share, which its author could do in any annotation.
    """
    annotations = spec.get("annotations") or {}
    if MARKER not in annotations:
        return spec
    remembered = _remembered(annotations[MARKER])
    spec = _without_boundary(spec)
    process: Process = {**(spec.get("process") or {})}
    env = [entry for entry in process.get("env") or () if _name(entry) not in VARIABLES]
    process["env"] = env + [entry for entry in remembered if _name(entry) in VARIABLES]
    mounts = [m for m in spec.get("mounts") or () if request_mounts.is_request(m) or not _is_gpu_mount(m)]
    requests = (REQUEST_DIR + "/", VISIBLE_DIR + "/")
    mounts += [_request_mount(e) for e in remembered if e.startswith(requests) and request_mounts.plain(e) == e]
    return {
        **spec,
        "annotations": {k: v for k, v in annotations.items() if k != MARKER},
        "mounts": mounts,
        "process": process,
        "linux": _without_gpus(spec, remembered),
    }


def _remembered(marker: str) -> list[str]:
    """What `apply` wrote into the marker: variables of the container that it replaced, destinations of the requests by
    mount that it took out, and nodes that it added in a folder where nodes of other makers may be."""
    try:
        entries = fastjson.loads(marker.partition(" ")[2].encode())
    except ValueError:
        return []
    return [e for e in entries if isinstance(e, str)] if isinstance(entries, list) else []


def _without_gpus(spec: "Spec", remembered: list[str]) -> "Linux":
    """The spec's linux part less the GPUs' device nodes, and less the rules that permit those or any NVIDIA GPU."""
    linux: Linux = {**(spec.get("linux") or {})}
    resources: Resources = {**(linux.get("resources") or {})}
    ours = ("/dev/nvidia", *(e for e in remembered if e.startswith(DRI)))  # of DRI the marker remembers ours
    nodes = [d for d in linux.get("devices") or () if str(d.get("path")).startswith(ours)]
    numbers = {(d.get("major"), d.get("minor")) for d in nodes}
    linux["devices"] = [d for d in linux.get("devices") or () if d not in nodes]
    resources["devices"] = [
        r
        for r in resources.get("devices") or ()
        if not (r.get("allow") is True and r.get("type") == "c")
        or (r.get("major") != NVIDIA_MAJOR and (r.get("major"), r.get("minor")) not in numbers)
    ]
    linux["resources"] = resources
    return linux


def _is_gpu_mount(mount: "Mount") -> bool:
    path = mount.get("destination") or ""
    inside = path == PRIVATE or path.startswith((PRIVATE + "/", SIM_GPUS + "/"))
    name = path.rpartition("/")[2]
    return inside or name.startswith(GPU_NAMES) or "_nvidia" in name


def _request_mount(destination: str) -> "Mount":
    return {"destination": destination, "type": "bind", "source": "/dev/null", "options": ["bind", "ro"]}


def apply(spec: "Spec", plan: "Iterable[Step]", grant: "Grant", beside: bool = False) -> "Spec":
    """The edited spec; `spec` itself is left as it is. Everything that is not ours is kept, in its order.

    beside: the NVIDIA runtime reads the spec next; mounts that ask it for devices are taken out too.
    """
    process: Process = {**(spec.get("process") or {})}
    linux: Linux = {**(spec.get("linux") or {})}
    resources: Resources = {**(linux.get("resources") or {})}
    env: list[str] = list(process.get("env") or ())
    devices: list[Object] = list(linux.get("devices") or ())
    rules: list[Object] = list(resources.get("devices") or ())
    mounts, requests = _split_requests(spec, beside)
    remembered = [entry for entry in env if _name(entry) in VARIABLES] + requests
    if not starts_closed(rules):
        rules.insert(0, DENY_ALL)  # runc takes an empty list for this rule; written down, every runtime has it
    for step in plan:
        if isinstance(step, (Bind, Tmpfs)):
            mounts.append(_mount(step))
        elif isinstance(step, DeviceNode):
            if step.path.startswith(DRI):
                remembered.append(step.path)
            devices = [d for d in devices if d.get("path") != step.path] + [_device(step)]
        elif isinstance(step, DeviceRule):
            rules.append({"allow": True, "type": "c", "major": step.major, "minor": step.minor, "access": step.access})
        elif isinstance(step, EnvVar):
            env = [entry for entry in env if _name(entry) != step.name]
            if step.value is not None:
                env.append(f"{step.name}={step.value}")
    process["env"] = env
    resources["devices"] = rules
    linux["devices"] = devices
    linux["resources"] = resources
    marker = f"{grant.key} {fastjson.dumps(remembered)}"
    return {
        **spec,
        "annotations": {**(spec.get("annotations") or {}), MARKER: marker},
        "process": process,
        "mounts": mounts,
        "linux": linux,
    }


def _split_requests(spec: "Spec", beside: bool) -> "tuple[list[Mount], list[str]]":
    """(the spec's mounts that stay, the destinations of those that were requests and are served now)."""
    stay: list[Mount] = []
    requests: list[str] = []
    for mount in spec.get("mounts") or ():
        if request_mounts.is_request(mount) or (beside and request_mounts.is_visible(mount)):
            requests.append(request_mounts.plain(mount.get("destination") or ""))
        else:
            stay.append(mount)
    return stay, requests


def _mount(step: "Bind | Tmpfs") -> "Mount":
    if isinstance(step, Bind):
        options = ["bind", "rprivate", *step.options]
        return {"destination": step.destination, "type": "bind", "source": step.source, "options": options}
    limits = [f"size={step.size}", f"nr_inodes={step.inodes}", f"mode={step.mode:o}"]
    options = ["nosuid", "nodev", "noexec", *limits]
    return {"destination": step.destination, "type": "tmpfs", "source": "tmpfs", "options": options}


def _device(step: DeviceNode) -> "Object":
    number = {"type": "c", "major": step.major, "minor": step.minor}
    return {"path": step.path, **number, "fileMode": 0o666, "uid": 0, "gid": 0}


def _name(entry: str) -> str:
    """Of an entry of process.env, the variable's name."""
    return entry.partition("=")[0]
