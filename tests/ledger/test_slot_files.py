"""What containers of a GPU share, and are told: the tmpfs, slot files, GPU pages; crashes; tenants that grow their
file or hold leases on what they see."""

import contextlib
import os
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from errno import ENOSPC, EOPNOTSUPP
from pathlib import Path
from typing import Any

import pytest

from oci_hook.core import layout, slot_page
from oci_hook.core.gpu_page import SLOT_FILE_SIZE, SLOTS, gpu_page, head
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.errors import NodeError
from oci_hook.ledger import messages, slot_files, store
from oci_hook.ledger.deliver import page_file
from oci_hook.linux import proc
from oci_hook.linux.mount import mountinfo
from oci_hook.linux.proc import boot_id, process_life
from tests.terms import changed

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
REPO = Path(__file__).resolve().parents[2]
GPUS = ("GPU-0", "GPU-1")
LEASE_BREAK = 40  # seconds, which an open that waits for a lease takes longer than (fs.lease-break-time, 45 s)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "state")
    slot_files.drop(str(tmp_path / "state"))


def make(slot: int, *gpus: str, by: Life | None = None, **changes: Any) -> Grant:
    who = Identity("/run/runc", f"c{slot}", "/bundle")
    shares = tuple(Share(uuid, 1024, 10, slot=slot) for uuid in gpus or GPUS[:1])
    by = by or Life(boot_id(), process_life(os.getpid()))
    return changed(Grant(store.grant_key(who.root, who.id), who, by, shares, born=slot + 100), **changes)


def dead() -> Life:
    p = subprocess.Popen(["sleep", "60"])
    found = process_life(p.pid)
    p.kill()
    p.wait()
    return Life(boot_id(), found)


def put(state: str, *grants: Grant) -> None:
    with store.open_ledger(state) as ledger:
        for grant in grants:
            ledger.put(grant, bytes(4096), {GPUS[0]: 5})


def seen(state: str, grant: Grant, number: int) -> bytes:
    """Page `number` of what the container sees."""
    with open(page_file(state, grant.key), "rb") as f:
        return os.pread(f.fileno(), 4096, 4096 * number)


def check(state: str, uuid: str, *grants: Grant, scale: int = 5) -> int:
    """The GPU's folder, and what each container on it sees, is what the grants say; the page's generation."""
    folder = Path(slot_files.folder(state, uuid))
    page = slot_files.page(state, uuid)
    seq, generation, _ = head(page)
    assert page == gpu_page(uuid, grants, generation, scale, seq) and seq % 2 == 0
    assert not messages.pending(messages.names(state)) and messages.UNCLEAR not in messages.names(state)
    for grant in grants:
        for i, held_ in enumerate(grant.shares):
            assert held_.uuid != uuid or seen(state, grant, 1 + i) == page
    held = sorted(s.slot - 1 for g in grants for s in g.shares if s.uuid == uuid)
    files = sorted((folder / "slot").iterdir())
    assert [f.name for f in files] == [f"{i:02d}" for i in held]
    for file in files:
        assert file.stat().st_size == SLOT_FILE_SIZE and stat.S_IMODE(file.stat().st_mode) == 0o666
    return generation


def test_a_tmpfs_per_gpu_and_who_may_do_what_there(state: str) -> None:
    umask = os.umask(0o077)
    try:
        put(state, one := make(1, *GPUS), two := make(3, GPUS[1]))
    finally:
        os.umask(umask)
    check(state, GPUS[0], one)
    check(state, GPUS[1], one, two, scale=1)
    mounts = {m.point: m for m in mountinfo()}
    for uuid in GPUS:
        path = slot_files.folder(state, uuid)
        assert mounts[path].fstype == "tmpfs"
        flags = os.statvfs(path).f_flag
        assert flags & os.ST_NOSUID and flags & os.ST_NODEV and flags & os.ST_NOEXEC
        assert os.statvfs(path).f_blocks * os.statvfs(path).f_frsize == slot_files.TMPFS_SIZE
        assert os.statvfs(path).f_files == 0  # no limit
        for place, mode in ((path, 0o755), (f"{path}/slot", 0o755), (page_file(state, one.key), 0o644)):
            st = os.stat(place)
            assert (stat.S_IMODE(st.st_mode), st.st_uid, st.st_gid) == (mode, layout.PAGE_UID, st.st_uid)
    assert stat.S_IMODE(os.stat(f"{state}/share").st_mode) == 0o700
    file = os.stat(f"{slot_files.folder(state, GPUS[0])}/slot/00")
    assert file.st_uid == layout.PAGE_UID
    assert file.st_blocks * 512 == SLOT_FILE_SIZE, "allocated, not sparse"
    assert Path(slot_files.folder(state, GPUS[0]), "slot/00").read_bytes() == bytes(SLOT_FILE_SIZE)


