"""An install: everything of gpu-hook that containers need, in one directory. Creates it, renews it, removes it.

Not for the hot path. Every file is put in place by rename, so that a running container keeps the library it has mapped
and the engine never calls half a program.
"""

import contextlib
import os
import platform
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from oci_hook.config import flat_yaml
from oci_hook.config import settings as node_settings
from oci_hook.config.settings import Settings, state_in_use
from oci_hook.core import layout, words
from oci_hook.core.policy_page import MAX_GPUS
from oci_hook.core.units import show
from oci_hook.errors import GhError, NodeError, Problem, refuse
from oci_hook.install import own_path, own_python, places, settings_check, settings_edit, state_move, state_owner
from oci_hook.install.files import LOCK, locked, make_folder, os_refusal, remove_empty, unlock, write
from oci_hook.install.settings_template import default_settings_yaml
from oci_hook.ledger import events, gpu_owner, store
from oci_hook.linux import label

PACKAGE = Path(__file__).resolve().parent.parent
# Containers need whole folders and the modules beside them; everything else is for commands and the agent.
HOT_FOLDERS = ("apply", "boundary", "config", "core", "ledger", "linux", "oci")
COLD_FILES = ("__main__.py",)
PROGRAMS = ("gpu-hook-runtime", "oci-gpu-hook", "gpu-hook-boundary", "gpu-hook-probe")
TEMPORARY = re.compile(r"\.\d+\.new\Z")  # the end of what `files.write` renames, which a killed one leaves
OLD_FILES = ("etc/settings.json", "etc/launcher.conf")  # 0.1.0's
STARTS = ("runtime.py", "hook.py")  # started by PROGRAMS
LOADER = "load.py"
SHIMS = ("libcuda.so.1", "libnvidia-ml.so.1")
EMPTY_FILES = (
    *(layout.REAL_LIBCUDA, layout.REAL_LIBNVML, layout.POLICY_PAGE),
    *(f"{layout.SLOT_FILE}/{i}" for i in range(MAX_GPUS)),
)
EMPTY_FOLDERS = (layout.ACCOUNT_DIR, *(f"{layout.SHARE_DIR}/{i}" for i in range(MAX_GPUS)))


def native(arch: str = platform.machine()) -> Path:
    """The folder of the compiled parts: in an installed package, or in the build folder of a checkout."""
    packed = PACKAGE / "native" / arch
    return packed if packed.is_dir() else PACKAGE.parent / "build" / arch


def lay(
    prefix: str,
    runtime: str | None = None,
    python: str | None = None,
    state_dir: str | None = None,
    usual: str = "",
) -> Settings:
    """Make or renew the install at `prefix`; returns its settings. An existing settings.yaml is kept, and then the other
    arguments must be None or what it says. A first one that fails leaves nothing. A prefix with files of others is none.
    usual: the runtime of a first install for which none is given; "": this machine's.

    Raises SettingsError GH-50x, GH-305.
    """
    root, compiled = _usable(prefix), _compiled_for(prefix)
    try:
        with _alone(root):
            first = not _installed(root)
            _refuse_foreign(root)
            try:
                return _lay(root, compiled, {"runtime": runtime, "python": python, "state_dir": state_dir}, usual)
            except BaseException:
                if first:
                    _remove_files(root)
                raise
    except OSError as e:
        raise os_refusal("GH-504", str(e.filename2 or e.filename or prefix), e, "choose --prefix") from None


def place() -> tuple[str, list[str]]:
    """Where an install is, or can be, and why it is not at the usual place. Raises SettingsError GH-504."""
    program = native() / PROGRAMS[0]
    return (places.found(), []) if os.geteuid() or not program.is_file() else places.choose(program)


