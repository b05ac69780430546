"""config.json of a bundle: checked when read, replaced in one step when written. Parts that we do not know stay."""

import os
from stat import S_IMODE, S_ISREG

from oci_hook.errors import GhError, refuse
from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oci_hook.oci.spec_types import Spec

MAX_SIZE = 16 << 20  # bytes; launcher.c MAX_SPEC
TEMPORARY = ".gpu-hook.config.json"

# The runtime spec's names at the levels that are judged or edited here.
_SPEC = "ociVersion process root hostname domainname mounts hooks annotations linux solaris windows vm zos"
_PROCESS = (
    "terminal consoleSize user args commandLine env cwd capabilities rlimits noNewPrivileges apparmorProfile"
    " oomScoreAdj scheduler selinuxLabel ioPriority execCPUAffinity"
)
_ROOT = "path readonly"
_LINUX = (
    "uidMappings gidMappings sysctl resources cgroupsPath namespaces devices netDevices seccomp rootfsPropagation"
    " maskedPaths readonlyPaths mountLabel intelRdt memoryPolicy personality timeOffsets"
)
_RESOURCES = "devices memory cpu pids blockIO hugepageLimits network rdma unified"
_RULE = "allow type major minor access"
_NODE = "path type major minor fileMode uid gid"
_MOUNT = "destination type source options uidMappings gidMappings"
_HOOKS = "prestart createRuntime createContainer startContainer poststart poststop"
_HOOK = "path args env timeout"


def _bad(path: str, why: object) -> GhError:
    return refuse("GH-401", f"{path}: {why}; correct what the engine, or whoever made the bundle, wrote there")


def load(path: str) -> "Spec":
    """The spec. Raises ApplyError GH-401 unless the file is regular (no link), has at most MAX_SIZE bytes, and holds a
    JSON object in which the parts that we edit have the types of the OCI runtime spec, and names that every runtime
    reads alike."""
    return parse(read(path), path)