def test_the_page_follows_the_ledger(state: str) -> None:
    put(state, one := make(1), two := make(2, *GPUS, policy="fixed-share"))
    first = check(state, GPUS[0], one, two)
    with store.open_ledger(state) as ledger:
        ledger.change(two := changed(two, frozen=9, priority_class="offline"))
    second = check(state, GPUS[0], one, two)
    with store.open_ledger(state) as ledger:
        ledger.remove(two.key)
    third = check(state, GPUS[0], one)
    put(state, gone := make(4, by=dead()))
    check(state, GPUS[0], one, gone)
    with store.open_ledger(state, seconds=10):
        pass
    check(state, GPUS[0], one)
    assert first < second < third
    store.forget(state, one.key)
    check(state, GPUS[0])


def test_a_slots_next_tenant_has_another_file(state: str) -> None:
    put(state, one := make(1))
    path = Path(slot_files.folder(state, GPUS[0]), "slot/00")
    old = os.open(path, os.O_RDWR)
    try:
        with store.open_ledger(state) as ledger:
            ledger.remove(one.key)
            ledger.put(one.replace(born=999), bytes(4096))
        os.pwrite(old, b"the former tenant writes on", 0)
        assert os.fstat(old).st_ino != path.stat().st_ino and os.fstat(old).st_nlink == 0
        assert path.read_bytes() == bytes(SLOT_FILE_SIZE)
    finally:
        os.close(old)


def test_a_tenant_with_a_thousand_attributes_stops_nobody(state: str) -> None:
    """They took the room for inodes of a tmpfs that had a limit."""
    put(state, one := make(1))
    path = slot_files.slot_path(state, GPUS[0], 1)
    for n in range(1000):
        try:
            os.setxattr(path, f"user.{n}", bytes(1 << 12))
        except OSError as e:
            assert e.errno in (ENOSPC, EOPNOTSUPP), (
                e
            )  # a full tmpfs; before Linux 6.6 there are no such attributes on it
            break
    others = [make(slot) for slot in range(2, SLOTS + 1)]
    put(state, *others)
    check(state, GPUS[0], one, *others)


