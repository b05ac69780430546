"""Liveness: real processes, cgroups and containers of runc and crun."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.layout import MARKER
from oci_hook.ledger import life
from oci_hook.ledger.proof import Judge
from oci_hook.linux import proc
from testbed.until import until

REPO = Path(__file__).resolve().parents[2]
BOOT = proc.boot_id()
V1 = Path("/sys/fs/cgroup/devices")


def current(grant):
    return Judge("", seconds=60).current(grant)  # other tests have any number of processes and mounts


def alive(by):
    """Whether a grant counts that lives by this alone."""
    return current(Grant("0" * 32, Identity("bundle:/none", "x", "/b"), by, (), born=time.monotonic_ns())) is not None


def learn(grant):
    """The grant as the runtime's state file has it; itself where that tells nothing."""
    told = life.found(grant)
    return grant if told is None else grant.replace(life=told[0])


def ours(spec):
    """The bundle was edited for the grant of `grant_of`: the runtime keeps the marker."""
    spec.setdefault("annotations", {})[MARKER] = "0" * 32 + " []"


@pytest.fixture
def child():
    """child(code) -> a Python process that runs it; it prints a line when it is ready."""
    started = []

    def start(code):
        p = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
        )
        started.append(p)
        assert p.stdout.readline()
        return p

    yield start
    for p in started:
        p.kill()
        p.communicate()


READY = "import os, sys, time; print(1, flush=True);"


def test_a_process_is_its_pid_and_start(child):
    p = child(READY + "sys.stdin.read()")
    pid, start = proc.process_life(p.pid)
    assert pid == p.pid and alive(Life(BOOT, (pid, start)))
    assert alive(Life(BOOT, None, (pid, start)))
    assert not alive(Life(BOOT, (pid, start - 1))), "a reused pid"
    assert not alive(Life("another boot", (pid, start)))
    assert not alive(Life(BOOT))
    p.kill()
    p.wait()
    assert not alive(Life(BOOT, (pid, start)))
    with pytest.raises(ProcessLookupError):
        proc.process_life(pid)


def test_start_time_is_the_kernels_and_survives_exec():
    p = subprocess.Popen(["sh", "-c", "read x; exec sleep 300"], stdin=subprocess.PIPE)
    try:
        before = proc.process_life(p.pid)
        p.stdin.write(b"\n")
        p.stdin.flush()
        until(lambda: Path(f"/proc/{p.pid}/comm").read_text() == "sleep\n")
        assert proc.process_life(p.pid) == before
        assert before[1] == int(Path(f"/proc/{p.pid}/stat").read_text().rpartition(")")[2].split()[19])
    finally:
        p.kill()
        p.communicate()


