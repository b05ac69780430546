"""The ledger on disk: transactions, sweep, damage, full disks, unsafe directories, the lock's deadline, crashes."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.layout import MARKER, PAGE_UID
from oci_hook.errors import GhError, NodeError
from oci_hook.ledger import grant_file, store
from oci_hook.linux import lock, proc
from tests.terms import changed

REPO = Path(__file__).resolve().parents[2]
BOOT = proc.boot_id()


@pytest.fixture
def state(tmp_path):
    return str(tmp_path / "state")


def me():
    return Life(BOOT, proc.process_life(os.getpid()))


def make(id="c1", by=None, **changes):
    who = Identity("/run/runc", id, "/bundle", "runc", "uid", "ns", "pod", "main")
    share = Share("GPU-0", 4096, 30, 80)
    born = time.monotonic_ns()
    grant = Grant(store.grant_key(who.root, id), who, by or me(), (share,), created=7, born=born)
    return changed(grant, **changes)


def ended():
    p = subprocess.Popen(["sleep", "60"])
    found = proc.process_life(p.pid)
    p.kill()
    p.wait()
    return Life(BOOT, found)


def page(id):
    return f"page of {id}".encode().ljust(4096, b"\0")


def put(state, *grants):
    with store.open_ledger(state) as ledger:
        for grant in grants:
            ledger.put(grant, page(grant.who.id))


def files(state):
    """All but the one lock that stays once a policy was told."""
    found = (str(p.relative_to(state)) for p in Path(state).rglob("*") if p.is_file())
    return sorted(name for name in found if name != "messages/policies.lock")


def of(*grants):
    return sorted(f for g in grants for f in (f"ledger/{g.key}.json", f"pages/{g.key}/policy", f"pages/{g.key}/copy"))


def test_a_grant_is_there_for_the_next_transaction(state):
    one, two = make("c1"), make("c2", exclusive=True, policy="fixed-share", capabilities=("utility",), shares=())
    put(state, one)
    put(state, two)
    with store.open_ledger(state) as ledger:
        assert sorted(ledger.grants, key=lambda g: g.who.id) == [one, two]
        assert ledger.swept == ()
    assert files(state) == sorted([*of(one, two), "ledger/lock"])
    assert Path(state, "pages", one.key, "policy").read_bytes() == page("c1")


def test_modes_let_a_user_namespace_read_the_page_and_nobody_write(state):
    umask = os.umask(0o077)
    try:
        put(state, one := make())
    finally:
        os.umask(umask)
    modes = {p: os.stat(Path(state, p)).st_mode & 0o7777 for p in (".", "ledger", "pages", f"ledger/{one.key}.json")}
    assert os.stat(f"{state}/pages/{one.key}/policy").st_uid == (PAGE_UID if os.geteuid() == 0 else os.geteuid())
    assert os.stat(f"{state}/pages/{one.key}/copy").st_mode & 0o7777 == 0o600
    assert os.stat(f"{state}/messages").st_mode & 0o7777 == 0o700
    assert modes == {".": 0o700, "ledger": 0o700, "pages": 0o700, f"ledger/{one.key}.json": 0o600}
    assert os.stat(f"{state}/pages/{one.key}").st_mode & 0o7777 == 0o755
    assert os.stat(f"{state}/pages/{one.key}/policy").st_mode & 0o7777 == 0o644


def test_encode_and_decode_agree(state):
    full = make(by=Life(BOOT, (1, 2), (3, 4), "/sys/fs/cgroup/x", 5), driver_version="550", priority_class="online")
    assert grant_file.decode(grant_file.encode(full)) == full
    joined = changed(full, preempt_tolerance_us=7, imex_channels=(0, 2047))
    assert grant_file.decode(grant_file.encode(joined)) == joined


def test_grants_of_ended_containers_are_swept_with_their_pages(state):
    gone, here = make("gone", ended()), make("here")
    put(state, gone, here)
    with store.open_ledger(state) as ledger:
        assert (ledger.grants, ledger.swept) == ((here,), (gone,))
    assert files(state) == sorted([*of(here), "ledger/lock"])


def test_another_boots_grants_are_swept(state):
    put(state, make(by=me().replace(boot_id="before")))
    assert store.snapshot(state) == ()


def test_what_a_crash_leaves_is_removed_and_nothing_else(state):
    here = make()
    put(state, here)
    Path(state, "ledger", f"{make('x').key}.tmp").write_text('{"half')
    Path(state, "pages/orphan").mkdir()
    Path(state, "pages/orphan/policy").write_text("")
    Path(state, "pages/file").write_text("")
    Path(state, "ledger/README").write_text("not ours")
    with store.open_ledger(state) as ledger:
        assert ledger.grants == (here,)
    assert files(state) == sorted([*of(here), "ledger/README", "ledger/lock"])


def test_a_launcher_that_writes_into_a_folder_that_goes(state, monkeypatch):
    """It takes no lock: a file appears after the list was read, or has another name by now (launcher/keep_state.c)."""
    put(state, make("gone", ended()))
    folder = Path(state, "pages", store.grant_key("/run/runc", "gone"))
    steps = iter([lambda: (folder / "state.new").rename(folder / "state.json"), (folder / "state.new").touch])
    (folder / "state.new").touch()
    listdir = os.listdir

    def slow(at):
        names = listdir(at)
        if "copy" in names or "state.json" in names:
            next(steps, list)()
        return names

    monkeypatch.setattr(os, "listdir", slow)
    with store.open_ledger(state) as ledger:
        assert ledger.grants == ()
    assert not folder.exists() and next(steps, None) is None


def test_a_leftover_of_the_same_key_is_no_obstacle(state):
    with store.open_ledger(state, seconds=10):
        pass
    grant = make()
    Path(state, "ledger", f"{grant.key}.tmp").write_text("half")
    Path(state, "pages", grant.key).mkdir()
    put(state, grant)
    assert files(state) == sorted([*of(grant), "ledger/lock"])


def test_what_is_learned_of_a_container_is_kept(state, tmp_path):
    root = tmp_path / "runc"
    (root / "c1").mkdir(parents=True)
    pid, start = proc.process_life(os.getpid())
    grant = make(by=Life(BOOT, (1 << 22, start)), who=Identity(str(root), "c1", "/b"))
    state_file = {"init_process_pid": pid, "init_process_start": start}
    state_file["config"] = {"labels": ["bundle=/b", f"{MARKER}={grant.key} []"]}
    (root / "c1/state.json").write_text(json.dumps(state_file))
    put(state, grant)
    learned = grant.replace(life=Life(BOOT, None, (pid, start)))
    before = files(state), Path(state, "ledger", f"{grant.key}.json").read_bytes()
    assert store.snapshot(state) == (learned,)
    assert (files(state), Path(state, "ledger", f"{grant.key}.json").read_bytes()) == before, "a reader writes nothing"
    with store.open_ledger(state) as ledger:
        assert ledger.grants == (learned,)
    shutil.rmtree(root)
    assert store.snapshot(state) == (learned,)


def test_a_key_is_held_once(state):
    put(state, one := make())
    with store.open_ledger(state) as ledger, pytest.raises(GhError, match="GH-407"):
        ledger.put(one.replace(created=8), b"other")
    assert store.snapshot(state) == (one,)
    assert Path(state, "pages", one.key, "policy").read_bytes() == page("c1")


def test_a_grant_too_large_to_be_read_again_is_not_written(state):
    with store.open_ledger(state) as ledger, pytest.raises(GhError, match="GH-105: names and paths .* at most 32768"):
        ledger.put(make(who=Identity("/run/runc", "c1", "/b", pod="p" * 40_000)), b"")
    assert files(state) == ["ledger/lock"]
    put(state, large := make(who=Identity("/run/runc", "c1", "/b", pod="p" * 32_000)))
    assert store.snapshot(state) == (large,)


def test_remove(state):
    put(state, one := make("c1"), two := make("c2"))
    with store.open_ledger(state) as ledger:
        assert ledger.remove(one.key) and not ledger.remove(one.key)
        assert ledger.grants == (two,)
    assert store.snapshot(state) == (two,)
    assert store.forget(state, two.key) and not store.forget(state, two.key)
    assert files(state) == ["ledger/lock"]


def test_readers_of_no_ledger_find_none_and_make_none(state):
    assert store.snapshot(state) == ()
    assert not store.forget(state, "0" * 32)
    with pytest.raises(FileNotFoundError):
        store.peek(state)
    assert not os.path.exists(state)


def test_peek_finds_a_grant_whose_file_is_being_replaced(state):
    """A directory scan may miss a file that is renamed over meanwhile; the page folder tells its name."""
    put(state, one := make())
    listdir = os.listdir
    try:
        os.listdir = lambda path: [n for n in listdir(path) if not n.endswith(".json")]
        assert store.peek(state) == (one,)
    finally:
        os.listdir = listdir


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b'[1,"',
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b"GRANT",
        lambda raw: raw[: len(raw) // 2],
        lambda raw: raw.replace(b"[4,", b"[3,", 1),
        lambda raw: raw.replace(b"4096", b'"4096"'),
        lambda raw: raw.replace(b"4096", b"-1"),
        lambda raw: raw.replace(b"4096", b"1e9"),
        lambda raw: raw.replace(b"4096", b"true"),
        lambda raw: raw.replace(b'"/bundle"', b"7"),
        lambda raw: raw.replace(b'"GPU-0"', b"null"),
        lambda raw: raw.replace(store.grant_key("/run/runc", "c1").encode(), b"0" * 32),
        lambda raw: raw + b"x",
        lambda raw: bytes(len(raw)),
    ],
)
def test_a_damaged_grant_stops_everything_until_it_is_forced_away(tmp_path_factory, damage):
    state = str(tmp_path_factory.mktemp("s"))
    put(state, one := make("c1"), two := make("c2"))
    path = Path(state, "ledger", f"{one.key}.json")
    path.write_bytes(damage(path.read_bytes()) if callable(damage) else damage)
    for read in (
        lambda: store.open_ledger(state).__enter__(),
        lambda: store.snapshot(state),
        lambda: store.peek(state),
    ):
        with pytest.raises(NodeError) as e:
            read()
        line = str(e.value)
        assert line.startswith(f"GH-303: grant file {path} is damaged (") and len(line) < 300
        assert line.endswith(f"`gpu-hook release --force --key {one.key}` removed it")
    assert path.exists(), "evidence stays"
    assert store.forget(state, one.key)
    assert store.snapshot(state) == (two,)


def test_an_exception_in_the_block_lets_go_of_the_lock(state):
    with pytest.raises(ZeroDivisionError), store.open_ledger(state):
        raise ZeroDivisionError
    with store.open_ledger(state, seconds=10):
        pass


# --- the disk ---------------------------------------------------------------------------------------------------------

ON_A_SMALL_DISK = """
import os, sys
sys.path.insert(0, {repo!r})
from oci_hook.core.grant import Grant, Identity, Life
from oci_hook.errors import NodeError
from oci_hook.ledger import life, store
from oci_hook.linux import proc
state, what = sys.argv[1:]
by = Life(proc.boot_id(), proc.process_life(os.getpid()))
def grant(i):
    who = Identity("/run/runc", "c" * 900 + str(i), "/b")
    return Grant(store.grant_key(who.root, who.id), who, by, ())
