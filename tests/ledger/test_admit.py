"""Admission: request to committed grant in one transaction, with many at once and a crash at every step."""

import hashlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from oci_hook.config.settings import Settings
from oci_hook.core import slot_page
from oci_hook.core.gpu_page import SLOT_FILE_SIZE, gpu_page, head, tiers_of
from oci_hook.core.grant import Identity, Life, Share
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.layout import MARKER
from oci_hook.core.policy_page import policy_page
from oci_hook.core.request import GpuRequest, Request
from oci_hook.core.rules import Rules
from oci_hook.discovery import survey_tiers
from oci_hook.discovery.save import save_inventory
from oci_hook.errors import ApplyError, NodeError, NoRoomError, RequestError
from oci_hook.ledger import admit, inventory, slot_files, store
from oci_hook.linux import proc
from tests.terms import changed

REPO = Path(__file__).resolve().parents[2]
BOOT = proc.boot_id()
UUID = "GPU-00000000-0000-4000-8000-000000000000"
SHARE = Request((GpuRequest(memory=("mib", 2048), compute=10),))


@pytest.fixture
def settings(tmp_path):
    """An install's settings, its inventory (one simulated GPU of 20 GiB) in place."""
    found = Settings(str(tmp_path), driver_root=str(tmp_path / "driver"), state_dir=str(tmp_path / "state"))
    save_inventory(found, node(found.driver_root))
    return found


def node(driver_root="/"):
    gpu = Gpu(UUID, 0, 0, 20480, simulated=True)
    return Inventory(BOOT, "550", driver_root, True, (gpu,), (), (), "/libcuda", "/libnvml")


def who(id):
    return Identity("/run/runc", id, "/bundle/" + id)


def me():
    return Life(BOOT, proc.process_life(os.getpid()))


@pytest.fixture
def other():
    """A living process that can be ended."""
    p = subprocess.Popen(["sleep", "300"])
    yield p
    p.kill()
    p.wait()


def files(settings):
    return sorted(
        str(p.relative_to(settings.state_dir))
        for p in Path(settings.state_dir).rglob("*")
        if p.is_file() and p.name not in ("events", "owner", "policies.lock")
    )


def test_a_grant_is_committed_with_its_page_and_says_what_it_is(settings):
    request = changed(SHARE, policy="fixed-share", priority_class="online", capabilities=("compute",))
    given = admit.admit(request, who("c1"), me(), settings)
    grant = given.grant
    assert given.inventory == node(settings.driver_root)
    assert (grant.key, grant.who, grant.life) == (store.grant_key("/run/runc", "c1"), who("c1"), me())
    assert grant.shares == (Share(UUID, 2048, 10, 100, slot=1),)
    assert (grant.terms.policy, grant.terms.priority_class, grant.terms.capabilities) == (
        "fixed-share",
        "online",
        ("compute",),
    )
    assert not grant.exclusive and grant.driver_version == "550" and grant.created > 1_700_000_000
    assert store.snapshot(settings.state_dir) == (grant,)
    page = Path(settings.state_dir, "pages", grant.key, "copy").read_bytes()
    assert page == policy_page(grant, given.inventory)


def test_a_whole_gpu_is_exclusive_and_no_gpu_is_a_grant_too(settings):
    assert admit.admit(Request(()), who("none"), me(), settings).grant.shares == ()
    assert admit.admit(Request((GpuRequest(),)), who("whole"), me(), settings).grant.exclusive
    with pytest.raises(NoRoomError, match="GH-201: no room: GPU 0 .* is exclusive to one container"):
        admit.admit(SHARE, who("c1"), me(), settings)


def test_soon_after_boot_an_inventory_is_waited_for(settings, monkeypatch):
    """Engines start containers before the GPUs are listed: there is none, or the last boot's is still there."""
    monkeypatch.setattr(inventory, "BOOT_SECONDS", float("inf"))
    file = Path(settings.state_dir, "inventory.json")
    for n, before in enumerate((None, file.read_text().replace(BOOT, "b" * len(BOOT)))):
        file.unlink()
        if before is not None:
            file.write_text(before)
        with pytest.raises(NodeError, match="GH-301"):
            admit.admit(SHARE, who("early"), me(), settings, patience=0.2)
        listed = threading.Timer(0.5, save_inventory, (settings, node(settings.driver_root)))
        listed.start()
        assert admit.admit(SHARE, who(f"waits{n}"), me(), settings, patience=60).grant.shares
        listed.join()


