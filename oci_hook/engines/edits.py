"""Changes configuration files of other programs: shows a diff, keeps a backup, and can undo the change exactly.

Each file is a Target: its path and two pure functions, `add` and `strip`. `strip(add(text))` is `text`, even if the
administrator changed other parts in between. PREFIX/etc/engines.json records each change, and PREFIX/etc/before/ keeps
the former bytes; a file that nobody changed since is restored from there.
"""

import difflib
import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from oci_hook.core import dialects
from oci_hook.core.layout import PREFIX_KEY
from oci_hook.errors import GhError, refuse
from oci_hook.install.files import locked, make_folder, os_refusal, remove_empty
from oci_hook.linux.walk import Tree
from oci_hook.oci.annotations import STATIC

NAME = "gpu-hook"  # of our runtime in every engine's configuration
RECORD = "etc/engines.json"
BACKUPS = "etc/before"
LOCK = "/run/gpu-hook-engines.lock"  # only root can open it there, and so hold it forever
MAX_SIZE = 4 << 20
GENERATED = re.compile(r"(?i)\bdo not (?:edit|modify)\b")
BEGIN = "# gpu-hook: begin (written by `gpu-hook install`, removed by `gpu-hook uninstall`)"
END = "# gpu-hook: end"

Notes = dict[str, Any]
Texts = Mapping[Path, str | None]  # of files, instead of those on the disk; None: no such file
NOTHING: Texts = {}


@dataclass(frozen=True)
class Registration:
    """What to register. prefix: of the install. default: gpu-hook becomes the engine's default runtime. host_root:
    where the machine's / is mounted. config: the engine's configuration file, None for the usual one. way: "runtime" or
    "hook"; "" as the engine is registered already, else as a runtime."""

    prefix: str
    default: bool = False
    host_root: str = "/"
    config: str | None = None
    way: str = ""

    @property
    def program(self) -> str:
        return f"{self.prefix}/bin/gpu-hook-runtime"

    @property
    def hook(self) -> str:
        return f"{self.prefix}/bin/oci-gpu-hook"

    def host(self, path: str) -> Path:
        return self.real(Path(self.host_root, path.lstrip("/")))

    def main(self, path: str) -> Path:
        """The engine's main file: `config`, or the usual one. Raises SettingsError GH-507 where it is a link that leads nowhere."""
        named = Path(self.config) if self.config else Path(self.host_root, path.lstrip("/"))
        real = self.real(named)
        if real != named and named.is_symlink() and not real.exists():
            raise nowhere(named)
        return real

    def real(self, path: Path) -> Path:
        """Where a path below `host_root` leads on that machine, as after chroot(2): its links are not followed in our own root.
        Raises SettingsError GH-507."""
        if self.host_root == "/" or not path.is_relative_to(self.host_root):
            return path
        try:
            with Tree(self.host_root) as tree:
                return Path(self.host_root, tree.resolve(str(path.relative_to(self.host_root)))[0].lstrip("/"))
        except FileNotFoundError:
            return path  # there is no such root
        except OSError as e:
            raise refuse("GH-507", f"{path}: {e.strerror}; correct its links, or --host-root") from None


@dataclass(frozen=True)
class Target:
    """One file to change.

    add(text, notes) -> the text with our lines. text: None if there is no file yet. It may leave notes for strip.
    strip(text, notes) -> the text without our lines; None if nothing else is in the file, which then goes.
    parse(text, path) -> the contents as data. Raises SettingsError GH-506.
    notes["file"]: whether there was a file before.
    """

    path: Path
    add: Callable[[str | None, Notes], str]
    strip: Callable[[str, Notes], str | None]
    parse: Callable[[str, Path], Any]


@dataclass
class FileChange:
    """A file's bytes now (`old`), without our lines (`before`) and after the change (`new`); None: no such file. former: our lines
    leave this file for another."""

    path: Path  # the file that is replaced, with symbolic links followed
    old: bytes | None
    before: bytes | None
    new: bytes | None
    notes: Notes = field(default_factory=dict)
    former: bool = False

    @property
    def what(self) -> str:
        if self.old == self.new:
            return "unchanged"
        return "created" if self.old is None else "removed" if self.new is None else "changed"

    def diff(self) -> list[str]:
        old, new = ((text or b"").decode("utf-8", "replace").splitlines() for text in (self.old, self.new))
        was, will = ("/dev/null" if text is None else str(self.path) for text in (self.old, self.new))
        return list(difflib.unified_diff(old, new, was, will, lineterm=""))


