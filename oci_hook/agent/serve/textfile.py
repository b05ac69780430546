"""Writes the metrics to a file for node_exporter's textfile collector, which is replaced in one step."""

import os
from contextlib import suppress

from oci_hook.ledger.store import create


def write(path: str, data: bytes) -> str:
    """Replace the file; "" or why that failed. The old file stays then."""
    temporary = f"{path}.new"  # does not end in .prom, so it is not collected
    try:
        # A leftover, or what the folder's owner put there: a fifo would be waited for, a hard link is another file.
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        create(temporary, data, 0o644)
        os.rename(temporary, path)
        return ""
    except OSError as e:
        with suppress(OSError):
            os.unlink(temporary)
        return f"{path}: {e.strerror}"