def test_later_nothing_is_waited_for(settings, monkeypatch):
    monkeypatch.setattr(inventory, "BOOT_SECONDS", 0.0)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits"))
    Path(settings.state_dir, "inventory.json").unlink()
    with pytest.raises(NodeError, match="GH-301"):
        admit.admit(SHARE, who("c1"), me(), settings, patience=60)


def test_a_refusal_changes_nothing(settings):
    admit.admit(SHARE, who("c1"), me(), settings)
    before = files(settings)
    for request, code in (
        (Request((GpuRequest(memory=("mib", 20000)),)), "GH-201"),
        (Request((GpuRequest("7", ("mib", 1)),)), "GH-202"),
        (Request((GpuRequest(memory=("mib", 1)),) * 2), "GH-203"),
    ):
        with pytest.raises(NoRoomError, match=code):
            admit.admit(request, who("c2"), me(), settings)
    assert files(settings) == before


def test_the_rules_of_the_node_hold(settings):
    strict = settings.replace(rules=Rules(max_shares_per_gpu=1))
    admit.admit(SHARE, who("c1"), me(), strict)
    with pytest.raises(NoRoomError, match="at most 1 may share it"):
        admit.admit(SHARE, who("c2"), me(), strict)


@pytest.mark.root
def test_the_linger_of_the_settings_is_on_the_gpu_page(settings):
    """Of each container as it was when it got its share."""
    for n, linger in ((1, 0), (2, 100_000_000), (3, 1000)):
        changed = settings.replace(rules=settings.rules.replace(linger=linger))
        assert admit.admit(SHARE, who(f"c{n}"), me(), changed).grant.linger == linger
    page = slot_files.page(settings.state_dir, UUID)
    slots = [struct.unpack_from("<BBHIIIQQ", page, 128 + 32 * n) for n in range(3)]  # shim/pages/gpu_page.h
    assert [slot[4] for slot in slots] == [0, 100_000_000, 1000] and all(slot[6] for slot in slots)


@pytest.mark.root
def test_a_tolerance_that_a_lower_class_is_known_to_exceed(settings):
    """By what the lower one's own programs have published in its slot file; what it says then refuses nobody else."""
    offline = admit.admit(changed(SHARE, priority_class="offline"), who("batch"), me(), settings).grant
    online = changed(SHARE, priority_class="online", preempt_tolerance_us=1000)
    file = Path(slot_files.folder(settings.state_dir, UUID), "slot", f"{offline.shares[0].slot - 1:02d}")
    data = bytearray(SLOT_FILE_SIZE)
    data[:12] = struct.pack("<QI", slot_page.MAGIC, slot_page.VERSION)
    data[128:136] = struct.pack("<Q", 1_500_000)
    file.write_bytes(data)
    with pytest.raises(NoRoomError, match="GH-201: .*lets go after 1500 us, 1000 are tolerated"):
        admit.admit(online, who("web"), me(), settings)
    assert store.snapshot(settings.state_dir) == (offline,)
    admit.admit(changed(online, preempt_tolerance_us=1500), who("patient"), me(), settings)
    admit.admit(changed(online, preempt_tolerance_us=None), who("silent"), me(), settings)
    file.write_bytes(bytes(SLOT_FILE_SIZE))  # not known, or denied: then it is only a hint, and refuses nobody
    assert admit.admit(online, who("web"), me(), settings).grant.terms.preempt_tolerance_us == 1000


def test_a_second_create_of_a_living_container_changes_nothing(settings, other):
    first = admit.admit(SHARE, who("c1"), Life(BOOT, proc.process_life(other.pid)), settings).grant
    with pytest.raises(ApplyError) as e:
        admit.admit(Request((GpuRequest(memory=("mib", 1)),)), who("c1"), me(), settings)
    assert str(e.value) == f"GH-407: container c1 exists and lives (process {other.pid}); delete it first"
    assert store.snapshot(settings.state_dir) == (first,)
    other.kill()
    other.wait()
    second = admit.admit(Request((GpuRequest(memory=("mib", 1)),)), who("c1"), me(), settings).grant
    assert store.snapshot(settings.state_dir) == (second,)
    page = Path(settings.state_dir, "pages", second.key, "copy").read_bytes()
    assert page == policy_page(second, node())


def test_without_inventory_or_ledger_nothing_is_granted(settings, tmp_path):
    os.unlink(f"{settings.state_dir}/inventory.json")
    with pytest.raises(NodeError, match="GH-301"):
        admit.admit(SHARE, who("c1"), me(), settings)
    assert files(settings) == []
    save_inventory(settings, node(settings.driver_root))
    Path(settings.state_dir, "ledger").write_text("")
    with pytest.raises(NodeError, match="GH-303"):
        admit.admit(SHARE, who("c1"), me(), settings)


