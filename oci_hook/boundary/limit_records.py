"""Records of the limits that the driver was told, STATE/boundary/KEY per grant: written before a limit is set, so that after a crash
anybody can clear it. STATE/boundary/lock: held while limits and records are changed.

A record outlives its grant until its limits are cleared.
"""

import fcntl
import os
import time

from oci_hook.core.boundary import Limit
from oci_hook.core.layout import BOUNDARY_DIR, LEDGER_DIR
from oci_hook.core.value import Value
from oci_hook.ledger import messages
from oci_hook.ledger.store import valid_key
from oci_hook.linux.lock import lock_file, own_dir
from oci_hook.linux.proc import read_file
from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.boundary.cgroups import Place

SETTING, SET, FAILED = "setting", "set", "failed"
MAX = 1 << 20
HUNG = "hung"  # STATE/boundary/hung: when the driver did not answer (its mtime)
HUNG_SECONDS = 60  # launcher/boundary_client.c has the same


class LimitRecord(Value):
    """key: the grant's. state: SETTING (begun; limits may be set), SET (all are), FAILED (why; limits has those that could
    not be cleared again). cgroups: (directory, inode number) pairs of the container, whether they have limits or not.
    limits: of each GPU that can have one. ending: when the container was about to end and its soft limits were made 0, in
    seconds of the monotonic clock; 0: never."""

    key: str
    id: str
    boot: str
    state: str
    cgroups: "tuple[Place, ...]" = ()
    limits: tuple[Limit, ...] = ()
    why: str = ""
    ending: int = 0

    @property
    def reserves(self) -> bool:
        """True if there is a soft limit, which is to be made 0 while its cgroup exists."""
        return any(limit.soft for limit in self.limits)


def folder(state_dir: str) -> str:
    return f"{state_dir}/{BOUNDARY_DIR}"


def lock(state_dir: str, seconds: float = 0) -> int:
    """A descriptor that holds the lock until it is closed. seconds: to wait for it (0: as for any lock). Raises NodeError
    GH-303, OSError."""
    own_dir(folder(state_dir))
    advice = "it sets other containers' limits: try again"
    return lock_file(f"{folder(state_dir)}/lock", fcntl.LOCK_EX, seconds=seconds, advice=advice)


def keys(state_dir: str) -> list[str]:
    """The keys of all records."""
    try:
        return sorted(name for name in os.listdir(folder(state_dir)) if valid_key(name))
    except FileNotFoundError:
        return []


def left(state_dir: str) -> list[str]:
    """The keys of records whose grant the ledger no longer has."""
    return [key for key in keys(state_dir) if not os.path.lexists(f"{state_dir}/{LEDGER_DIR}/{key}.json")]


def read(state_dir: str, key: str) -> LimitRecord | None:
    """The grant's record; None where there is none, or a damaged one. Needs no lock."""
    try:
        data = fastjson.loads(read_file(f"{folder(state_dir)}/{key}", MAX))
        cgroups = tuple((str(path), int(inode)) for path, inode in data["cgroups"])
        limits = tuple(Limit(str(uuid), int(soft), int(hard)) for uuid, soft, hard in data["limits"])
        text = {name: str(data[name]) for name in ("key", "id", "boot", "state", "why")}
        return LimitRecord(**text, cgroups=cgroups, limits=limits, ending=int(data.get("ending", 0)))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write(state_dir: str, record: LimitRecord) -> None:
    """Replace the record in one step. The caller holds the lock. Raises OSError."""
    data = record.fields()
    data["limits"] = [list(limit.fields().values()) for limit in record.limits]
    data["reserves"] = record.reserves  # launcher/end_limits.c looks for it
    path = f"{folder(state_dir)}/{record.key}"
    messages.replace(path, fastjson.dumps(data).encode(), path + ".new")


def note_hung(state_dir: str) -> None:
    """Notes that the driver has not answered: for a while, containers that can do without its limit do not wait for it."""
    try:
        os.close(os.open(f"{folder(state_dir)}/{HUNG}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        os.utime(f"{folder(state_dir)}/{HUNG}")
    except OSError:
        pass


def hung(state_dir: str) -> bool:
    try:
        return abs(time.time() - os.stat(f"{folder(state_dir)}/{HUNG}").st_mtime) < HUNG_SECONDS
    except OSError:
        return False


def remove(state_dir: str, key: str) -> None:
    try:
        os.unlink(f"{folder(state_dir)}/{key}")
    except FileNotFoundError:
        pass


def forget_failed(state_dir: str, key: str) -> None:
    """Remove the record of a start that failed, if it names no limit that is still to be cleared."""
    record = read(state_dir, key)
    if record is not None and record.state == FAILED and not record.limits:
        remove(state_dir, key)


def every(state_dir: str) -> list[LimitRecord]:
    """All records that can be read."""
    return [record for key in keys(state_dir) if (record := read(state_dir, key)) is not None]
