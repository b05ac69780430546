"""The launcher starts this file as `python3 -I -S PREFIX/lib/gpu-hook/PROGRAM.py ARGS`; PROGRAM is runtime or hook.

The package lies beside it, and a pack: all its modules compiled, in one file for the install's version of Python. The
pack saves the import system some 200 system calls. Another Python imports the package from its sources, only slower.
"""

import posix
import sys


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


def install_pack(folder: str) -> None:
    import marshal
    from _frozen_importlib import ModuleSpec
    from _frozen_importlib_external import MAGIC_NUMBER

    try:
        with open(f"{folder}/{sys.implementation.cache_tag}.pack", "rb", 0) as f:
            check(posix.fstat(f.fileno()))
            check(posix.stat(folder))
            data = f.readall()
    except FileNotFoundError:
        data = b""
    if not data.startswith(MAGIC_NUMBER):
        check_all(folder)
        sys.path.insert(0, folder)
        return
    pack: dict[str, tuple[bool, bytes]] = marshal.loads(memoryview(data)[len(MAGIC_NUMBER) :])

    class Pack:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            if name not in pack:
                return None
            return ModuleSpec(name, Pack, is_package=pack[name][0])  # type: ignore[arg-type]

        @staticmethod
        def create_module(spec: ModuleSpec) -> None:
            return None

        @staticmethod
        def exec_module(module: object) -> None:
            names = module.__dict__
            code = marshal.loads(pack[names["__name__"]][1])
            names["__file__"] = code.co_filename
            exec(code, names)

    sys.meta_path.insert(0, Pack)


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
try:
    install_pack(folder)
    if name == "hook.py" and sys.argv[1:] == ["precreate"]:
        from oci_hook.precreate import main
    elif name == "hook.py":
        from oci_hook.hook import main
    else:
        from oci_hook.runtime import main
except Exception as e:
    sys.exit(damaged(e))
sys.exit(main(folder[: -len("/lib/gpu-hook")], sys.argv[1:]))
# The launcher looks for the last line: Python would run a file that was cut short, and might end with success.
# end