@pytest.mark.parametrize("flag", ["+i", "+a"])
@pytest.mark.parametrize("grown", [0, slot_files.TMPFS_SIZE // 2 - (1 << 16)])
def test_a_tenant_that_forbids_changes_of_its_file_stops_nobody(state: str, flag: str, grown: int) -> None:
    """With CAP_LINUX_IMMUTABLE, on tmpfs since Linux 6.6: nobody can remove the file, nor open it for writing."""
    one, two = make(1), make(2)
    put(state, one, two)
    for slot in (1, 2):
        path = slot_files.slot_path(state, GPUS[0], slot)
        with open(path, "r+b") as file, contextlib.suppress(OSError):  # there is no more room
            os.posix_fallocate(file.fileno(), 0, grown or SLOT_FILE_SIZE)
        if subprocess.run(["chattr", flag, path], capture_output=True).returncode:
            pytest.skip("this kernel's tmpfs has no such flags")
    again = one.replace(born=999)  # another container in slot 1; nobody in slot 2
    with store.open_ledger(state) as ledger:
        ledger.remove(one.key)
        ledger.remove(two.key)
        ledger.put(again, bytes(4096), {GPUS[0]: 5})
    check(state, GPUS[0], again)
    others = [make(slot) for slot in range(2, SLOTS + 1)]
    put(state, *others)
    check(state, GPUS[0], again, *others)


def test_a_tenant_that_fills_the_tmpfs_stops_nobody(state: str) -> None:
    """It grows its file for as long as others come; each of them gets its slot."""
    put(state, one := make(1))
    stop = threading.Event()
    grown = threading.Event()

    def grow() -> None:
        fd = os.open(Path(slot_files.folder(state, GPUS[0]), "slot/00"), os.O_WRONLY)
        block = bytes(1 << 16)
        at = 0
        while not stop.is_set():
            try:
                at += os.pwrite(fd, block, at)
            except OSError:  # full
                grown.set()
                at = 0 if os.fstat(fd).st_size < at else at
        os.close(fd)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        assert grown.wait(120)
        others = [make(slot) for slot in range(2, SLOTS + 1)]
        put(state, *others)
    finally:
        stop.set()
        thread.join()
    slot_files.trim(state, GPUS[0])
    check(state, GPUS[0], one, *others)


def test_without_room_nothing_is_granted(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full of what is no slot file: the refusal leaves all as it was."""
    monkeypatch.setattr(slot_files, "TMPFS_MAX", slot_files.TMPFS_SIZE)
    put(state, one := make(1))
    filler = Path(slot_files.folder(state, GPUS[0]), "filler")
    with pytest.raises(OSError, match="No space"):
        filler.write_bytes(bytes(slot_files.TMPFS_SIZE + 1))
    with pytest.raises(NodeError, match=r"GH-303: .*No space left on device"):
        put(state, make(2, GPUS[1], GPUS[0]))
    filler.unlink()
    check(state, GPUS[0], one)
    check(state, GPUS[1], scale=1)
    put(state, two := make(2))
    check(state, GPUS[0], one, two)


LEASE = """
import ctypes, fcntl, os, signal, sys
path, kind = sys.argv[1], getattr(fcntl, sys.argv[2])
signal.signal(signal.SIGIO, signal.SIG_IGN)
fd = os.open(path, os.O_RDONLY)
ctypes.CDLL(None).setfsuid(ctypes.c_uint(os.stat(fd).st_uid))  # as container root with CAP_SETUID can
fcntl.fcntl(fd, fcntl.F_SETLEASE, kind)
print(1, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def lease(path: str, kind: str) -> Iterator[None]:
    """Another process holds a lease on the file, and lets no open break it."""
    command = [sys.executable, "-I", "-c", LEASE, path, kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
        assert p.stdout and p.stdout.readline() == b"1\n"
        try:
            yield
        finally:
            p.communicate()


@pytest.mark.parametrize("kind", ["F_RDLCK", "F_WRLCK"])
@pytest.mark.parametrize("what", ["page", "slot"])
def test_a_lease_keeps_only_its_holder_from_what_it_is_told(state: str, what: str, kind: str) -> None:
    """An open that waits for a lease takes fs.lease-break-time, 45 s: others' grants, changes and ends do not wait."""
    put(state, hostile := make(1, *GPUS), other := make(2, *GPUS))
    path = page_file(state, hostile.key) if what == "page" else f"{slot_files.folder(state, GPUS[0])}/slot/00"
    began = time.monotonic()
    with lease(path, kind):
        put(state, third := make(3, *GPUS))
        with store.open_ledger(state) as ledger:
            ledger.change(other := other.replace(frozen=9))
        assert ledger.late == ({hostile.key} if what == "page" else set())
        with store.open_ledger(state) as ledger:
            ledger.change(hostile := changed(hostile, priority_class="offline"))
        assert ledger.late == ({hostile.key} if what == "page" else set())
        for grant in (other, third):
            assert seen(state, grant, 1) == slot_files.page(state, GPUS[0])
            assert seen(state, grant, 2) == slot_files.page(state, GPUS[1])
        slot_files.read_gate(state, hostile.shares[0])
        slot_files.trim(state, GPUS[0])
        assert len(store.snapshot(state)) == 3
        with store.open_ledger(state) as ledger:
            ledger.remove(third.key)
    assert time.monotonic() - began < LEASE_BREAK
    with store.open_ledger(state, seconds=10):  # it has let go: now it is told, too
        pass
    check(state, GPUS[0], hostile, other)
    check(state, GPUS[1], hostile, other, scale=1)
    assert seen(state, hostile, 0)[28] == 0, "its class"


def test_a_slot_file_under_a_lease_is_replaced_and_what_it_took_does_not_count(state: str) -> None:
    """It has filled the tmpfs, and nobody may cut its file back."""
    put(state, make(1))
    path = f"{slot_files.folder(state, GPUS[0])}/slot/00"
    with open(path, "ab") as f, contextlib.suppress(OSError):
        while True:
            f.write(bytes(1 << 16))
            f.flush()
    began = time.monotonic()
    with lease(path, "F_RDLCK"):
        others = [make(slot) for slot in range(2, SLOTS + 1)]
        put(state, *others)
        with store.open_ledger(state) as ledger:
            ledger.remove(make(1).key)
            ledger.put(one := make(1).replace(born=7), bytes(4096), {GPUS[0]: 5})
    assert time.monotonic() - began < LEASE_BREAK
    check(state, GPUS[0], one, *others)


@pytest.mark.parametrize("damage", [b"", b"\1", bytes(4096), b"x" * 5000])
def test_a_damaged_page_is_written_anew(state: str, damage: bytes) -> None:
    put(state, one := make(1))
    Path(messages.folder(state), f"gpu-{GPUS[0]}").write_bytes(damage)
    with open(page_file(state, one.key), "r+b") as f:
        os.pwrite(f.fileno(), damage[:4096], 4096)
    put(state, two := make(2))
    page = slot_files.page(state, GPUS[0])
    assert page == gpu_page(GPUS[0], (one, two), *head(page)[1:], head(page)[0]) == seen(state, one, 1)


AT_A_CALL = """
import os, signal, sys
sys.path.insert(0, {repo!r})
from testbed import kill_points as _kill_points
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.ledger import life, store
from oci_hook.linux import proc
state, count = sys.argv[1], int(sys.argv[2])
who = Identity("/run/runc", "two", "/b")
by = Life(proc.boot_id(), proc.process_life(os.getpid()))
two = Grant(store.grant_key(who.root, who.id), who, by, tuple(Share(u, 1, slot=2) for u in ("GPU-0", "GPU-1")))
def die(call):
    global count
    count -= 1
    if not count:
        print(call.replace(two.key, "TWO").replace(one.key, "ONE"), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
with store.open_ledger(state, seconds=10) as ledger:  # as long as it takes: else it makes fewer calls
    one = ledger.grants[0]
_kill_points.install(die)
with store.open_ledger(state) as ledger:
    ledger.put(two, bytes(4096), {{"GPU-0": 5}})
    ledger.change(two.replace(terms=two.terms.replace(policy="fixed-share"), frozen=7))
    ledger.change(one.replace(terms=one.terms.replace(priority_class="online")))
with store.open_ledger(state) as ledger:
    ledger.remove(two.key)
"""


def test_killed_at_each_call_that_changes_a_file(state: str) -> None:
    """Then the next transaction puts page, slot files and policy pages right."""
    here = make(1)
    calls = set()
    for count in range(1, 2000):
        put(state, here, gone := make(5, *GPUS, by=dead()))
        code = AT_A_CALL.format(repo=str(REPO))
        p = subprocess.run([sys.executable, "-I", "-S", "-c", code, state, str(count)], capture_output=True, text=True)
        assert p.returncode in (0, -signal.SIGKILL), p.stderr
        calls.add(p.stdout.strip())
        with store.open_ledger(state, seconds=10):
            pass
        with store.open_ledger(state) as ledger:
            (now,) = ledger.grants
            assert now.key == here.key and gone not in ledger.grants
            check(state, GPUS[0], now)
            check(state, GPUS[1], scale=1)
            pages = os.listdir(f"{state}/pages")
            assert pages == [here.key]
            page = seen(state, here, 0)
            assert page == Path(state, "pages", here.key, "copy").read_bytes()
            assert page[16] % 2 == 0 and page[28] == (2 if now.terms.priority_class == "online" else page[28])
            ledger.remove(here.key)
        if p.returncode == 0:
            break
    assert calls >= {
        "open messages/unclear",
        "rename ledger/TWO.tmp",
        "rename messages/TWO-0.tmp",
        "unlink messages/unclear",
    }
    assert calls >= {f"rename messages/gpu-GPU-0{end}" for end in (".tmp", ".new", ".delivering")}
    assert calls >= {
        "open slot/01",
        "posix_fallocate",
        "unlink slot/01",
        "open TWO/policy",
        "open ONE/policy",
        "pwrite",
    }
    assert p.returncode == 0


def elsewhere(propagation: str, code: str, state: str) -> "subprocess.CompletedProcess[str]":
    """Run it in a mount namespace of its own."""
    command = ["unshare", "-m", "--propagation", propagation, sys.executable, "-c", code, state]
    by = {"PYTHONPATH": str(REPO), "PATH": os.environ["PATH"]}
    return subprocess.run(command, capture_output=True, text=True, env=by, cwd=REPO)


def test_not_mounted_here(state: str) -> None:
    """As in a mount namespace made before the first container: grants end, and new ones have a tmpfs of their own."""
    put(state, one := make(1), make(2))
    code = (
        "import sys; from tests.ledger.test_slot_files import GPUS, check, make, put, slot_files, store\n"
        "from oci_hook.linux.mount import unmount\n"
        "state = sys.argv[1]; unmount(slot_files.folder(state, GPUS[0]))\n"
        "with store.open_ledger(state) as ledger:\n    ledger.remove(make(2).key)\n"
        "put(state, make(3))\n"
        "print(sorted(__import__('os').listdir(slot_files.folder(state, GPUS[0]) + '/slot')))\n"
    )
    p = elsewhere("private", code, state)
    assert p.returncode == 0, p.stderr
    assert p.stdout == "['02']\n"
    with store.open_ledger(state, seconds=10):  # the third has ended; the second's file goes with the GPU's next change
        pass
    put(state, four := make(4))
    folder = Path(slot_files.folder(state, GPUS[0]))
    assert {f.name for f in (folder / "slot").iterdir()} >= {"00", "03"}
    page = slot_files.page(state, GPUS[0])
    assert page == gpu_page(GPUS[0], (one, four), *head(page)[1:], head(page)[0]) == seen(state, one, 1)


def test_only_who_starts_containers_mounts(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim's driver was killed before it delivered, and an agent in a mount namespace of its own looks first, twice. The GPU's tmpfs
    is the one that the claim's container sees, with its slot file."""
    with monkeypatch.context() as patch:
        patch.setattr(store, "deliver", lambda *_: set())
        put(state, one := make(1))
    code = (
        "import sys; from tests.ledger.test_slot_files import GPUS, slot_files, store\n"
        "for _ in range(2):\n    with store.open_ledger(sys.argv[1]):\n        pass\n"
        "print(slot_files.is_mounted(sys.argv[1], GPUS[0]))\n"
    )
    p = elsewhere("slave", code, state)
    assert (p.stdout, p.stderr) == ("False\n", "")
    with store.open_ledger(state) as ledger:
        ledger.update(one.replace(who=one.who.replace(container="main")))
    check(state, GPUS[0], one)


def test_a_half_written_message_is_no_gpu(state: str) -> None:
    """A writer was killed before its rename; the next transaction says everything anew, and leaves nothing of it."""
    put(state, one := make(1, *GPUS))
    for name in messages.names(state):
        Path(messages.folder(state), name.removesuffix(".lock") + ".tmp").write_bytes(b"half")
    messages.set_unclear(state)
    with store.open_ledger(state, seconds=10):
        pass
    names = {f"gpu-{uuid}{end}" for uuid in GPUS for end in ("", ".lock")}
    assert set(messages.names(state)) == {*names, "policies.lock"}
    check(state, GPUS[0], one)
    check(state, GPUS[1], one, scale=1)


def test_dropped(state: str) -> None:
    put(state, make(1, *GPUS))
    slot_files.drop(state, (GPUS[1],))
    assert slot_files.gpus(state) == [GPUS[1]]
    slot_files.drop(state)
    assert not os.path.exists(f"{state}/share")
    assert not [m for m in mountinfo() if m.point.startswith(state)]
    assert proc.boot_id()


def test_what_containers_publish_is_read_as_what_it_is(state: str) -> None:
    """A bound that makes sense, in this machine's time, or none; the head is the tenant's to scribble on."""
    grants = [make(slot) for slot in range(1, 6)]
    put(state, *grants)
    mark = struct.pack("<QI", slot_page.MAGIC, slot_page.VERSION)
    for grant, head_, bound in zip(
        grants,
        (mark, b"x" * 12, b"", mark, mark),
        (1_500_001, 1_500_001, 0, 0, (1 << 64) - 1),
        strict=True,
    ):
        path = Path(slot_files.folder(state, GPUS[0]), "slot", f"{grant.shares[0].slot - 1:02d}")
        data = bytearray(SLOT_FILE_SIZE)
        data[: len(head_)] = head_
        data[128:136] = struct.pack("<Q", bound)
        path.write_bytes(data if head_ else b"")
    assert slot_files.preempt_bounds(state, tuple(grants)) == ((grants[0].key, GPUS[0], 5 * 1500 + 1),)