def check(
    prefix: str,
    runtime: str | None = None,
    python: str | None = None,
    state_dir: str | None = None,
    usual: str = "",
) -> Settings:
    """The settings that `lay` would have with these arguments. Raises SettingsError GH-50x where it would refuse them or
    the prefix. Writes nothing."""
    root = _usable(prefix)
    _compiled_for(prefix)
    _refuse_foreign(root)
    return _settings(root, {"runtime": runtime, "python": python, "state_dir": state_dir}, usual)[0]


def _compiled_for(prefix: str) -> Path:
    """The folder of the compiled parts. Raises GH-504 if it lacks one, or if others than root can change what lies at the prefix."""
    if (part := own_path.changeable(prefix)) is not None:
        raise refuse(
            "GH-504", f"{part} can be changed by others than root; choose another --prefix, or chmod go-w, chown root"
        )
    compiled = native()
    wanted = [compiled / name for name in (*PROGRAMS, *SHIMS)]
    missing = [path.name for path in wanted if not path.is_file()]
    if missing:
        raise refuse("GH-504", f"{compiled} lacks {', '.join(missing)}; run scripts/build in the checkout")
    if not os.geteuid() and (why := places.unfit(Path(prefix), compiled / PROGRAMS[0])):
        raise refuse("GH-504", f"no install can be in {prefix}: {why}; choose another --prefix, or none: one is chosen")
    return compiled


def _refuse_foreign(root: Path) -> None:
    if not _installed(root) and (found := next(_foreign(root), None)):
        raise refuse("GH-504", f"{found} is not gpu-hook's; choose a --prefix that is empty or does not exist")
    if linked := next(filter(os.path.islink, (root / name for name in _own_folders())), None):
        raise refuse("GH-504", f"{linked} is a link, and what it leads to is not gpu-hook's; remove the link")


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Only one process installs or removes at this prefix at a time; others wait. The prefix is made if it does not exist.
    Only root may open the lock file: whoever can open one can hold its lock for ever. Raises GH-504 with the holder."""
    for tries_left in reversed(range(1000)):
        try:
            _folder(root)
            fd = locked(str(root / LOCK), "GH-504")
            break
        except (FileNotFoundError, FileExistsError):
            # Another process removed the prefix meanwhile, or none can be made there.
            if not tries_left:
                raise
    try:
        yield
    finally:
        unlock(str(root / LOCK), fd)
        if not _installed(root):
            remove_empty(root)


def _usable(prefix: str) -> Path:
    """A prefix that settings.yaml and the engines' files can name. Raises GH-504."""
    if not prefix.isprintable():
        raise refuse(
            "GH-504", f"the prefix {show(prefix)} has control characters or is not UTF-8; choose another --prefix"
        )
    return _absolute(prefix)


def _absolute(prefix: str) -> Path:
    if not os.path.isabs(prefix):
        raise refuse(
            "GH-504", f"the prefix '{prefix}' is not an absolute path; name the install's folder with --prefix"
        )
    return Path(prefix)


def _settings(root: Path, chosen: dict[str, str | None], usual: str) -> tuple[Settings, bytes]:
    """The settings, fit to be used, and the settings.yaml that says them: the install's, or what a first one gets."""
    prefix, yaml = str(root), root / layout.SETTINGS_YAML
    given: dict[str, flat_yaml.Value] = {key: value for key, value in chosen.items() if value is not None}
    if yaml.exists():
        text = node_settings.read(prefix)
        settings = settings_check.checked(prefix, text)
        for key, value in given.items():
            if (said := getattr(settings, key)) != value:
                raise refuse("GH-504", f"{yaml} says {key}: {said}; change it there, then install again")
        return settings, text
    if "runtime" not in given:
        given["runtime"] = usual or find_runtime()
    text = settings_edit.edited(prefix, default_settings_yaml(prefix).encode(), given)
    try:
        return settings_check.checked(prefix, text), text
    except GhError as e:  # the file is not there, so no message may name its lines
        place = re.compile(rf"{re.escape(str(yaml))}(:\d+)?: ")
        raise type(e)(*(Problem(p.code, place.sub("", p.message, count=1)) for p in e.problems)) from None


