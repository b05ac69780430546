"""A grant ends when its container is proven to have ended, and then at once: real runc through the wrapper."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oci_hook.core.grant import Identity, Life
from oci_hook.core.request import GpuRequest, Request
from oci_hook.errors import GhError
from oci_hook.ledger import admit, holders, store
from oci_hook.ledger.life import planned_cgroup
from oci_hook.ledger.proof import PATIENT, QUICK
from oci_hook.linux.lock import lock_file
from oci_hook.linux.proc import boot_id, pid_space, process_life
from testbed import REPO
from testbed.containers import Bundle, Runc, remove_cgroup
from testbed.installs import Install
from testbed.until import until

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
MOST = {"gpu-hook.io/memory": "20Gi", "gpu-hook.io/devices": "0"}  # of 24: room for one


@pytest.fixture
def hidden(prefix: Install, tmp_path: Path, runc: Runc) -> Iterator[Runc]:
    """The real runtime keeps its containers in another directory than --root says."""
    elsewhere = Runc(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    script = tmp_path / "other-runc"
    script.write_text(f'#!/bin/sh\nshift 2\nexec runc --root {elsewhere.root} "$@"\n')
    script.chmod(0o755)
    prefix.set(runtime=str(script))
    yield elsewhere
    elsewhere.ids += runc.ids
    elsewhere.close()


def test_a_state_directory_out_of_sight_books_nothing_twice(
    prefix: Install, bundle: Bundle, runc: Runc, hidden: Runc
) -> None:
    assert runc.create(bundle(MOST), prefix).returncode == 0
    (id,) = runc.ids
    assert not (runc.root / id).exists() and hidden("start", id).returncode == 0
    (grant,) = prefix.grants()
    assert grant.life.init == (hidden.pid(id), grant.life.init and grant.life.init[1])
    refused = runc.create(bundle(MOST), prefix)
    assert refused.returncode == 1 and "GH-201" in refused.stderr
    assert hidden("delete", "--force", id).returncode == 0
    until(lambda: prefix.grants() == ())
    assert runc.create(bundle(MOST), prefix).returncode == 0


LEAVE = """
b=/bin/busybox
$b mount -t tmpfs none /tmp && $b mkdir /tmp/bin /tmp/old && $b cp $b /tmp/bin && $b cp $b /tmp/bin/sleep
cd /tmp && $b pivot_root . old && $b umount -l /old
exec /bin/sleep 300
"""


def test_a_tenant_that_leaves_its_mounts_behind_keeps_what_it_was_given(
    prefix: Install, bundle: Bundle, runc: Runc, hidden: Runc
) -> None:
    """A process may hide the policy page in a user namespace of its own; no state file shows the container either."""
    if shutil.which("busybox") is None:
        pytest.fail("busybox is not installed")

    def any_user(spec: dict[str, Any]) -> None:
        spec["process"]["user"] = {"uid": 1000, "gid": 1000}  # mapping uid 0 itself takes CAP_SETFCAP

    folder = bundle(MOST, args=["/bin/busybox", "unshare", "-Urm", "/bin/busybox", "sh", "-ec", LEAVE], edit=any_user)
    busybox = Path(os.path.realpath(str(shutil.which("busybox"))))
    shutil.copy(busybox, Path(json.loads((folder / "config.json").read_text())["root"]["path"], "bin/busybox"))
    assert runc.create(folder, prefix).returncode == 0
    (id,) = runc.ids
    assert hidden("start", id).returncode == 0
    init = hidden.pid(id)
    until(lambda: Path(f"/proc/{init}/comm").read_text() == "sleep\n")
    assert "/pages/" not in Path(f"/proc/{init}/mountinfo").read_text()
    assert len(prefix.grants()) == 1
    refused = runc.create(bundle(MOST), prefix)
    assert refused.returncode == 1 and "GH-201" in refused.stderr
    assert hidden("delete", "--force", id).returncode == 0
    until(lambda: prefix.grants() == ())


@pytest.mark.parametrize("seen", [True, False])
def test_an_id_made_again_without_a_request_holds_nothing(
    prefix: Install, bundle: Bundle, runc: Runc, seen: bool
) -> None:
    """The grant ends, whether or not the ledger was read while the first container lived."""
    assert runc.create(bundle(MOST), prefix).returncode == 0
    (id,) = runc.ids
    if seen:
        assert len(prefix.grants()) == 1
        with store.open_ledger(str(prefix.state)):
            pass
    assert runc("delete", "--force", id).returncode == 0
    assert runc.create(bundle(), prefix, id=id).returncode == 0
    assert runc.living() == {id}
    assert prefix.grants() == ()
    assert runc.create(bundle(MOST), prefix).returncode == 0


def test_two_creates_on_one_bundle_at_once(prefix: Install, bundle: Bundle, runc: Runc, tmp_path: Path) -> None:
    """A second create from a bundle whose config.json the first one's runtime has not read yet is refused."""
    slow = tmp_path / "slow-runc"
    slow.write_text(f'#!/bin/sh\nwhile [ -e {tmp_path}/hold ]; do sleep 0.05; done\nexec runc "$@"\n')
    slow.chmod(0o755)
    (tmp_path / "hold").touch()
    prefix.set(runtime=str(slow))
    folder = bundle({"gpu-hook.io/memory": "1Gi"})
    first = runc.popen(
        "create", "--bundle", str(folder), runc.new_id(), program=prefix.program, stdin=subprocess.DEVNULL
    )
    try:
        until(lambda: "gpu-hook.io/grant" in (folder / "config.json").read_text())
        config = (folder / "config.json").read_text()
        (tmp_path / "link").symlink_to(folder)
        for path in (folder, tmp_path / "link"):
            second = runc.create(path, prefix)
            assert second.returncode == 1 and "GH-407" in second.stderr and runc.ids[0] in second.stderr
        assert (folder / "config.json").read_text() == config
        assert len(prefix.grants()) == 1
    finally:
        (tmp_path / "hold").unlink()
        assert first.wait(60) == 0
    third = runc.create(folder, prefix)  # the first one's runtime has read it: now it may be edited again
    assert third.returncode == 0, third.stderr
    assert len(prefix.grants()) == 2


