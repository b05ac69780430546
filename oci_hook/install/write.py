"""Files of an install, replaced in one step."""

import os

from oci_hook.errors import refuse


def write(file: str, text: str) -> None:
    """Replace `file`, by rename; its mode is 0644 whatever the umask. Raises SettingsError GH-504."""
    temporary = f"{file}.{os.getpid()}.new"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            with open(fd, "w", encoding="utf-8") as f:
                f.write(text)
                f.flush()
                os.fchmod(f.fileno(), 0o644)
                os.fsync(f.fileno())
            os.rename(temporary, file)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as e:
        raise refuse("GH-504", f"{file} cannot be written: {e.strerror}; run as root, or choose --prefix") from None
