"""Describes a process for a person who reads a finding: its user, age, parent, command and driver libraries.

The command line is memory of the process, which can be of any length, or on a file system that never answers. Its
mappings can be made to wait by the process as well.
"""

from oci_hook.core.layout import REAL_LIBCUDA
from oci_hook.linux.patience import Late, Patience
from oci_hook.linux.proc import read_file, seconds_since, stat

COMMAND_MAX = 120
CMDLINE = "/proc/{}/cmdline"
CMDLINE_MAX = 4096  # bytes that are read
MAPS = "/proc/{}/maps"
MAPS_MAX = 1 << 19  # some thousand lines
LIBRARIES_MAX = 3
LIBRARY_MAX = 100  # characters of a path

_reader = Patience(0.2, 0, 1)  # seconds to read one of them


def describe(pid: int) -> str:
    """The process in words; "" if it has ended."""
    try:
        fields = stat(pid)
        user = read_file(f"/proc/{pid}/status").partition(b"\nUid:")[2].split()[1].decode()  # the effective one
        words = f"user {user}, {seconds_since(int(fields[19])):.0f} s old, parent {int(fields[1])}"
        data = _patiently(CMDLINE.format(pid), CMDLINE_MAX) or read_file(f"/proc/{pid}/comm", 64)
    except (OSError, ValueError, IndexError):
        return ""
    words += f": {_printable(data.replace(bytes(1), b' ').strip(), COMMAND_MAX)}"
    libraries = _libraries(_patiently(MAPS.format(pid), MAPS_MAX))
    return f"{words}; libcuda: {', '.join(libraries)}" if libraries else words


def _printable(data: bytes, most: int) -> str:
    text = data.decode("utf-8", "replace")[:most]
    return "".join(c if c.isprintable() else "?" for c in text)


def _libraries(maps: bytes) -> list[str]:
    """The files of libcuda in these lines of /proc/PID/maps: the shim, the driver's own by its private path, or others
    that the image brings. The names are the process's to choose."""
    found: dict[bytes, None] = {}
    for line in maps.splitlines():
        path = line.split(maxsplit=5)[5:]
        if path and (path[0] == REAL_LIBCUDA.encode() or path[0].rpartition(b"/")[2].startswith(b"libcuda.so")):
            found[path[0]] = None
    return [_printable(path, LIBRARY_MAX) for path in list(found)[:LIBRARIES_MAX]]


def _patiently(path: str, most: int) -> bytes:
    """The first bytes of the file; b"" if there are none, or if they are not read in time. The thread that reads them is
    left behind then, and no other one is started while it waits."""
    try:
        return bytes(_reader.call(path, lambda: read_file(path, most)))
    except (OSError, Late):
        return b""