def _lay(root: Path, compiled: Path, chosen: dict[str, str | None], usual: str) -> Settings:
    settings, text = _settings(root, chosen, usual)
    for folder in ("", "bin", "etc", "lib", layout.LIB_DIR, layout.SHIM_DIR):
        _folder(root / folder)
        if folder not in ("", "etc"):
            label.put(str(root / folder), label.PROGRAM if folder == "bin" else label.LIBRARY)
    modules, before = hot_modules(), _listed(root)
    _write_list(root, {*before, *_files(modules)})  # first: whatever is laid can be removed
    own_python.lay(root, _folder, _copy)
    for name in PROGRAMS:
        _copy(compiled / name, root / "bin" / name, 0o755)
    # Policies let engines start their runtime, by its label, and podman's conmon start nothing else.
    label.copy(settings.runtime, str(root / "bin" / settings_check.RUNTIME_NAME))
    for name in SHIMS:
        _copy(compiled / name, root / layout.SHIM_DIR / name, 0o644)
    _folder(root / layout.CLOSED_DIR)
    (root / layout.CLOSED_DIR).chmod(0o700)
    _skeleton(root / layout.CONTAINER_DIR)
    _python_files(root / layout.LIB_DIR, modules)
    if not (yaml := root / layout.SETTINGS_YAML).exists():
        write(str(yaml), text.decode())
    with state_move.moving(str(root), settings.state_dir):
        pass
    _pack(root / layout.LIB_DIR, own_python.program(settings), [f"{PACKAGE.name}/{name}" for name in modules])
    own_python.remove_others(root)
    _write_list(root, _files(modules))
    state_owner.claim(str(root), settings.state_dir)
    return settings


def find_runtime() -> str:
    """The machine's runc, or else crun; the last of these folders is that of CRI-O's own packages."""
    folders = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/libexec/crio"
    for name in ("runc", "crun"):
        if found := shutil.which(name, path=folders):
            return found
    raise refuse("GH-503", "neither runc nor crun is installed; install one, or name yours with --runtime")


def remove(prefix: str, force: bool = False, simulated: Iterable[Path] = ()) -> list[str]:
    """Remove an install, and the folders of its simulated driver; returns the paths that stay since they are not ours.
    Raises GH-504 while containers hold shares."""
    root = _absolute(prefix)
    if not _installed(root):
        raise _no_install(prefix)
    try:
        with _alone(root):
            if _installed(root):
                return _remove(root, prefix, force, simulated)
    except OSError as e:
        raise os_refusal("GH-504", str(e.filename2 or e.filename or prefix), e) from None
    remove_empty(root)  # another process had removed it
    raise _no_install(prefix)


def _installed(root: Path) -> bool:
    """True if there is an install, or the rest that a killed `lay` or `remove` left."""
    package = f"{layout.LIB_DIR}/{PACKAGE.name}"
    return any(
        (root / name).exists() for name in (layout.STATE_IN_USE, layout.SETTINGS_YAML, layout.INSTALLED, package)
    )


def _no_install(prefix: str) -> GhError:
    return refuse("GH-504", f"{prefix} is no gpu-hook install; name the right one with --prefix")


def _remove(root: Path, prefix: str, force: bool, simulated: Iterable[Path]) -> list[str]:
    state_dir = state_in_use(prefix) or None
    if state_dir is not None:
        refuse_while_held(state_dir, force)
    others = state_dir is not None and bool(state_owner.other(prefix, state_dir))
    if state_dir is not None and not others:
        state_move.clear_limits(prefix, state_dir, force)
    for made in simulated:
        if others and made.is_relative_to(str(state_dir)):
            continue
        shutil.rmtree(made, ignore_errors=True)
        with contextlib.suppress(OSError):
            made.parent.rmdir()
    if state_dir is not None and not others:
        state_move.empty(prefix, state_dir)
        gpu_owner.forget(state_dir)
    _remove_files(root)
    left = {str(path) for path in root.rglob("*") if path != root / LOCK} if root.exists() else set()
    if state_dir is not None and not others:
        left.update(state_owner.foreign(state_dir))
    return sorted(left)


