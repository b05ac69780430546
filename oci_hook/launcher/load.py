"""The rest of start.py: it makes the package importable, and runs the program.

The package lies beside it, and a pack: all its modules compiled, in one file for the install's version of Python. The
pack saves the import system some 200 system calls, and half of its time. Another Python imports the package from its
sources, only slower. install/pack.py writes the pack.
"""

import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    # The place of each part after the index: of each module alone, and of all that a program imports first.
    Index = tuple[dict[str, tuple[bool, int, int]], dict[str, tuple[int, int]]]

SIZE = 4  # bytes after the magic number: how long the pack's index is


def check(st: "posix.stat_result") -> None:
    """Raises PermissionError for code that others than root could change."""
    if st.st_uid not in (0, posix.geteuid()) or st.st_mode & 0o022:
        raise PermissionError("it can be changed by others than root")


def check_all(folder: str) -> None:
    places = [folder]
    for place in places:  # the list grows while it is walked
        st = posix.stat(place)
        check(st)
        if st.st_mode & 0o170000 == 0o040000:
            places += [f"{place}/{name}" for name in posix.listdir(place)]


def load(folder: str, program: str, opened: "tuple[int, Index] | None") -> None:
    """Make the package importable, and the modules that the program needs loaded already, if the pack is for this Python.

    opened: the pack, as start.py has read it up to the end of its index, and that; None where it could not. Raises
    PermissionError, and whatever a damaged pack leads to.
    """
    import marshal
    from _frozen_importlib import ModuleSpec
    from _frozen_importlib_external import MAGIC_NUMBER

    if opened is None:
        try:
            fd = posix.open(f"{folder}/{sys.implementation.cache_tag}.pack", posix.O_RDONLY | posix.O_CLOEXEC)
            check(posix.fstat(fd))
            head = posix.read(fd, len(MAGIC_NUMBER) + SIZE)
        except FileNotFoundError:
            head = b""
        if not head.startswith(MAGIC_NUMBER):
            check_all(folder)
            sys.path.insert(0, folder)
            return
        opened = fd, marshal.loads(posix.read(fd, int.from_bytes(head[-SIZE:], "little")))
    check(posix.stat(folder))
    fd, (modules, programs) = opened  # it stays open: modules that are needed later are read from it
    base = posix.lseek(fd, 0, 1)  # 1: SEEK_CUR
    new_module = type(sys)

    class Pack:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            if name not in modules:
                return None
            return ModuleSpec(name, Pack, is_package=modules[name][0])  # type: ignore[arg-type]

        @staticmethod
        def create_module(spec: ModuleSpec) -> None:
            return None

        @staticmethod
        def exec_module(module: object) -> None:
            names = module.__dict__
            _, at, length = modules[names["__name__"]]
            code = marshal.loads(posix.pread(fd, length, base + at))
            names["__file__"] = code.co_filename
            exec(code, names)

    sys.meta_path.insert(0, Pack)
    # Each module comes after those that it imports, so that its import statements find them in sys.modules: this takes
    # a third less time than the import system.
    at, length = programs[program]
    for name, is_package, code in marshal.loads(posix.pread(fd, length, base + at)):
        module = sys.modules[name] = new_module(name)
        module.__spec__ = ModuleSpec(name, Pack, is_package=is_package)  # type: ignore[arg-type]
        module.__file__ = code.co_filename
        parent, _, child = name.rpartition(".")
        module.__package__ = name if is_package else parent
        if is_package:
            module.__path__ = []
        exec(code, module.__dict__)
        if parent:
            setattr(sys.modules[parent], child, module)


def damaged(why: Exception) -> int:
    """Report that the package cannot be loaded, without any of its modules; returns the exit status."""
    message = f"GH-504: {folder} cannot be loaded ({type(why).__name__}); run `gpu-hook install` again"
    sys.stderr.write(f'level=error msg="{message}"\n')
    flags = dict(zip(sys.argv, [*sys.argv[1:], ""], strict=True))
    flags.update((arg.partition("=")[0], arg.partition("=")[2]) for arg in sys.argv if "=" in arg)
    as_json = flags.get("--log-format") == "json"
    line = f'{{"level":"error","msg":"{message}"}}' if as_json else f'level=error msg="{message}"'
    import os

    try:
        how = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        log = os.open(flags.get("--log") or "/dev/null", how, 0o644)
        os.write(log, (line + "\n").encode())
    except OSError:
        pass
    return 1


folder, _, name = sys.argv[0].rpartition("/")
name = "precreate.py" if name == "hook.py" and sys.argv[1:] == ["precreate"] else name
name = "boundary_stage.py" if name == "hook.py" and sys.argv[1:2] == ["boundary"] else name
try:
    load(folder, name, globals().get("opened"))
    if name == "precreate.py":
        from oci_hook.precreate import main
    elif name == "boundary_stage.py":
        from oci_hook.boundary_stage import main
    elif name == "hook.py":
        from oci_hook.hook import main
    else:
        from oci_hook.runtime import main
except Exception as e:
    sys.exit(damaged(e))
sys.exit(main(folder[: -len("/lib/gpu-hook")], sys.argv[1:]))
# The last line says that the file is whole (start.py).
# end