def test_a_zombie_is_dead(child):
    p = child(READY)
    until(lambda: Path(f"/proc/{p.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    assert proc.start_time(p.pid) == 0


def test_a_zombie_main_thread_beside_a_living_one_is_alive(child):
    p = child("""
        import _thread, ctypes, time
        libc = ctypes.CDLL(None)
        _thread.start_new_thread(lambda: time.sleep(300), ())
        print(1, flush=True)
        libc.syscall({"x86_64": 60, "aarch64": 93}[__import__("os").uname().machine], 0)
    """)
    until(lambda: Path(f"/proc/{p.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    assert alive(Life(BOOT, proc.process_life(p.pid)))


def test_a_stopped_process_is_alive(child):
    p = child(READY + "sys.stdin.read()")
    os.kill(p.pid, signal.SIGSTOP)
    until(lambda: " T " in Path(f"/proc/{p.pid}/stat").read_text())
    assert alive(Life(BOOT, proc.process_life(p.pid)))


def test_a_hostile_name_shifts_no_field(child):
    p = child("open('/proc/self/comm', 'w').write(') Z 1 1 1 ('); print(1, flush=True); input()")
    assert Path(f"/proc/{p.pid}/comm").read_text() == ") Z 1 1 1 (\n"
    assert alive(Life(BOOT, proc.process_life(p.pid)))


@pytest.fixture
def cgroup():
    path = V1 / f"gh-test-life-{os.getpid()}"
    (path / "below").mkdir(parents=True)
    yield path
    for folder in (path / "below", path):
        if folder.exists():
            folder.rmdir()


@pytest.mark.root
def test_a_process_anywhere_in_the_cgroup_keeps_alive(child, cgroup):
    p = child(READY + "sys.stdin.read()")
    held = Life(BOOT, cgroup=str(cgroup), cgroup_inode=os.stat(cgroup).st_ino)
    assert not alive(held)
    (cgroup / "below/cgroup.procs").write_text(str(p.pid))
    assert alive(held)
    assert not alive(held.replace(cgroup_inode=1)), "the path of a cgroup that was removed and made anew"
    assert not alive(held.replace(cgroup=str(cgroup) + "-gone", cgroup_inode=0))
    p.kill()
    p.wait()
    assert not alive(held)


def nested(top, depth, width, name):
    """A tree of cgroups, deeper than any path; the deepest one's descriptor."""
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        for n in range(width):
            os.mkdir(f"{name}{n}", dir_fd=here)
        below = os.open(f"{name}0", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    return here


def remove(fd):
    """All below a directory, however deep."""
    stack = [fd]
    while stack:
        here = stack[-1]
        names = [e.name for e in os.scandir(here) if e.is_dir(follow_symlinks=False)]
        for name in names[1:]:
            os.rmdir(name, dir_fd=here)
        if names:
            stack.append(os.open(names[0], os.O_RDONLY, dir_fd=here))
        else:
            os.close(stack.pop())
            if stack:
                os.rmdir(names_of(stack[-1])[0], dir_fd=stack[-1])


def names_of(fd):
    return [e.name for e in os.scandir(fd) if e.is_dir(follow_symlinks=False)]


@pytest.mark.root
@pytest.mark.parametrize(
    ("depth", "width", "name"), [(1500, 1, "xxx"), (40, 1, "x" * 200), (1, 1000, "w"), (300, 1, "d")]
)
def test_cgroups_as_a_tenant_likes_them(child, cgroup, depth, width, name):
    """What a container leaves may be a tree that no path reaches: its end is seen all the same, and its living, too."""
    p = child(READY + "sys.stdin.read()")
    top = cgroup / "below"
    deepest = nested(top, depth, width, name)
    try:
        held = Life(BOOT, cgroup=str(cgroup), cgroup_inode=os.stat(cgroup).st_ino)
        began = time.process_time()
        assert not alive(held)
        assert time.process_time() - began < 5
        fd = os.open("cgroup.procs", os.O_WRONLY, dir_fd=deepest)
        os.write(fd, str(p.pid).encode())
        os.close(fd)
        assert alive(held)
        p.kill()
        p.wait()
        assert not alive(held)
    finally:
        os.close(deepest)
        p.kill()
        p.wait()
        remove(os.open(top, os.O_RDONLY))


def ticks_past(tick):
    """Whether a process that starts now starts in a later clock tick (10 ms)."""
    p = subprocess.Popen(["sleep", "60"])
    try:
        return proc.start_time(p.pid) > tick
    finally:
        p.kill()
        p.wait()


def grant_of(root, id, creator=None, **changes):
    return Grant(
        "0" * 32,
        Identity(str(root), id, "/b"),
        Life(BOOT, creator, **changes),
        (Share("GPU-0", 1),),
        created=1,
        born=time.monotonic_ns(),
    )


class Creator:
    """`runtime create` by a process that is known before it runs: sh waits, then execs."""

    def __init__(self, *command):
        self.p = subprocess.Popen(
            ["sh", "-c", 'read x; exec "$@"', "sh", *map(str, command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.life = proc.process_life(self.p.pid)

    def begin(self):
        self.p.stdin.write(b"\n")
        self.p.stdin.close()

    def go(self):
        self.p.communicate(b"\n", timeout=60)
        return self.p.returncode


@pytest.mark.root
def test_a_container_of_runc_from_create_to_delete(runc, bundle):
    id = runc.new_id()
    creator = Creator("runc", "--root", runc.root, "create", "--bundle", bundle(edit=ours), id)
    granted = grant_of(runc.root, id, creator.life)
    assert current(granted) is granted, "the creator lives"
    assert creator.go() == 0
    learned = current(granted)
    assert learned.life == Life(BOOT, None, proc.process_life(runc.pid(id)), str(V1 / id), os.stat(V1 / id).st_ino)
    assert learned.replace(life=granted.life) == granted, "nothing else changes"
    assert current(learned) is learned
    assert runc("start", id).returncode == 0
    assert runc("delete", id).returncode != 0, "runc deletes no running container"
    assert current(learned) is learned
    assert runc("pause", id).returncode == 0
    assert current(learned) is learned and current(granted) == learned
    assert runc("resume", id).returncode == 0
    assert runc("kill", id, "KILL").returncode == 0
    until(lambda: current(learned) is None)
    assert current(granted) is None, "the state file names a dead init"
    assert runc("delete", id).returncode == 0
    assert current(granted) is None
    assert current(learned) is None


@pytest.mark.root
def test_an_older_container_of_the_id_keeps_no_grant_alive(runc, bundle):
    """A runtime refuses an id that is in use. The cgroup that was planned for it is the older container's."""
    id = runc.new_id()
    assert runc("create", "--bundle", bundle(edit=ours), id).returncode == 0
    creator = Creator("true")
    late = grant_of(runc.root, id, creator.life, cgroup=str(V1 / id))
    assert current(late) is late, "its runtime is at work"
    assert creator.go() == 0
    assert life.occupied(late.life) and current(late) is None
    assert runc("delete", "--force", id).returncode == 0
    assert current(late) is None


@pytest.mark.root
def test_the_creator_of_a_run_in_the_foreground_lives_as_long_as_its_container(runc, bundle):
    """The container's init is known all the same, unless the runtime's file is not about this grant."""
    id = runc.new_id()
    creator = Creator("runc", "--root", runc.root, "run", "--bundle", bundle(edit=ours), id)
    granted = grant_of(runc.root, id, creator.life)
    assert current(granted) is granted, "the runtime has written nothing yet"
    creator.begin()
    until(lambda: learn(granted) is not granted)
    learned = current(granted)
    assert learned.life == Life(BOOT, None, proc.process_life(runc.pid(id)), str(V1 / id), os.stat(V1 / id).st_ino)
    assert proc.is_running(creator.life) and current(learned) is learned
    other = granted.replace(key="1" * 32)
    assert current(other) is other, "another grant's container"
    file = runc.root / id / "state.json"
    state = json.loads(file.read_text())
    file.write_text(json.dumps(state | {"init_process_start": state["init_process_start"] + 1, "cgroup_paths": {}}))
    assert current(granted) is granted, "its init and its cgroup have ended, and the creator is at work still"
    file.write_text(json.dumps(state | {"init_process_start": creator.life[1] - 1}))
    assert current(granted) is granted, "a container that had the id before"
    file.write_text(json.dumps(state))
    assert runc("kill", id, "KILL").returncode == 0
    creator.p.wait(60)
    assert current(granted) is current(learned) is None


@pytest.mark.root
def test_a_run_that_fails_once_the_runtime_has_written_its_file_leaves_nothing_alive(runc, bundle, tmp_path):
    os.mkfifo(tmp_path / "go")

    def fails(spec):
        ours(spec)
        spec["hooks"] = {"poststart": [{"path": "/bin/sh", "args": ["sh", "-c", f"read x < {tmp_path}/go; exit 1"]}]}

    creator = Creator("runc", "--root", runc.root, "run", "--bundle", bundle(edit=fails), runc.new_id())
    granted = grant_of(runc.root, runc.ids[-1], creator.life)
    creator.begin()
    until(lambda: current(granted) is not granted)
    learned = current(granted)
    (tmp_path / "go").write_text("\n")
    assert creator.p.wait(60) != 0
    assert current(granted) is current(learned) is None


@pytest.mark.root
def test_a_create_that_fails_leaves_nothing_alive(runc, bundle):
    creator = Creator("runc", "--root", runc.root, "create", "--bundle", bundle(args=["/none"]), runc.new_id())
    granted = grant_of(runc.root, runc.ids[-1], creator.life)
    assert creator.go() != 0
    assert current(granted) is None


@pytest.mark.root
def test_a_container_that_had_the_id_before_is_not_adopted(runc, bundle):
    assert runc.create(bundle(edit=ours)).returncode == 0
    id = runc.ids[-1]
    until(lambda: ticks_past(proc.start_time(runc.pid(id))))
    creator = Creator("runc", "--root", runc.root, "create", "--bundle", bundle(edit=ours), id)
    granted = grant_of(runc.root, id, creator.life)
    assert creator.go() != 0, "the id is taken"
    assert current(granted) is None


@pytest.mark.root
def test_what_is_left_of_a_container_without_pid_namespace_counts(runc, bundle):
    def host_pids(spec):
        ours(spec)
        spec["linux"]["namespaces"] = [n for n in spec["linux"]["namespaces"] if n["type"] != "pid"]

    assert runc.create(bundle(args=["sh", "-c", "sleep 300 & exec sleep 0"], edit=host_pids)).returncode == 0
    id = runc.ids[-1]
    granted = grant_of(runc.root, id)
    learned = current(granted)
    init = learned.life.init
    assert runc("start", id).returncode == 0
    until(lambda: proc.start_time(init[0]) != init[1])
    assert current(learned) is learned, "a process of the container is there"
    assert current(granted) == learned, "also when nobody looked while init lived"
    assert runc("delete", "--force", id).returncode == 0
    until(lambda: current(learned) is None)
    assert current(granted) is None


@pytest.mark.root
def test_a_later_container_of_the_same_id_is_the_same_grants(runc, bundle):
    """Restore: the id comes back with another init, which started after the first one."""
    assert runc.create(bundle(edit=ours)).returncode == 0
    id = runc.ids[-1]
    first = current(grant_of(runc.root, id))
    assert runc("delete", "--force", id).returncode == 0
    assert current(first) is None
    until(lambda: ticks_past(first.life.init[1]))
    assert runc.create(bundle(edit=ours), id=id).returncode == 0
    again = current(first)
    assert again.life.init == proc.process_life(runc.pid(id)) != first.life.init


# In a mount namespace of its own, where the cgroup hierarchies can be arranged. Prints what life says in each state.
OTHER_NODE = """
import json, os, subprocess, sys
sys.path.insert(0, {repo!r})
from oci_hook.core.grant import Grant, Identity, Life
from oci_hook.ledger import life
from oci_hook.linux import proc
from oci_hook.ledger.proof import Judge
runtime, root, id = sys.argv[1:4]
def call(*args):
    p = subprocess.run([runtime, "--root", root, *args], stdout=open(root + ".log", "a"), stderr=subprocess.STDOUT,
                       stdin=subprocess.DEVNULL)
    assert p.returncode == 0, open(root + ".log").read()
boot = proc.boot_id()
granted = Grant("0" * 32, Identity(root, id, "/b"), Life(boot, proc.process_life(os.getpid())), ())
granted = granted.replace(life=Life(boot, (1 << 22, granted.life.creator[1])))  # a dead creator, of this time
call("create", "--bundle", sys.argv[4], id)
try:
    call("start", id)
    learned = Judge("").current(granted)
    by = Life(boot, cgroup=learned.life.cgroup, cgroup_inode=learned.life.cgroup_inode)
    by_cgroup = Judge("").current(granted.replace(life=by)) is not None
finally:
    call("delete", "--force", id)
print(json.dumps([learned.life.cgroup, learned.life.init is not None, by_cgroup, Judge("").current(learned) is not None]))
"""


def other_node(setup, runtime, tmp_path, bundle):
    script = tmp_path / "node.py"
    script.write_text(OTHER_NODE.format(repo=str(REPO)))
    id = f"gh-test-{os.getpid()}-other"
    p = subprocess.run(
        ["unshare", "-m", "sh", "-ec", setup + '\nexec "$@"', "sh"]
        + [sys.executable, "-I", str(script), runtime, str(tmp_path / "root"), id, str(bundle(edit=ours))],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert p.returncode == 0, p.stderr
    return id, json.loads(p.stdout.splitlines()[-1])


@pytest.mark.root
def test_cgroup_v2(tmp_path, bundle):
    setup = "umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup"
    id, said = other_node(setup, "runc", tmp_path, bundle)
    assert said == [f"/sys/fs/cgroup/{id}", True, True, False]


@pytest.mark.root
@pytest.mark.skipif(not shutil.which("crun"), reason="crun is not installed")
def test_a_container_of_crun(tmp_path, bundle):
    setup = "umount /sys/fs/cgroup/unified 2>/dev/null || true"  # crun of Debian 12 refuses the hybrid layout
    id, said = other_node(setup, "crun", tmp_path, bundle)
    assert said == [f"/sys/fs/cgroup/devices/{id}", True, True, False]


def youki(folder, pid):
    """The state that youki 0.3 to 0.5 write, as their sources have it."""
    state = {"ociVersion": "v1.0.2", "id": "c1", "status": "running", "pid": pid, "bundle": "/b", "annotations": {}}
    state |= {"created": "2025-01-01T00:00:00Z", "creator": 0, "useSystemd": False, "cleanUpIntelRdtSubdirectory": None}
    (folder / "c1").mkdir(exist_ok=True)
    (folder / "c1/state.json").write_text(json.dumps(state))


def test_a_container_of_youki(child, tmp_path):
    p = child(READY + "sys.stdin.read()")
    grant = grant_of(tmp_path, "c1", creator=(p.pid, 1))
    youki(tmp_path, p.pid)
    learned = learn(grant)
    assert learned.life.init == proc.process_life(p.pid)
    assert current(learned)
    youki(tmp_path, None)  # stopped
    assert learn(grant) is grant


def test_a_pid_in_youkis_state_that_another_process_has_now(child, tmp_path):
    p = child(READY + "sys.stdin.read()")
    youki(tmp_path, p.pid)
    long_ago = time.time() - 3600
    os.utime(tmp_path / "c1/state.json", (long_ago, long_ago))
    grant = grant_of(tmp_path, "c1", creator=(p.pid, proc.start_time(p.pid) - 1))
    assert learn(grant) is grant and current(grant) is None


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"init_process_pid": "x", "init_process_start": 1}',
        b'{"init_process_pid": 1}',
        b'{"init_process_pid": 1, "init_process_start": 1, "cgroup_paths": 7}',
        b'{"init_process_pid": -1, "init_process_start": 1}',
        b"\xff\xfe",
    ],
)
@pytest.mark.parametrize("name", ["state.json", "status"])
def test_a_strange_state_file_keeps_nothing_alive(tmp_path, state, name):
    (tmp_path / "c1").mkdir()
    (tmp_path / "c1" / name).write_bytes(state)
    assert current(grant_of(tmp_path, "c1")) is None


@pytest.mark.parametrize("id", ["", ".", "..", "../c1", "a/b", "x\0", "ä", "a" * 1025, "a b", "c1\n"])
def test_an_id_that_is_no_file_name_is_never_looked_up(tmp_path, id):
    assert not life.valid_id(id)
    pid, start = proc.process_life(os.getpid())
    (tmp_path / "c1").mkdir()
    (tmp_path / "c1/state.json").write_text(json.dumps({"init_process_pid": pid, "init_process_start": start}))
    granted = grant_of(tmp_path / "root", id)
    assert learn(granted) is granted


def test_ids_that_runtimes_take():
    assert all(life.valid_id(id) for id in ("a", "A-b_c.d+e,f", "0" * 64, "..."))


def test_the_hooks_grants_have_no_state_file(tmp_path):
    granted = grant_of("bundle:" + str(tmp_path), "c1")
    assert learn(granted) is granted


def test_the_top_of_a_hierarchy_is_never_a_containers_cgroup(tmp_path):
    pid, start = proc.process_life(os.getpid())
    (tmp_path / "c1").mkdir()
    state = {"init_process_pid": pid, "init_process_start": start, "cgroup_paths": {"devices": str(V1)}}
    (tmp_path / "c1/state.json").write_text(json.dumps(state))
    assert learn(grant_of(tmp_path, "c1")).life == Life(BOOT, None, (pid, start))