@pytest.mark.parametrize("id", ["", "..", "../c1", "a/b", "a\0", "x" * 2000])
def test_an_id_that_no_runtime_takes_is_refused(settings, id):
    with pytest.raises(RequestError, match="GH-105: container id"):
        admit.admit(SHARE, who(id), me(), settings)
    assert store.snapshot(settings.state_dir) == ()


def test_release_takes_no_living_containers_grant_unless_forced(settings, other):
    grant = admit.admit(SHARE, who("c1"), Life(BOOT, proc.process_life(other.pid)), settings).grant
    with pytest.raises(ApplyError, match=f"GH-407: container c1 holds this grant and lives .process {other.pid}.;"):
        admit.release(grant.key, settings)
    assert store.snapshot(settings.state_dir) == (grant,)
    assert admit.release(grant.key, settings, force=True)
    assert not admit.release(grant.key, settings, force=True)
    assert files(settings) == ["inventory.json", "ledger/lock", f"messages/gpu-{UUID}", f"messages/gpu-{UUID}.lock"]


def test_release_of_a_dead_containers_grant(settings, other):
    grant = admit.admit(SHARE, who("c1"), Life(BOOT, proc.process_life(other.pid)), settings).grant
    other.kill()
    other.wait()
    assert admit.release(grant.key, settings)
    assert not admit.release(grant.key, settings)


@pytest.mark.parametrize("key", ["", "c1", "../../../../../../etc/passwd", "A" * 32])
def test_release_of_what_is_no_key(settings, key):
    with pytest.raises(ApplyError, match="is no grant's key"):
        admit.release(key, settings, force=True)


WORKER = """
import os, signal, sys, time
sys.path.insert(0, {repo!r})
from testbed import kill_points as _kill_points
from oci_hook.core.grant import Identity, Life
from oci_hook.core.request import GpuRequest, Request
from oci_hook.errors import GhError
from oci_hook.ledger import admit, life, store
from oci_hook.linux import proc
from oci_hook.config.settings import Settings
settings = Settings(sys.argv[1], driver_root=sys.argv[1] + "/driver", state_dir=sys.argv[1] + "/state")
request = Request((GpuRequest(None, ("mib", 2048), 10),))
def one(id):
    by = Life(proc.boot_id(), proc.process_life(os.getpid()))
    return admit.admit(request, Identity("/run/runc", id, "/bundle/" + id), by, settings)
"""

AT_ONCE = (
    WORKER
    + """
go, said, hold = os.pipe(), os.pipe(), os.pipe()
for n in range(32):
    if os.fork() == 0:
        os.close(hold[1])
        os.read(go[0], 1)
        try:
            one("c%d" % n)
            word = b"granted "
        except GhError as e:
            word = e.problems[0].code.encode() + b" "
        os.write(said[1], word)
        os.read(hold[0], 1)  # lives until all have said
        os._exit(0)
os.close(said[1])
os.write(go[1], b"g" * 32)
words = b""
while len(words.split()) < 32:
    words += os.read(said[0], 4096)
held = store.snapshot(settings.state_dir)
granted, refused = words.split().count(b"granted"), words.split().count(b"GH-201")
print(granted, refused, len(held), sum(g.shares[0].memory_mib for g in held))
os.close(hold[1])
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
print(len(store.snapshot(settings.state_dir)))
"""
)


def test_32_at_once_where_10_fit(settings):
    code = AT_ONCE.format(repo=str(REPO))
    p = subprocess.run([sys.executable, "-I", "-S", "-c", code, settings.prefix], capture_output=True, timeout=60)
    assert p.returncode == 0, p.stderr
    assert p.stdout.decode().splitlines() == [f"10 22 10 {10 * 2048}", "0"]


KILLED = (
    WORKER
    + """
left = int(sys.argv[2])
names = []
def die(name):
    global left
    names.append(name)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
_kill_points.install(die)
one("crash")
print(len(names))
"""
)