class Record:
    """PREFIX/etc/engines.json: engine -> {file: {"before": sha256 or None, "after": sha256, "notes": {...}}}, and the
    folders that were created for the files."""

    def __init__(self, prefix: str) -> None:
        self.prefix = Path(prefix)
        self.path = self.prefix / RECORD
        self.engines: dict[str, dict[str, dict[str, Any]]] = {}
        self.folders: set[str] = set()
        try:
            data = json.loads(self.path.read_bytes())
            self.engines, self.folders = data["engines"], set(data["folders"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise refuse(
                "GH-506", f"{self.path}: {e}; repair it, or remove it and with it the record of backups"
            ) from None

    def entry(self, engine: str, path: Path) -> dict[str, Any]:
        return self.engines.get(engine, {}).get(str(path), {})

    def backup(self, engine: str, path: Path) -> Path:
        return self.prefix / BACKUPS / engine / str(path).strip("/").replace("/", "%")

    def shared(self, leaving: Collection[str], path: Path) -> bool:
        """True if an engine that stays registered uses this file as well."""
        return any(str(path) in files for name, files in self.engines.items() if name not in leaving)

    def keep(self, engine: str, change: FileChange) -> None:
        """Record a change that is about to be made, and before that write its backup."""
        backup = self.backup(engine, change.path)
        if change.before is not None:
            self._write_backup(backup, change.before)
        entry: dict[str, Any] = {"before": digest(change.before), "after": digest(change.new), "notes": change.notes}
        self.folders.update(str(folder) for folder in change.path.parents if not folder.exists())
        self.engines.setdefault(engine, {})[str(change.path)] = entry
        self.save()

    @staticmethod
    def _write_backup(path: Path, data: bytes) -> None:
        make_folder(path.parents[2])
        for folder in (path.parents[1], path.parent):  # each is root's alone, whatever the umask
            folder.mkdir(0o700, exist_ok=True)
        write(path, data, mode=0o600)

    def forget(self, engine: str, path: Path) -> None:
        self.engines.get(engine, {}).pop(str(path), None)
        for made in sorted(self.folders, key=len, reverse=True):
            remove_empty(Path(made))
        if not self.engines.get(engine):
            self.engines.pop(engine, None)
        self.backup(engine, path).unlink(missing_ok=True)
        for folder in (self.prefix / BACKUPS / engine, self.prefix / BACKUPS):
            remove_empty(folder)
        self.save()

    def backups(self, engine: str) -> dict[Path, bytes]:
        folder = self.prefix / BACKUPS / engine
        return {path: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}

    def restore(self, engine: str, files: dict[str, dict[str, Any]], backups: dict[Path, bytes]) -> None:
        """Put back an engine's record and backups from before a change that was reverted."""
        for path, data in backups.items():
            self._write_backup(path, data)
        self.engines.update({engine: files} if files else {})
        self.save()

    def save(self) -> None:
        if self.engines:
            make_folder(self.path.parent)
            data = {"engines": self.engines, "folders": sorted(self.folders)}
            write(self.path, (json.dumps(data, indent=2) + "\n").encode(), mode=0o644)
        else:
            self.path.unlink(missing_ok=True)


def plan(target: Target, record: Record, engine: str, leaving: Collection[str] = ()) -> FileChange:
    """The change of one file that registers this engine, or unregisters it as one of `leaving`; writes nothing. Raises
    SettingsError GH-506 to GH-508."""
    path, old = read(target.path)
    if leaving and record.shared(leaving, path):
        return FileChange(path, old, old, old)
    entry = record.entry(engine, path)
    notes: Notes = dict(entry.get("notes", {}))
    if old is None:
        before = None
    elif entry and digest(old) == entry["after"]:
        before = saved(record, engine, path, entry)
    else:
        stripped = target.strip(text_of(path, old), notes)
        before = None if stripped is None else stripped.encode()
    if leaving:
        return FileChange(path, old, before, before, notes)
    if before is not None and (why := generated(before)):
        raise refuse(
            "GH-506",
            f"{path} is generated ({why}) and would lose our lines; put those of `gpu-hook install --print --engine {engine}` where it"
            " is generated from",
        )
    # Of an earlier install's notes, only the choice to be the default runtime stays; add() makes the others again.
    notes = {"default": notes["default"]} if "default" in notes else {}
    notes["file"] = before is not None
    new = target.add(None if before is None else text_of(path, before), notes)
    if old is not None and old.strip() and target.parse(text_of(path, old), path) == target.parse(new, path):
        return FileChange(path, old, before, old, notes)  # equal as data: the administrator only reordered it
    return FileChange(path, old, before, new.encode(), notes)


def generated(data: bytes) -> str:
    """The words by which the head of a file says that a program writes it anew; "" if it does not."""
    head = data[:2048].decode("utf-8", "replace")
    comments = (line for line in head.splitlines() if line.lstrip().startswith("#"))
    return next((found[0] for line in comments if (found := GENERATED.search(line))), "")


def saved(record: Record, engine: str, path: Path, entry: dict[str, Any]) -> bytes | None:
    if entry["before"] is None:
        return None
    backup = record.backup(engine, path)
    try:
        data = backup.read_bytes()
    except OSError as e:
        raise refuse("GH-507", f"{backup}, the backup of {path.name}: {e.strerror}; edit {path.name} by hand") from None
    if digest(data) != entry["before"]:
        raise refuse("GH-506", f"{backup}, the backup of {path.name}, was changed; edit {path.name} by hand")
    return data


def carry_out(changes: list[FileChange], record: Record, engine: str, remove: bool = False) -> None:
    """Write planned changes, in order. Raises SettingsError GH-507; the files after the failed one are unchanged."""
    for change in changes:
        entry = record.entry(engine, change.path)
        leaves = remove or change.former
        if not leaves and (change.old != change.new or not entry):
            record.keep(engine, change)
        if change.old != change.new:
            put_in_place(change)
        if leaves:
            record.forget(engine, change.path)


def put_in_place(change: FileChange) -> None:
    if change.new is not None:
        replace_file(change.path, change.new)
        return
    try:
        change.path.unlink(missing_ok=True)
    except OSError as e:
        raise refuse("GH-507", f"{change.path}: {e.strerror}; remove it by hand") from None


def reverted(change: FileChange) -> FileChange:
    """The change that reverts this one."""
    return replace(change, old=change.new, new=change.old)


@contextmanager
def lock() -> Iterator[None]:
    """Let only one install or uninstall run on this machine; the lock file is removed afterwards. Raises SettingsError
    GH-507, which names the holder if it keeps the lock for LOCK_SECONDS."""
    try:
        os.makedirs(os.path.dirname(LOCK), exist_ok=True)
        fd = locked(LOCK, "GH-507")
    except OSError as e:
        raise os_refusal("GH-507", LOCK, e) from None
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(LOCK)
        os.close(fd)


def read(path: Path) -> tuple[Path, bytes | None]:
    """(the file with symbolic links followed, its bytes or None). Raises SettingsError GH-506, GH-507."""
    try:
        real = path.resolve()
        st = os.stat(real)
        if not stat.S_ISREG(st.st_mode):
            raise refuse("GH-507", f"{path} is not a regular file; name the right one with --config")
        if st.st_size > MAX_SIZE:
            raise refuse(
                "GH-506",
                f"{path} has {st.st_size} bytes, too many for a configuration file; name the right one with --config",
            )
        return real, real.read_bytes()
    except FileNotFoundError:
        if path.is_symlink():
            raise nowhere(path) from None
        return real, None
    except (OSError, RuntimeError) as e:  # RuntimeError: a loop of links
        raise refuse("GH-507", f"{path}: {getattr(e, 'strerror', None) or e}") from None


def nowhere(link: Path) -> GhError:
    return refuse("GH-507", f"{link} is a link to {os.readlink(link)}, which does not exist; correct the link")


def text_of(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        raise refuse("GH-506", f"{path}:{line}: byte {data[e.start]:#04x} is not UTF-8; correct it first") from None


def text_at(path: Path, instead: Texts = NOTHING) -> str | None:
    """The file's text; None if there is none. Raises SettingsError GH-506, GH-507."""
    planned = Path(os.path.realpath(path))
    if planned in instead:
        return instead[planned]
    real, data = read(path)
    return None if data is None else text_of(real, data)


def writable(path: Path) -> None:
    """Raises SettingsError GH-507 where this file cannot be replaced."""
    folder = next(folder for folder in path.parents if folder.exists())
    if not os.access(folder, os.W_OK):
        why = "is read-only" if os.statvfs(folder).f_flag & os.ST_RDONLY else "cannot be written to"
        root = "run as root, or " if os.geteuid() else ""
        raise refuse("GH-507", f"{folder} {why}, so {path.name} is unchanged; {root}use --print")


def takes_lines(path: Path) -> bool:
    """True if this file can be given our lines: NixOS's are read-only, others are generated."""
    try:
        writable(path)
        return not generated(read(path)[1] or b"")
    except GhError:
        return False


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file in one step; owner, mode, ACL and the other extended attributes stay. Raises SettingsError GH-507."""
    try:
        make_folder(path.parent)
        try:
            like = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return write(path, data, 0o644)
        try:
            write(path, data, 0o600, like)
        finally:
            os.close(like)
    except OSError as e:
        raise refuse("GH-507", f"{path}: {e.strerror}; it is unchanged") from None


OF_CONTENTS = ("security.ima", "security.evm")  # the kernel makes them from what a file has in it


def make_alike(fd: int, like: int) -> None:
    """Give a new file the owner, mode and extended attributes (xattr(7); ACLs are such) of another, and no others, as a folder's
    default ACL would. Raises OSError with the attribute that the file system or a security module refuses."""
    st = os.fstat(like)
    os.fchown(fd, st.st_uid, st.st_gid)
    names = [name for name in attributes(like) if name not in OF_CONTENTS]
    for name in attributes(fd):
        if name not in names and not name.startswith("security."):
            os.removexattr(fd, name)
    os.fchmod(fd, stat.S_IMODE(st.st_mode))
    there = attributes(fd)
    for name in names:
        value = os.getxattr(like, name)
        try:
            if name not in there or os.getxattr(fd, name) != value:
                os.setxattr(fd, name, value)
        except OSError as e:
            raise OSError(e.errno, f"its attribute {name:.60} cannot be kept ({e.strerror})") from None


def attributes(fd: int) -> list[str]:
    try:
        return os.listxattr(fd)
    except OSError as e:
        if e.errno != errno.ENOTSUP:
            raise
        return []  # of a file system that has none


def write(path: Path, data: bytes, mode: int, like: int | None = None) -> None:
    """Write a temporary file and rename it. Some engines read every file of a drop-in directory, so the temporary file
    is made one directory above it, unless that cannot be written to or is another mount: no file is renamed from there."""
    temporary = f".{path.name}.gpu-hook-new"
    if path.parent.name.endswith(".d"):
        with suppress(OSError):
            return _write(path.parent.parent / temporary, path, data, mode, like)
    _write(path.parent / temporary, path, data, mode, like)


def _write(temporary: Path, path: Path, data: bytes, mode: int, like: int | None) -> None:
    temporary.unlink(missing_ok=True)  # left by an install that was killed; we hold the lock
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as f:
            f.write(data)
            f.flush()
            os.fchmod(fd, mode)
            if like is not None:
                make_alike(fd, like)
            os.fsync(fd)
        os.rename(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def digest(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


def annotation_patterns() -> list[str]:
    """The annotations of all dialects and their near misses, which engines must pass on: patterns of Go's path.Match (* matches no
    slash)."""
    patterns = [PREFIX_KEY + "*"]
    for name in dialects.NAMES:
        if name == "nvidia":
            continue  # NEAR_PATTERNS have all its keys
        for key in dialects.table(name).KEYS:
            domain, slash, _ = key.rpartition("/")
            if slash or not key.startswith("gpu"):
                patterns.append(domain + slash + "*" if slash else key)
    return list(dict.fromkeys((*patterns, *dialects.NEAR_PATTERNS)))


def pod_patterns() -> list[str]:
    """A pod's annotations to pass on: besides those, the one with its source, since static pods have no decision."""
    return [*annotation_patterns(), STATIC]


def fenced(lines: list[str]) -> str:
    """Our lines as a block between comments that mark it as ours."""
    return "\n".join((BEGIN, *lines, END)) + "\n"


def without_fences(text: str) -> str:
    """The text without the blocks that `fenced` made, each with the blank line before it."""
    while (start := text.find(BEGIN + "\n")) >= 0:
        end = text.find(END, start)
        if end < 0:
            break
        end += len(END)
        if text[end : end + 1] == "\n":
            end += 1
        if text[:start].endswith("\n\n"):
            start -= 1
        text = text[:start] + text[end:]
    return text
