"""Registration: the install prefix and, one file each, the container engines.

An engine's module is named after it and has
  PROGRAMS  what it is found by, in the host's program directories
  RELOAD    (systemd unit, verb) that makes a running engine read its configuration; None where none is needed
  paths(registration) -> the files to change
  target(path, registration) -> one of them as edits.Target, also for a file that `paths` would not name any more
  place(registration) -> where the text of `--print` belongs on systems that generate their configuration
  templates(registration) -> (path, text) of such systems' own files, where an engine has any
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
