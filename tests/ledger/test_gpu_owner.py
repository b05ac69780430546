"""Two installs on one node: a real GPU is booked by one of them at a time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oci_hook.config.settings import Settings
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.request import GpuRequest, Request
from oci_hook.engines import edits
from oci_hook.errors import NodeError
from oci_hook.install import own_path, settings_check
from oci_hook.ledger import admit, gpu_owner, store
from oci_hook.linux import lock, proc

REPO = Path(__file__).resolve().parents[2]
BOOT = proc.boot_id()
UUIDS = ("GPU-00000000-aaaa", "GPU-11111111-aaaa")
SHARE = Request((GpuRequest(memory=("mib", 10)),))


REAL = gpu_owner.OWNERS


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_owner, "OWNERS", str(tmp_path / "lock/gpu-hook"))
    return tmp_path / "lock/gpu-hook"


@pytest.fixture
def installs(tmp_path):
    return Settings("/a", state_dir=str(tmp_path / "a")), Settings("/b", state_dir=str(tmp_path / "b"))


def node(simulated=False):
    gpus = tuple(Gpu(u, i, i, 100, simulated=simulated) for i, u in enumerate(UUIDS))
    return Inventory(BOOT, "1", "/", simulated, gpus, (), (), "", "")


def give(settings, id="c1", request=SHARE, by=None, simulated=False):
    who = Identity("/run/runc", id, f"/b/{id}")
    by = by or Life(BOOT, proc.process_life(os.getpid()))
    return admit.admit_on(node(simulated), request, who, by, settings).grant


def test_the_second_install_is_told_while_the_first_has_grants(installs):
    a, b = installs
    first = give(a)
    with pytest.raises(NodeError) as e:
        give(b)
    assert str(e.value) == (
        f"GH-304: GPU {UUIDS[0]} is in use by the install with state directory {a.state_dir};"
        " stop its containers there, or use another GPU"
    )
    assert store.snapshot(b.state_dir) == ()
    give(a, "c2")
    admit.release(first.key, a, force=True)
    with pytest.raises(NodeError, match="GH-304"):
        give(b)
    admit.release(store.grant_key("/run/runc", "c2"), a, force=True)
    give(b)
    with pytest.raises(NodeError, match="GH-304"):
        give(a)


@pytest.mark.parametrize("path", [REAL, edits.LOCK, Settings("/x").state_dir])
def test_no_other_user_can_be_first_to_make_it(path):
    """Who makes it, or opens its lock, stops every grant: so not below /run/lock, which is for everybody on Debian."""
    assert own_path.changeable(path) is None and own_path.cleaned(path) is None


def test_no_state_directory_is_there():
    assert not [path for path in (gpu_owner.OWNERS, f"{gpu_owner.OWNERS}/x", "/") if settings_check.is_own(path)]
    assert settings_check.is_own(f"{gpu_owner.OWNERS}-2")


def test_another_gpu_is_free(installs):
    a, b = installs
    give(a, request=Request((GpuRequest("0", ("mib", 10)),)))
    give(b, request=Request((GpuRequest("1", ("mib", 10)),)))
    with pytest.raises(NodeError, match=f"GH-304.*{UUIDS[1]}"):
        give(a, "c2", Request((GpuRequest("0", ("mib", 10)), GpuRequest("1", ("mib", 10)))))


def test_a_dead_grant_holds_no_claim(installs):
    a, b = installs
    p = subprocess.Popen(["sleep", "60"])
    give(a, by=Life(BOOT, proc.process_life(p.pid)))
    p.kill()
    p.wait()
    give(b)


def test_an_install_that_is_gone_holds_no_claim(installs):
    a, b = installs
    give(a)
    for mount in Path(a.state_dir, "share").iterdir():
        subprocess.run(["umount", mount], check=True)
    subprocess.run(["rm", "-r", a.state_dir], check=True)
    give(b)


def test_a_ledger_that_cannot_be_read_may_hold_anything(installs):
    a, b = installs
    grant = give(a)
    Path(a.state_dir, "ledger", f"{grant.key}.json").write_text("damaged")
    with pytest.raises(NodeError, match="GH-304"):
        give(b)


def test_simulated_gpus_are_not_claimed(installs, folder):
    a, b = installs
    give(a, simulated=True)
    give(b, simulated=True)
    assert not folder.exists()


def test_a_state_directory_by_another_name_is_the_same_install(installs, tmp_path):
    a, _ = installs
    give(a)
    (tmp_path / "link").symlink_to(tmp_path)
    with gpu_owner.OwnGpus(UUIDS, f"{tmp_path}/link/a"):
        pass


def test_a_torn_claim_is_nobodys(installs, folder):
    a, b = installs
    give(a)
    admit.release(store.grant_key("/run/runc", "c1"), a, force=True)
    (folder / UUIDS[0]).write_bytes(os.fsencode(a.state_dir)[:-1])
    give(b)
    assert (folder / UUIDS[0]).read_bytes() == os.fsencode(b.state_dir)


def test_claims_that_others_can_change_are_not_used(installs, folder):
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(NodeError, match="GH-303") as e:
        give(installs[0])
    assert str(folder) in str(e.value)
    assert store.snapshot(installs[0].state_dir) == ()


def test_a_linked_claim_is_not_followed(installs, folder, tmp_path):
    folder.mkdir(mode=0o700, parents=True)
    (tmp_path / "victim").write_text("keep")
    (folder / UUIDS[0]).symlink_to(tmp_path / "victim")
    with pytest.raises(NodeError, match="GH-303"):
        give(installs[0])
    assert (tmp_path / "victim").read_text() == "keep"


def test_a_gpu_uuid_is_one_file_name(installs, folder):
    with gpu_owner.OwnGpus(("MIG-GPU-x/1/2",), installs[0].state_dir):
        assert os.listdir(folder) == ["MIG-GPU-x_1_2"]


def test_an_install_that_goes_takes_its_claims_along(installs, folder, tmp_path):
    a, b = installs
    gpu_owner.forget(a.state_dir)  # there is no folder yet
    with gpu_owner.OwnGpus(UUIDS[:1], a.state_dir), gpu_owner.OwnGpus(UUIDS[1:], b.state_dir):
        gpu_owner.forget(a.state_dir)
        assert sorted(os.listdir(folder)) == sorted(UUIDS), "one is held, the other is another's"
    gpu_owner.forget(a.state_dir)
    assert os.listdir(folder) == [UUIDS[1]]
    gpu_owner.forget(b.state_dir)
    assert not folder.exists()
    give(a)
    assert os.listdir(folder)


def test_nothing_is_removed_through_a_link_in_the_folders_place(installs, folder, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/empty").touch()
    folder.parent.mkdir()
    folder.symlink_to(tmp_path / "other")
    gpu_owner.forget(installs[0].state_dir)
    assert (tmp_path / "other/empty").exists()


def test_the_folder_may_go_while_one_claims(installs, folder, monkeypatch):
    """Another install's last claim takes it along just before our file is made."""
    real, gone = lock.lock_file, []

    def first_without(path, how):
        if not gone:
            gone.append(path)
            folder.rmdir()
        return real(path, how)

    monkeypatch.setattr(gpu_owner, "lock_file", first_without)
    give(installs[0])
    assert gone and os.listdir(folder)


