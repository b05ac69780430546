"""Who is at it: the lock of a container's moves, beside its grant's page. The agent loads this much alone."""

import fcntl
import os

from oci_hook.core.grant import Grant
from oci_hook.core.layout import LEDGER_DIR, PAGES_DIR
from oci_hook.errors import GhError, refuse
from oci_hook.ledger import admit, events, grant_file, store
from oci_hook.linux.lock import lock_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.config.settings import Settings

LOCK = "moving"
LOOK_SECONDS = 0.5  # that others may have it in order to look (cut_off)
CANNOT, NO_ROOM = 3, 4  # exit statuses of the agent's moves (suspend/__main__.py)


class Hold:
    """`with Hold(settings, key) as hold:` holds the lock of a container's moves; hold.fd is its descriptor, and hold.grant the
    grant as it is then. Raises ApplyError GH-410, GH-411."""

    def __init__(self, settings: "Settings", key: str) -> None:
        self._settings, self._key = settings, key
        self.fd = -1

    def __enter__(self) -> "Hold":
        path = f"{self._settings.state_dir}/{PAGES_DIR}/{self._key}/{LOCK}"
        try:
            self.fd = lock_file(path, fcntl.LOCK_EX, seconds=LOOK_SECONDS)
        except FileNotFoundError:
            raise refuse("GH-410", f"the container of grant {self._key} has ended") from None
        except GhError:
            grant = admit.find(store.snapshot(self._settings.state_dir), self._key)
            why = "is being suspended or resumed by another command"
            raise refuse("GH-411", f"container {events.title(grant.who)} {why}; wait for it") from None
        try:
            self.grant = admit.find(store.snapshot(self._settings.state_dir), self._key)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        self.fd = -1


def cut_off(state_dir: str, grant: Grant) -> bool:
    """True if a crash has left this grant between its GPUs and the host's memory. grant: as it was read some time ago; it may have
    arrived since, so the ledger is asked once more while nobody can move it. Raises nothing: what cannot be read is not cut off."""
    if not grant.moving:
        return False
    try:
        fd = lock_file(f"{state_dir}/{PAGES_DIR}/{grant.key}/{LOCK}", fcntl.LOCK_EX, wait=False)
    except OSError:
        return False
    try:
        return bool(grant_file.read(f"{state_dir}/{LEDGER_DIR}", grant.key).moving)
    except (OSError, GhError):
        return False
    finally:
        os.close(fd)
