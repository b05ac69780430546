"""config.json of a bundle: read with suspicion, written in one step, everything unknown kept."""

import os
from stat import S_IMODE, S_ISREG

from oci_hook.errors import GhError, refuse
from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_SIZE = 16 << 20  # bytes; launcher.c MAX_SPEC
TEMPORARY = ".gpu-hook.config.json"


def _bad(path: str, why: object) -> GhError:
    return refuse("GH-401", f"{path}: {why}; the engine wrote a bundle that gpu-hook will not touch")


def load(path: str) -> "dict[str, Any]":
    """The spec. Raises ApplyError GH-401 unless it is a regular file (no link) of at most MAX_SIZE with a JSON object,
    whose parts that we edit have the types of the OCI runtime spec."""
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
    return parse(b"".join(parts), path)


def parse(data: bytes, path: str) -> "dict[str, Any]":
    """The spec in these bytes, checked as `load` checks it. path: what to call it. Raises ApplyError GH-401."""
    if len(data) > MAX_SIZE:
        raise _bad(path, f"more than {MAX_SIZE} bytes")
    try:
        spec = fastjson.loads(data)
    except ValueError as e:
        raise _bad(path, f"not JSON: {e}") from None
    problem = _wrong_type(spec)
    if problem:
        raise _bad(path, problem)
    return spec  # type: ignore[no-any-return]  # _wrong_type has seen to it


def _wrong_type(spec: "Any") -> str:
    """What is not as the runtime spec says, among the parts that are read or edited here; "" when all is well."""
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


def environment(spec: "dict[str, Any]") -> dict[str, str]:
    """process.env as a table; of two settings of one name the last one wins, as in runc and in shells."""
    env = (spec.get("process") or {}).get("env") or ()
    return dict(entry.split("=", 1) for entry in env if "=" in entry)


def rootfs(spec: "dict[str, Any]", bundle: str) -> str:
    """The container's root directory as an absolute host path (root.path is relative to the bundle)."""
    return os.path.join(bundle, (spec.get("root") or {}).get("path") or "rootfs")


def save(path: str, spec: "dict[str, Any]") -> None:
    """Replace the file in one step, with the same owner and mode. Raises ApplyError GH-401 and changes nothing."""
    folder, name = os.path.split(path)
    try:
        data = fastjson.dumps(spec).encode()
    except (ValueError, RecursionError) as e:
        raise _bad(path, f"cannot be written back: {e}") from None
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
        except FileExistsError:  # of a wrapper that was killed here
            os.unlink(TEMPORARY, dir_fd=at)
            fd = os.open(TEMPORARY, flags, 0o600, dir_fd=at)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fchown(fd, old.st_uid, old.st_gid)
            os.fchmod(fd, S_IMODE(old.st_mode))
            os.rename(TEMPORARY, name, src_dir_fd=at, dst_dir_fd=at)
        except OSError:
            os.unlink(TEMPORARY, dir_fd=at)
            raise
        finally:
            os.close(fd)
    except OSError as e:
        raise _bad(path, f"cannot be replaced: {e.strerror}") from None
    finally:
        os.close(at)
