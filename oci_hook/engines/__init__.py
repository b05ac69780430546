"""The install prefix, and registration with container engines: one module per engine.

An engine's module is named after it and has
  PROGRAMS  the engine's programs; it is on the machine if a program directory has one of them
  RELOAD    (systemd unit, verb) that makes a running engine read its configuration; None if it needs no such command
  paths(registration) -> the files to change
  has(registration, instead) -> what its files together say of us, as effective.Has; instead: texts that are planned for some
  moved(path, registration) -> whether our lines in a file that `paths` has no more are to go; only if it has several places
  doubts(registration) -> what a person should know of it, in sentences; only if there can be any
  target(path, registration) -> one of them as edits.Target, also for a file that `paths` does not return any more
  place(registration) -> where the text of `--print` belongs on systems that generate their configuration
  templates(registration) -> (path, text) of files for such systems; only if the engine has any
  found(registration) -> which of several such engines this machine has, for people; these three only for containerd:
  elsewhere(registration) -> the program where no program directory has it, or ""
  by_hand(registration) -> (what to do, text) where only a person can register us
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

NAMES = ("docker", "containerd", "podman", "crio", "runc")


def engine(name: str) -> "ModuleType":
    """The module of an engine. KeyError for an unknown name."""
    if name not in NAMES:
        raise KeyError(name)
    module: ModuleType = __import__(f"{__name__}.{name}", fromlist=["PROGRAMS"])
    return module
