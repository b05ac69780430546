"""Writes the metrics to a file for node_exporter's textfile collector, which is replaced in one step."""

import os


def write(path: str, data: bytes) -> str:
    """Replace the file; "" or why that failed. The old file stays then."""
    temporary = f"{path}.new"  # does not end in .prom, so it is not collected; a leftover is overwritten
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            os.fchmod(fd, 0o644)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        os.rename(temporary, path)
        return ""
    except OSError as e:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        return f"{path}: {e.strerror}"