def _files(modules: Iterable[str]) -> set[str]:
    """The files of an install of this version, as paths below its prefix; but for the packs, whose names Python chooses."""
    inside = [f"{layout.CONTAINER_DIR}/{path[len(layout.PRIVATE) + 1 :]}" for path in EMPTY_FILES]
    # lib/container was the skeleton in 0.1.0. `lay` leaves it: a container would lose what is mounted on its files.
    old = [f"lib/container/{path[len(layout.PRIVATE) + 1 :]}" for path in EMPTY_FILES]
    return {
        *(f"bin/{name}" for name in PROGRAMS),
        *(f"{layout.SHIM_DIR}/{name}" for name in SHIMS),
        *(f"{layout.LIB_DIR}/{name}" for name in (LOADER, *STARTS)),
        *own_python.files(),
        *(f"{layout.LIB_DIR}/{PACKAGE.name}/{name}" for name in modules),
        *(layout.SETTINGS_YAML, layout.STATE_IN_USE, layout.CLUSTER_SETTINGS, layout.CLUSTER_KEYS, layout.INSTALLED),
        *(*inside, *old, *OLD_FILES),
    }


def _folders(files: Iterable[str]) -> list[str]:
    """The folders of these files and the empty ones of an install, the deepest first; the prefix itself is the last."""
    tops = (layout.CONTAINER_DIR, "lib/container")
    found = {f"{top}/{path[len(layout.PRIVATE) + 1 :]}" for top in tops for path in EMPTY_FOLDERS}
    found.update(str(parent) for name in (*files, *found) for parent in Path(name).parents)
    return sorted(found, key=lambda name: (len(Path(name).parts), name), reverse=True)


def _listed(root: Path) -> set[str]:
    """The files that the install at this prefix has laid by its own list; those of this version where it has none."""
    try:
        text = (root / layout.INSTALLED).read_text()
    except FileNotFoundError:
        return _files(hot_modules()) if _installed(root) else set()
    return {name for name in text.splitlines() if name and not os.path.isabs(name) and ".." not in name.split("/")}


def _write_list(root: Path, files: Iterable[str]) -> None:
    write(str(root / layout.INSTALLED), "".join(f"{name}\n" for name in sorted(files)))


def _own_folders() -> list[str]:
    """Those of an install of this version, without the prefix itself, which may be a link."""
    return _folders(_files(hot_modules()))[:-1]


def _foreign(root: Path) -> Iterator[str]:
    """Files at the prefix that are not ours."""
    ours = {*_files(hot_modules()), LOCK}
    for folder, folders, names in os.walk(root):
        for name in (*names, *(name for name in folders if os.path.islink(os.path.join(folder, name)))):
            if TEMPORARY.sub("", os.path.relpath(path := os.path.join(folder, name), root)) not in ours:
                yield path


def _remove_files(root: Path) -> None:
    files = _listed(root) | _files(hot_modules())
    packs = (root / layout.LIB_DIR).glob("*.pack*")
    cut = [path for path in root.rglob("*.new") if TEMPORARY.sub("", str(path.relative_to(root))) in files]
    for path in (*packs, *cut, *(root / name for name in sorted(files - {layout.INSTALLED})), root / layout.INSTALLED):
        if any((root / above).is_symlink() for above in [*path.relative_to(root).parents][:-1]):
            continue  # a link to a folder is not ours, nor is what it leads to
        for file in (path, path.with_name(path.name + ".new")):
            file.unlink(missing_ok=True)
    for folder in _folders(files):
        remove_empty(root / folder)  # others' files in it stay