LOOK = """
import sys
sys.path.insert(0, {repo!r})
from oci_hook.ledger import store
with store.open_ledger(sys.argv[1]) as ledger:
    print(len(ledger.grants), len(store.peek(sys.argv[1])))
"""


def test_who_sees_other_pids_ends_no_grant(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    """A wrapper in a container (docker in docker) that shares our state directory."""
    assert runc.create(bundle(MOST), prefix).returncode == 0
    assert len(prefix.grants()) == 1
    command = ["unshare", "-pf", "--mount-proc", sys.executable, "-c", LOOK.format(repo=str(REPO)), str(prefix.state)]
    looked = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert looked.stdout == "1 1\n", looked.stderr
    assert len(prefix.grants()) == 1
    # Nor does the first pid namespace end one of another, while its container's processes are there.
    (grant,) = prefix.grants()
    assert grant.life.init
    with store.open_ledger(str(prefix.state)) as ledger:
        strange = grant.life.replace(creator=None, init=(1 << 21, grant.life.init[1]), space=4)
        ledger.update(grant.replace(life=strange, born=1))
    assert len(prefix.grants()) == 1
    assert runc("delete", "--force", runc.ids[0]).returncode == 0
    until(lambda: prefix.grants() == ())


def test_more_processes_than_can_be_looked_at(
    prefix: Install, bundle: Bundle, runc: Runc, hidden: Runc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant forks without end. A grant whose processes cannot be seen quickly counts; before a container is refused
    for it, the search takes longer, and never under the ledger's lock."""
    assert runc.create(bundle(MOST), prefix).returncode == 0
    assert hidden("delete", "--force", runc.ids[0]).returncode == 0  # nobody has seen its init
    asked: list[float] = []
    look = holders.holders

    def slow(seconds: float, apart: tuple[str, ...], pages: str) -> tuple[dict[str, tuple[int, int]], int]:
        asked.append(seconds)
        os.close(lock_file(f"{prefix.state}/ledger/lock", fcntl.LOCK_EX, wait=False))
        return look(seconds, apart, pages) if seconds > 1 else ({}, holders.NEVER)

    monkeypatch.setattr(holders, "holders", slow)
    by = Life(boot_id(), process_life(os.getpid()), space=pid_space())
    small = Request((GpuRequest("0", ("mib", 1024)),))
    one = admit.admit_on(prefix.inventory, small, Identity("/run/x", "a", "/a"), by, prefix.settings)
    with store.open_ledger(str(prefix.state)) as ledger:
        assert len(ledger.grants) == 2 and len(ledger.unsure) == 1
    assert set(asked) == {QUICK}
    two = admit.admit_on(
        prefix.inventory,
        Request((GpuRequest("0", ("mib", 20480)),)),
        Identity("/run/x", "b", "/b"),
        by,
        prefix.settings,
    )
    assert asked[-1] == PATIENT and {g.key for g in prefix.grants()} == {one.grant.key, two.grant.key}


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look at processes ever comes to its end, as beside a tenant with more of them, and mounts, than it may take."""
    monkeypatch.setattr(holders, "holders", lambda *_: ({}, holders.NEVER))


def again(prefix: Install, runc: Runc, id: str, mib: int) -> str:
    """Admit a container of this id as the runtime does: what it is refused with, or ""."""
    by = Life(boot_id(), process_life(os.getpid()), space=pid_space())
    wish = Request((GpuRequest("0", ("mib", mib)),))
    try:
        admit.admit_on(prefix.inventory, wish, Identity(str(runc.root), id, "/other"), by, prefix.settings)
    except GhError as e:
        return str(e)
    return ""


@pytest.mark.parametrize("told", [("start",), ("kill", "CONT"), ("delete", "--force")])
def test_who_was_started_or_deleted_is_known_to_have_ended(
    prefix: Install, bundle: Bundle, runc: Runc, blind: None, told: tuple[str, ...]
) -> None:
    """No transaction looked while it lived. Its room is free, for whoever comes first."""
    assert runc.create(bundle(MOST), prefix).returncode == 0
    (id,) = runc.ids
    words = [told[0], id, told[1]] if told[0] == "kill" else [*told, id]
    assert runc(*words, program=prefix.program).returncode == 0
    if told[0] != "delete":
        assert len(prefix.grants()) == 1  # this writes nothing
        assert runc("delete", "--force", id).returncode == 0
    for other in ("other", id):
        until(lambda other=other: again(prefix, runc, other, 20480) == "")  # type: ignore[misc]
        with store.open_ledger(str(prefix.state)) as ledger:
            ledger.remove(store.grant_key(str(runc.root), other))


def test_an_id_that_runtime_and_cgroup_do_not_know_is_free(
    prefix: Install, bundle: Bundle, runc: Runc, blind: None
) -> None:
    """Its runtime was killed, or somebody called the real one: nothing was kept. For others it is not known, and that is said."""
    assert runc.create(bundle(MOST), prefix).returncode == 0
    (id,) = runc.ids
    assert runc("delete", "--force", id).returncode == 0
    with pytest.raises(GhError, match="may live.* try again, or, if it has ended, run `gpu-hook release --force --key"):
        admit.release(store.grant_key(str(runc.root), id), prefix.settings)
    assert again(prefix, runc, id, 20480) == ""


def test_an_id_whose_container_is_out_of_sight_is_not_free(
    prefix: Install, bundle: Bundle, runc: Runc, hidden: Runc, blind: None
) -> None:
    assert runc.create(bundle(MOST), prefix).returncode == 0
    (id,) = runc.ids
    assert "GH-407" in again(prefix, runc, id, 1024)
    assert hidden("delete", "--force", id).returncode == 0
    assert again(prefix, runc, id, 1024) == ""


def test_what_is_kept_is_of_this_grant(prefix: Install, bundle: Bundle, runc: Runc, blind: None) -> None:
    """A container of the same id without a request, while the grant of an earlier one is still there."""
    assert runc.create(bundle(MOST), prefix).returncode == 0
    (id,) = runc.ids
    assert runc("delete", "--force", id).returncode == 0
    assert runc.create(bundle(), prefix, id=id).returncode == 0
    assert runc("start", id, program=prefix.program).returncode == 0
    folder = prefix.state / "pages" / store.grant_key(str(runc.root), id)
    assert folder.is_dir() and not (folder / "state.json").exists()


FORGE = """
mount -t tmpfs none /mnt && mkdir -p /mnt/pages/$1 && echo > /mnt/pages/$1/policy
if [ $2 = root ]; then mount --bind /mnt/pages/$1/policy /mnt/pages/$1/policy
else mkdir -p /mnt/at/pages/$1/policy && mount --bind "$3" /mnt/at/pages/$1/policy; fi
echo ready; exec sleep 300
"""


@pytest.mark.parametrize("field", ["root", "point"])
def test_who_forges_the_page_keeps_no_grant_alive(
    prefix: Install, bundle: Bundle, runc: Runc, hidden: Runc, field: str
) -> None:
    """Anybody on the node, without a right: by a file system of its own, or by the name of a mount point. A key follows from
    the id, which /sys/fs/cgroup shows to all."""
    assert runc.create(bundle(MOST), prefix).returncode == 0
    (id,) = runc.ids
    key = store.grant_key(str(runc.root), id)
    argv = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "unshare", "-Urm", "sh", "-ec", FORGE, "sh"]
    with subprocess.Popen([*argv, key, field, "/usr/bin"], stdout=subprocess.PIPE, text=True) as forger:
        try:
            assert forger.stdout is not None and forger.stdout.readline() == "ready\n"
            assert f"/pages/{key}/policy" in Path(f"/proc/{forger.pid}/mountinfo").read_text()
            assert hidden("delete", "--force", id).returncode == 0  # nothing is kept of it
            until(lambda: prefix.grants() == ())
        finally:
            forger.kill()


def test_holders_by_the_thousand(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    """The container's first process is found among many, and the search is bounded."""
    many = "i=0; while [ $i -lt 2000 ]; do sleep 300 & i=$((i+1)); done; wait"
    assert runc.create(bundle(MOST, args=["sh", "-c", many]), prefix).returncode == 0
    (id,) = runc.ids
    assert runc("start", id).returncode == 0
    init = runc.pid(id)
    until(lambda: len(Path(f"/proc/{init}/task/{init}/children").read_text().split()) == 2000, seconds=60)
    (grant,) = prefix.grants()
    found, unseen = holders.holders(30)
    assert found[grant.key][0] == init and unseen < found[grant.key][1]
    assert grant.life.cgroup and grant.key not in holders.holders(30, (grant.life.cgroup,))[0]
    began = time.process_time()
    assert holders.holders(0.0) == ({}, holders.NEVER)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("path", "directory"),
    [
        ("/docker/abc", "{top}/docker/abc"),
        ("/a/../b", "{top}/b"),
        ("/../../b/./c", "{top}/b/c"),
        ("/", "{top}"),
        ("/a/..", "{top}"),
        ("system.slice:docker:abc", "{top}/system.slice/docker-abc.scope"),
        ("a-b-c.slice:cri-containerd:x", "{top}/a.slice/a-b.slice/a-b-c.slice/cri-containerd-x.scope"),
        ("-.slice:docker:x", "{top}/docker-x.scope"),
        (":docker:x", "{top}/system.slice/docker-x.scope"),
        ("user.slice:libpod:x.slice", "{top}/user.slice/x.slice"),
        ("not a slice:docker:x", ""),
        ("a.slice:p:", ""),
        (":", "{own}/:"),
        ("", "{own}/c1"),
        ("rel", "{own}/rel"),
        ("../x", "{own}/x"),
    ],
)
def test_where_a_runtime_puts_a_container(path: str, directory: str) -> None:
    top = "/sys/fs/cgroup/devices" if os.path.ismount("/sys/fs/cgroup/devices") else "/sys/fs/cgroup"
    own = next(
        line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":devices:" in line or "0::" in line
    )
    expected = directory.format(top=top, own=(top + own.split(":", 2)[2]).rstrip("/"))
    assert planned_cgroup(path, "c1") == expected


# In a cgroup two below the top: the plan for each path, and where the runtime really puts the container.
PLACED = """
eval "$UMOUNT"
mkdir -p $TOP/above-$ID/a/b $TOP/devices && echo $$ >$TOP/above-$ID/a/b/cgroup.procs
for path in "" relative/$ID /absolute/$ID; do
  "$PYTHON" -c 'import json, sys; spec = json.load(open("config.json")); spec["linux"].pop("resources", 0)
spec["linux"] |= {"cgroupsPath": sys.argv[1]} if sys.argv[1] else {}
json.dump(spec, open("config.json", "w"))
from oci_hook.ledger.life import planned_cgroup
print(planned_cgroup(sys.argv[1], sys.argv[2], sys.argv[3] == "crun"))' "$path" "$ID" "$RUNTIME"
  $RUNTIME --root "$PWD/state" create --pid-file "$PWD/pid" "$ID" </dev/null >log 2>&1 || { cat log; exit 1; }
  sed -n "s=^$HIERARCHY:=$TOP=p" "/proc/$(cat pid)/cgroup"
  $RUNTIME --root "$PWD/state" delete -f "$ID"
done
"""


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_container_is_where_it_was_planned(
    runtime: str, version: int, bundle: Bundle, runc: Runc, tmp_path: Path
) -> None:
    """Also where a cgroup of version 2 has the name of a hierarchy of version 1."""
    place = Path("/sys/fs/cgroup", "devices" if version == 1 else "unified")
    if not place.is_mount():
        pytest.skip(f"no cgroup hierarchies of both versions here: {place}")
    id, made = runc.new_id(), (place / "devices").exists()
    umount = {
        1: "umount /sys/fs/cgroup/unified",  # crun of Debian 12 refuses the hybrid layout
        2: "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup",
    }[version]
    top = "/sys/fs/cgroup/devices" if version == 1 else "/sys/fs/cgroup"
    words = {"UMOUNT": umount, "TOP": top, "ID": id, "RUNTIME": runtime, "PYTHON": sys.executable}
    words |= {"HIERARCHY": "[0-9]*:devices" if version == 1 else "0:", "PYTHONPATH": str(REPO)}
    script = "\n".join(["set -e", *(f"{name}='{value}'" for name, value in words.items()), "export PYTHONPATH", PLACED])
    try:
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script],
            cwd=bundle(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        lines = done.stdout.splitlines()
        assert done.returncode == 0 and len(lines) == 6, done.stdout
        assert lines[::2] == lines[1::2]
    finally:
        for name in (f"above-{id}", id, "relative", "absolute", *(() if made else ("devices",))):
            for folder in sorted((Path(f) for f, _, _ in os.walk(place / name)), reverse=True):
                remove_cgroup(str(folder))