def test_killed_at_each_call_of_an_admission_that_changes_a_file(settings, other):
    """By a counter over the calls. What is left is no grant, or one that the next look sweeps; create works again."""
    held = admit.admit(SHARE, who("here"), Life(BOOT, proc.process_life(other.pid)), settings).grant
    whole = Request((GpuRequest(memory=("mib", 20480 - 2048)),))
    for step in range(1, 1000):
        code = KILLED.format(repo=str(REPO))
        p = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code, settings.prefix, str(step)], capture_output=True, timeout=60
        )
        assert p.returncode in (0, -signal.SIGKILL), p.stderr
        assert store.snapshot(settings.state_dir) == (held,)
        again = admit.admit(whole, who("crash"), me(), settings).grant  # all that is left of the GPU
        assert len(store.snapshot(settings.state_dir)) == 2
        assert admit.release(again.key, settings, force=True)
        assert files(settings) == sorted(
            [
                *("inventory.json", "ledger/lock", f"share/{UUID}/slot/00"),
                *(f"messages/gpu-{UUID}", f"messages/gpu-{UUID}.lock"),
                *(f"ledger/{held.key}.json", f"pages/{held.key}/policy", f"pages/{held.key}/copy"),
            ]
        )
        page = slot_files.page(settings.state_dir, UUID)
        seq, generation, _ = head(page)
        assert seq % 2 == 0 and page == gpu_page(UUID, (held,), generation, seq=seq)
        if p.returncode == 0:
            break
    assert int(p.stdout) == step - 1 >= 30


def test_containers_learn_what_their_gpu_was_found_to_do(settings):
    """Until the finding has expired and the GPU's next container starts."""
    seen = {"memops": {"held": True, "resumed": True, "written": True, "resume_us": 9.0, "beside": 1.0}}
    admit.admit(SHARE, who("stays"), me(), settings)
    assert tiers_of(slot_files.page(settings.state_dir, UUID)) == 0
    survey_tiers.save(settings, inventory.load(settings), {UUID: seen})
    held = admit.admit(SHARE, who("goes"), me(), settings).grant
    assert tiers_of(slot_files.page(settings.state_dir, UUID)) == 1
    admit.release(held.key, settings, force=True)
    assert tiers_of(slot_files.page(settings.state_dir, UUID)) == 1, "changed without a reason"
    os.unlink(f"{settings.state_dir}/tiers.json")
    admit.admit(SHARE, who("later"), me(), settings)
    assert tiers_of(slot_files.page(settings.state_dir, UUID)) == 0


@pytest.mark.root
def test_a_container_that_runc_will_not_delete_keeps_its_grant(settings, runc, bundle):
    def ours(spec):
        key = store.grant_key(str(runc.root), runc.ids[-1])
        spec.setdefault("annotations", {})[MARKER] = f"{key} []"

    id = runc.new_id()
    command = ["runc", "--root", str(runc.root), "--log", "/dev/null", "create", "--bundle", str(bundle(edit=ours)), id]
    pipe = subprocess.Popen(["sh", "-c", 'read x; exec "$@"', "sh", *command], stdin=subprocess.PIPE)
    by = Life(BOOT, proc.process_life(pipe.pid))
    key = admit.admit(SHARE, Identity(str(runc.root), id, "/b"), by, settings).grant.key
    pipe.communicate(b"\n", timeout=60)
    assert pipe.returncode == 0
    assert runc("start", id).returncode == 0
    assert runc("delete", id).returncode != 0
    with pytest.raises(ApplyError, match=f"GH-407.*process {runc.pid(id)}"):
        admit.release(key, settings)
    assert [g.life.init[0] for g in store.snapshot(settings.state_dir)] == [runc.pid(id)]
    assert runc("delete", "--force", id).returncode == 0
    assert store.snapshot(settings.state_dir) == ()


@pytest.mark.root
def test_a_container_in_a_user_namespace_reads_its_page(settings, runc, bundle, rootfs):
    grant = admit.admit(SHARE, who("c1"), me(), settings).grant
    page = Path(settings.state_dir, "pages", grant.key, "policy")
    assert os.stat(settings.state_dir).st_mode & 0o077 == 0, "nobody else may look"

    def userns(spec):
        mapped = [{"containerID": 0, "hostID": 100000, "size": 65536}]
        spec["linux"] |= {"uidMappings": mapped, "gidMappings": mapped}
        spec["linux"]["namespaces"].append({"type": "user"})
        # What the default spec mounts and a user namespace without a network namespace of its own may not.
        spec["mounts"] = [m for m in spec["mounts"] if m["destination"] not in ("/sys", "/sys/fs/cgroup")]
        options = ["bind", "ro", "nosuid", "nodev", "noexec"]
        spec["mounts"].append({"destination": "/tmp/policy", "type": "bind", "source": str(page), "options": options})

    # The image's path must be open to the namespace's root; pytest's folders and the state directory are not.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        image = Path(shutil.copytree(rootfs, Path(folder, "image"), symlinks=True))
        (image / "tmp/policy").touch()
        for path in (image, *image.rglob("*")):
            os.lchown(path, 100000, 100000)
        done = runc.run(bundle(args=["md5sum", "/tmp/policy"], rootfs=image, edit=userns))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == hashlib.md5(page.read_bytes()).hexdigest()