def refuse_while_held(state_dir: str, force: bool) -> str:
    """The containers that hold shares, in words. Raises GH-504 if there are any, NodeError GH-303 if that cannot be found
    out; unless it is forced."""
    try:
        living = store.snapshot(state_dir)
    except NodeError:
        if not force:
            raise
        living = ()
    names = words.first([events.title(grant.who) for grant in living], 3)
    if living and not force:
        raise refuse("GH-504", f"{len(living)} container(s) hold shares ({names}); end them, or uninstall with --force")
    return names


def _folder(path: Path) -> None:
    make_folder(path)
    st = path.stat()
    if st.st_uid not in (0, os.geteuid()) or st.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise refuse("GH-504", f"{path} can be changed by others than its owner root; chmod go-w, chown root")


def _copy(source: Path, target: Path, mode: int) -> None:
    temporary = target.with_name(target.name + ".new")
    shutil.copyfile(source, temporary)
    _put(temporary, target, mode)


def _put(temporary: Path, target: Path, mode: int) -> None:
    """Rename after the bytes are on the disk; otherwise a machine that loses its power may come back with an empty file."""
    temporary.chmod(mode)
    fd = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.rename(target)


def _skeleton(folder: Path) -> None:
    """The directory that becomes PRIVATE in containers: empty files and folders to mount on."""
    _folder(folder)
    for path in EMPTY_FILES:
        file = folder / path[len(layout.PRIVATE) + 1 :]
        _folder(file.parent)
        file.touch()
        file.chmod(0o444)
    for path in EMPTY_FOLDERS:
        inside = folder / path[len(layout.PRIVATE) + 1 :]
        _folder(inside.parent)
        if path == layout.ACCOUNT_DIR:
            inside.mkdir(exist_ok=True)
            for planted in inside.iterdir():  # put there by a user who could enter before CLOSED_DIR was closed
                shutil.rmtree(planted) if planted.is_dir() and not planted.is_symlink() else planted.unlink()
            inside.chmod(layout.OPEN_MODE)
        else:
            _folder(inside)


def hot_modules() -> list[str]:
    """The names of the hot path's sources in the package."""
    names = sorted(path.name for path in PACKAGE.glob("*.py") if path.name not in COLD_FILES)
    for folder in HOT_FOLDERS:
        names += sorted(str(path.relative_to(PACKAGE)) for path in (PACKAGE / folder).rglob("*.py"))
    return names


def _python_files(target: Path, modules: Iterable[str]) -> None:
    """Copy the hot path's sources and the start files."""
    kept = {target / PACKAGE.name / name for name in modules}
    for name in modules:
        file = target / PACKAGE.name / name
        _folder(file.parent)
        _copy(PACKAGE / name, file, 0o644)
    for old in (target / PACKAGE.name).rglob("*.py"):
        if old not in kept:
            old.unlink()
    _copy(PACKAGE / "launcher" / LOADER, target / LOADER, 0o644)
    for program in STARTS:
        _copy(PACKAGE / "launcher" / "start.py", target / program, 0o644)


def _pack(folder: Path, python: str, names: Iterable[str]) -> None:
    writer = str(Path(__file__).with_name("pack.py"))
    r = subprocess.run(
        [python, "-I", "-S", "-B", "-X", "no_debug_ranges", writer, str(folder), *names],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if r.returncode != 0:
        last = (r.stderr.strip().splitlines() or ["?"])[-1]
        fix = "make room there" if "[Errno 28]" in last else "set `python` to 3.10 or newer"
        raise refuse("GH-504", f"{python} cannot compile gpu-hook to {folder}: {last}; {fix}")
    tag = r.stdout.strip()
    for old in folder.glob("*.pack"):
        old.unlink()
    _put(folder / f"{tag}.pack.new", folder / f"{tag}.pack", 0o644)