def listing():
    return sorted(os.path.join(d, f) for d, folders, files in os.walk(state) for f in folders + files)
def fill(to):
    # Leaves room for `to` bytes less than the next grant needs.
    with open(state + "/filler", "wb") as f:
        free = os.statvfs(state).f_bavail * os.statvfs(state).f_frsize
        f.write(bytes(max(0, free - to)))
with store.open_ledger(state) as ledger:
    ledger.put(grant(0), bytes(4096))
if what == "blocks":
    fill(4096)  # the page fits, the grant does not
else:
    while True:  # one inode is left: the page's folder takes it
        try:
            open(state + "/" + os.urandom(8).hex(), "x").close()
        except OSError:
            break
    os.unlink(max(os.path.join(state, n) for n in os.listdir(state) if len(n) == 16))
before = listing()
try:
    with store.open_ledger(state) as ledger:
        ledger.put(grant(1), bytes(4096))
except NodeError as e:
    print(e)
assert listing() == before, (before, listing())
with store.open_ledger(state) as ledger:
    assert len(ledger.grants) == 1
    print("intact")
"""


@pytest.mark.root
@pytest.mark.parametrize(("what", "options"), [("blocks", "size=64k"), ("inodes", "nr_inodes=40")])
def test_a_full_disk_is_told_and_leaves_nothing_behind(tmp_path, what, options):
    (tmp_path / "state").mkdir()
    script = tmp_path / "full.py"
    script.write_text(ON_A_SMALL_DISK.format(repo=str(REPO)))
    mount = 'mount -t tmpfs -o mode=0700,"$1" none "$2"; shift 2; exec "$@"'
    command = ["unshare", "-m", "sh", "-ec", mount, "sh", options, tmp_path / "state"]
    command += [sys.executable, "-I", script, tmp_path / "state", what]
    p = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert p.returncode == 0, p.stderr
    told, intact = p.stdout.splitlines()
    assert told.startswith("GH-303: ledger in ") and "No space left on device" in told and "(df" in told
    assert intact == "intact"


def test_a_read_only_file_system_is_told(state, monkeypatch):
    def refuse(*_):
        raise OSError(30, "Read-only file system", "/x")

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(NodeError, match=r"GH-303: ledger in .*: Read-only file system \(/x\); check its file system"):
        put(state, make())
    assert store.snapshot(state) == ()


@pytest.mark.parametrize("name", ["", "ledger", "pages"])
@pytest.mark.parametrize("fault", ["link", "file", "group", "world", "owner"])
def test_a_state_directory_that_others_can_change_is_not_used(state, tmp_path, name, fault):
    with store.open_ledger(state, seconds=10):
        pass
    path = Path(state, name)
    if fault == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif fault == "file":
        shutil.rmtree(path)
        path.write_text("")
    elif fault == "owner":
        os.chown(path, 65534, 65534)
    else:
        path.chmod(0o720 if fault == "group" else 0o702)
    with pytest.raises(NodeError, match="GH-303") as e:
        put(state, make())
    assert str(path) in str(e.value)


def test_a_linked_lock_or_grant_file_is_not_followed(state, tmp_path):
    with store.open_ledger(state, seconds=10):
        pass
    victim = tmp_path / "victim"
    victim.write_text("keep")
    grant = make()
    Path(state, "ledger", f"{grant.key}.tmp").symlink_to(victim)
    Path(state, "pages", grant.key).symlink_to(tmp_path)
    put(state, grant)
    assert victim.read_text() == "keep"
    lock = Path(state, "ledger/lock")
    lock.unlink()
    lock.symlink_to(victim)
    with pytest.raises(NodeError, match="GH-303"):
        put(state, make("c2"))


# --- the lock ---------------------------------------------------------------------------------------------------------


def test_a_stopped_holder_is_told_after_the_deadline(state, monkeypatch):
    monkeypatch.setattr(lock, "LOCK_SECONDS", 0.2)
    with store.open_ledger(state, seconds=10):
        for read in (lambda: put(state, make()), lambda: store.snapshot(state), lambda: store.forget(state, "0" * 32)):
            with pytest.raises(NodeError) as e:
                read()
            assert f"/ledger/lock is locked for 0.2 s by process {os.getpid()};" in str(e.value)
            assert "GH-303" in str(e.value)
    # The waiters that gave up hold nothing, even after their turn came.
    put(state, make())
    assert len(store.snapshot(state)) == 1


def test_waiters_come_in_when_the_holder_leaves(state):
    found = []
    with store.open_ledger(state) as ledger:
        waiters = [threading.Thread(target=lambda n=n: put(state, make(f"w{n}"))) for n in range(4)]
        reader = threading.Thread(target=lambda: found.append(store.snapshot(state)))
        for t in (*waiters, reader):
            t.start()
        time.sleep(0.05)
        assert found == [] and ledger.grants == ()
    for t in (*waiters, reader):
        t.join(120)
    assert len(found) == 1 and len(store.snapshot(state)) == 4


def test_a_long_queue_is_no_stopped_holder(state, monkeypatch):
    """Where many containers start at once on a busy machine, each waits for many others, none of which is at fault."""
    monkeypatch.setattr(lock, "LOCK_SECONDS", 0.2)
    holders = itertools.count()
    monkeypatch.setattr(lock, "_holder", lambda _: f"process {next(holders)}")
    with store.open_ledger(state):
        waiter = threading.Thread(target=put, args=(state, make("patient")))
        waiter.start()
        time.sleep(0.6)
        assert waiter.is_alive()
    waiter.join(120)
    assert [g.who.id for g in store.snapshot(state)] == ["patient"]
    with store.open_ledger(state), pytest.raises(NodeError, match="GH-303: .* is locked for 1.2 s by process"):
        store.snapshot(state)
    monkeypatch.setattr(lock, "_alarm", lambda: 0.4)
    with store.open_ledger(state), pytest.raises(NodeError, match="GH-303: .* is locked for 0.3 s by process"):
        store.snapshot(state)


def test_a_ledger_that_was_removed_and_made_anew_is_locked_anew(state):
    """The lock of a file that is no longer there protects nothing."""
    first = store.open_ledger(state)
    first.__enter__()
    waiter = threading.Thread(target=lambda: put(state, make("late")))
    waiter.start()
    time.sleep(0.05)
    shutil.rmtree(state)
    with store.open_ledger(state) as second:
        first.__exit__(None, None, None)
        time.sleep(0.05)
        assert waiter.is_alive(), "it waits for the new lock"
        second.put(make("new"), b"")
    waiter.join(120)
    assert sorted(g.who.id for g in store.snapshot(state)) == ["late", "new"]


def test_keys_are_of_root_and_id():
    keys = {store.grant_key(*pair) for pair in (("/a", "b"), ("/a", "c"), ("/b", "b"), ("/ab", ""))}
    assert len(keys) == 4 and all(store.valid_key(k) for k in keys)
    assert not any(store.valid_key(k) for k in ("", "0" * 31, "G" * 32, "../../etc/passwd" + "0" * 16, "A" * 32))


# --- crashes ----------------------------------------------------------------------------------------------------------

AT_A_CALL = """
import os, signal, sys
sys.path.insert(0, {repo!r})
from testbed import kill_points as _kill_points
from oci_hook.core.grant import Grant, Identity, Life
from oci_hook.ledger import life, store
from oci_hook.linux import proc
state, left = sys.argv[1], int(sys.argv[2])
def die(call):
    global left
    left -= 1
    if not left:
        print(call.replace(grant.key, "KEY"), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
who = Identity("/run/runc", "crash", "/b")
grant = Grant(store.grant_key(who.root, who.id), who, Life(proc.boot_id(), proc.process_life(os.getpid())), ())
_kill_points.install(die)
with store.open_ledger(state, seconds=10) as ledger:  # as long as it takes: else it makes fewer calls
    ledger.put(grant, bytes(4096))
    ledger.remove(grant.key)
"""


def test_killed_at_each_call_that_changes_a_file(state):
    here, calls = make("here"), []
    put(state, here)
    for count in range(1, 1000):
        put(state, gone := make("gone", ended()))
        command = [sys.executable, "-I", "-S", "-c", AT_A_CALL.format(repo=str(REPO)), state, str(count)]
        p = subprocess.run(command, capture_output=True, text=True, check=False)
        if p.returncode == 0:
            break
        assert p.returncode == -signal.SIGKILL, p.stderr
        calls.append(p.stdout.strip().replace(gone.key, "GONE"))
        assert store.snapshot(state) == (here,), "what a reader sees before any sweep"
        with store.open_ledger(state, seconds=10):
            pass
        put(state, new := make("new"))
        assert files(state) == sorted([*of(here, new), "ledger/lock"])
        with store.open_ledger(state) as ledger:
            ledger.remove(new.key)
    points = ["flock", "open messages/unclear", "unlink ledger/GONE.json", "unlink policy", "rmdir pages/GONE"]
    points += ["mkdir pages/KEY", "open KEY/copy", "open KEY/policy", "open ledger/KEY.tmp", "rename ledger/KEY.tmp"]
    points += ["unlink ledger/KEY.json", "rmdir pages/KEY", "unlink messages/unclear"]
    assert p.returncode == 0 and set(points) <= set(calls) and len(calls) > 25, calls


CAMPAIGN = """
import json, sys
sys.path.insert(0, {repo!r})
from benchmarks import ledger
parts = [ledger.campaign(kills, int(sys.argv[1]), installs) for kills, installs in ((120, 1), (80, 2))]
print(json.dumps([[p.kills >= 80, p.audits > 0, p.held > 0, p.double_bookings, p.leaks, p.problems] for p in parts]))
"""


@pytest.mark.root
def test_a_short_kill_campaign():
    seed = int.from_bytes(os.urandom(4), "little")
    command = [sys.executable, "-I", "-c", CAMPAIGN.format(repo=str(REPO)), str(seed)]
    p = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert p.returncode == 0, p.stderr
    assert json.loads(p.stdout) == [[True, True, True, 0, 0, []]] * 2, f"seed {seed}"