def read(path: str) -> bytes:
    """The bytes of a file that `load` would take, not parsed yet. Raises ApplyError GH-401."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as e:
        raise _bad(path, "a symbolic link" if e.errno == 40 else e.strerror) from None
    try:
        st = os.fstat(fd)
        if not S_ISREG(st.st_mode):
            raise _bad(path, "not a regular file")
        if st.st_size > MAX_SIZE:
            raise _bad(path, f"{st.st_size} bytes, more than {MAX_SIZE}")
        parts = []
        left = MAX_SIZE + 1
        while left > 0 and (part := os.read(fd, min(left, st.st_size + 1))):
            parts.append(part)
            left -= len(part)
    except OSError as e:
        raise _bad(path, e.strerror) from None
    finally:
        os.close(fd)
    return b"".join(parts)


def parse(data: bytes, path: str) -> "Spec":
    """The spec in these bytes, checked as `load` checks it. path: its name in messages. Raises ApplyError GH-401."""
    if len(data) > MAX_SIZE:
        raise _bad(path, f"more than {MAX_SIZE} bytes")
    try:
        spec = fastjson.loads_unique(data)
    except ValueError as e:
        raise _bad(path, f"not JSON: {e}") from None
    problem = _wrong_type(spec) or _odd_name(spec)
    if problem:
        raise _bad(path, problem)
    return spec  # type: ignore[no-any-return]  # _wrong_type has checked it


def cgroups_path(spec: "Spec") -> str:
    """linux.cgroupsPath, "" where there is none."""
    return str((spec.get("linux") or {}).get("cgroupsPath") or "")


def _wrong_type(spec: "Any") -> str:
    """The first part that we read or edit and that has another type than the runtime spec says, in words; or ""."""
    if not isinstance(spec, dict):
        return "not a JSON object"

    def check(parent: "dict[str, Any]", where: str, key: str, kind: type, of: type | None = None) -> str:
        value = parent.get(key)
        if value is None:  # Go writes null for an empty list
            return ""
        name = where + key
        if not isinstance(value, kind):
            return f"{name} is not {'an object' if kind is dict else 'a list' if kind is list else 'a string'}"
        items = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
        if of is not None and not all(isinstance(v, of) for v in items):
            return f"{name} has an entry of the wrong type"
        return ""

    problem = (
        check(spec, "", "annotations", dict, str)
        or check(spec, "", "process", dict)
        or check(spec, "", "root", dict)
        or check(spec, "", "linux", dict)
        or check(spec, "", "mounts", list, dict)
    )
    if problem:
        return problem
    process, root, linux = spec.get("process") or {}, spec.get("root") or {}, spec.get("linux") or {}
    problem = (
        check(process, "process.", "env", list, str)
        or check(root, "root.", "path", str)
        or check(linux, "linux.", "devices", list, dict)
        or check(linux, "linux.", "resources", dict)
        or check(linux.get("resources") or {}, "linux.resources.", "devices", list, dict)
    )
    if problem:
        return problem
    for mount in spec.get("mounts") or ():
        problem = (
            check(mount, "mounts[].", "destination", str)
            or check(mount, "mounts[].", "type", str)
            or check(mount, "mounts[].", "source", str)
            or check(mount, "mounts[].", "options", list, str)
        )
        if problem:
            return problem
    return ""


def _table(names: str) -> dict[str, str]:
    return {name.casefold(): name for name in names.split()}


_LEVELS = tuple(map(_table, (_SPEC, _PROCESS, _ROOT, _LINUX, _RESOURCES, _RULE, _NODE, _MOUNT, _HOOKS, _HOOK)))


def _odd_name(spec: "Spec") -> str:
    """The first key that some runtimes take for one of the runtime spec's, and others do not, in words; or "".

    Go's decoder (runc) matches names by Unicode's simple case folding, in which U+017F is an s and U+212A a k: runc
    would do what stands under "Linux", which we have not judged. crun and youki compare the bytes, as we do.
    """
    top, process, root, linux, resources, rule, node, mount, stages, hook = _LEVELS
    parts: list[tuple[str, dict[str, str], Any]] = [
        ("", top, spec),
        ("process.", process, spec.get("process")),
        ("root.", root, spec.get("root")),
        ("hooks.", stages, spec.get("hooks")),
        ("linux.", linux, spec.get("linux")),
        ("linux.resources.", resources, (spec.get("linux") or {}).get("resources")),
    ]
    for stage in _values(spec.get("hooks")):
        parts += [("hooks.*[].", hook, entry) for entry in (stage if isinstance(stage, list) else ())]
    parts += [("mounts[].", mount, entry) for entry in spec.get("mounts") or ()]
    parts += [("linux.devices[].", node, entry) for entry in (spec.get("linux") or {}).get("devices") or ()]
    rules = ((spec.get("linux") or {}).get("resources") or {}).get("devices") or ()
    parts += [("linux.resources.devices[].", rule, entry) for entry in rules]
    for where, names, part in parts:
        if isinstance(part, dict):
            for key in part:
                name = names.get(key.casefold())
                if name is not None and name != key:
                    return f"{where}{key} is not how the runtime spec writes {name}, but runc would take it for that"
    return ""


def _values(part: "Any") -> "Any":
    return part.values() if isinstance(part, dict) else ()


def environment(spec: "Spec") -> dict[str, str]:
    """process.env as a table; of two entries with one name the last one counts, as in runc and in shells."""
    env = (spec.get("process") or {}).get("env") or ()
    return dict(entry.split("=", 1) for entry in env if "=" in entry)


def rootfs(spec: "Spec", bundle: str) -> str:
    """The container's root directory as an absolute host path (root.path is relative to the bundle)."""
    return os.path.join(bundle, (spec.get("root") or {}).get("path") or "rootfs")


def save(path: str, spec: "Spec") -> None:
    """Replace the file in one step, with the same owner and mode. Raises ApplyError GH-401 and changes nothing."""
    try:
        data = fastjson.dumps(spec).encode()
    except (ValueError, RecursionError) as e:
        raise _bad(path, f"cannot be written back: {e}") from None
    replace(path, data)


def replace(path: str, data: bytes) -> None:
    """`save` for a spec that is bytes already."""
    folder, name = os.path.split(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as e:
        raise _bad(folder, e.strerror) from None
    try:
        old = os.stat(name, dir_fd=at, follow_symlinks=False)
        if not old.st_mode & 0o222:
            raise PermissionError(13, "it is read-only")
        try:
            fd = os.open(TEMPORARY, flags, 0o600, dir_fd=at)
        except FileExistsError:  # left by a wrapper that was killed here
            os.unlink(TEMPORARY, dir_fd=at)
            fd = os.open(TEMPORARY, flags, 0o600, dir_fd=at)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fchown(fd, old.st_uid, old.st_gid)
            os.fchmod(fd, S_IMODE(old.st_mode))
            os.rename(TEMPORARY, name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException:  # the deadline, too, which may come after the rename
            try:
                os.unlink(TEMPORARY, dir_fd=at)
            except FileNotFoundError:
                pass
            raise
        finally:
            os.close(fd)
    except OSError as e:
        why = f"cannot be replaced: {e.strerror}"
        raise refuse(
            "GH-401",
            f"{path}: {why}; the share is written into it: put the bundle where root can write and there is room",
        ) from None
    finally:
        os.close(at)