HOLDER = """
import os, sys
sys.path.insert(0, {repo!r})
from oci_hook.ledger import gpu_owner, store
gpu_owner.OWNERS = {folder!r}
with gpu_owner.OwnGpus(sys.argv[2:], sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_who_decides_keeps_the_claim_until_the_commit(installs, folder, monkeypatch):
    """No other install may look at our ledger between our choice and our grant."""
    a, b = installs
    monkeypatch.setattr(lock, "LOCK_SECONDS", 0.2)
    folder.mkdir(mode=0o700, parents=True)
    code = HOLDER.format(repo=str(REPO), folder=str(folder))
    p = subprocess.Popen(
        [sys.executable, "-I", "-c", code, a.state_dir, *UUIDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert p.stdout.readline() == b"held\n"
        with pytest.raises(NodeError, match=rf"GH-303: {folder}/{UUIDS[0]} is locked .* by process {p.pid};"):
            give(b)
        assert store.snapshot(b.state_dir) == ()
    finally:
        p.communicate()
    give(b)


def test_both_waiting_for_the_other_do_not_block(installs, monkeypatch):
    """One holds the claim and looks at the ledger of the other, who holds that ledger and waits for the claim."""
    a, b = installs
    give(a)
    with store.open_ledger(a.state_dir), pytest.raises(NodeError, match="GH-304"):
        give(b)


def test_peek_reads_what_the_claim_protects(installs):
    grant = give(installs[0])
    assert isinstance(grant, Grant) and grant.shares == (Share(UUIDS[0], 10, slot=1),)
    assert store.peek(installs[0].state_dir) == (grant,)
