"""Leases that tenants take on files which others need: impossible on what the agent keeps open, else found."""

import fcntl
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oci_hook.agent.act import no_leases
from oci_hook.agent.judge.audit_rules import Finding, TenantProcess
from oci_hook.agent.watch import file_keeper, leases
from oci_hook.agent.watched import Watched
from oci_hook.core.grant import Grant, Identity, Life
from oci_hook.core.inventory import DriverFile, Inventory
from oci_hook.linux import proc
from oci_hook.observe import account
from testbed.agent import events, grant, running
from testbed.hostile import as_docker
from testbed.stage import CC, GLIBC, Stage
from testbed.until import until

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
HERE = Path(__file__).parent
LEASE = "/bin/lease"


@pytest.fixture(scope="module")
def image(root: Path) -> Path:
    subprocess.run([*CC, *GLIBC, "-o", str(root / "bin/lease"), str(HERE / "lease.c")], check=True)
    return root


def found(stage: Stage, id: str) -> list[dict[str, Any]]:
    return [e for e in events(stage) if e["event"] == "finding" and e["id"] == id and e["kind"] == "holds-lease"]


def tries(stage: Stage, image: Path, path: str) -> str:
    """What root in a container is told that asks for a write lease there."""
    return stage.run(image, LEASE, path, "try", edit=as_docker).stdout


FILES = ("driver/cuda", "driver/ml")
SHIMS = ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")


@pytest.mark.parametrize("path", [*(f"/run/gpu-hook/{name}" for name in FILES), *SHIMS])
def test_no_write_lease_on_what_the_agent_keeps_open(stage: Stage, image: Path, path: str) -> None:
    assert tries(stage, image, path) == "leased\n"  # the machine allows it, and nobody has it open
    with running(stage):
        assert tries(stage, image, path) == "Resource temporarily unavailable\n"
    assert tries(stage, image, path) == "leased\n"


@pytest.mark.parametrize("kind", ["try", "read"])
def test_no_lease_on_a_slot_file_while_the_agent_runs(stage: Stage, image: Path, kind: str) -> None:
    """Neither a read nor a write lease, on the own one or a neighbour's: their owners open them to write."""
    neighbour, tenant = stage.start(image), stage.start(image, edit=as_docker)
    with running(stage) as agent:
        until(lambda: agent.container(neighbour) and agent.container(tenant))
        for path in ("/run/gpu-hook/share/0/slot/00", "/run/gpu-hook/slot/0"):
            assert stage.runc.exec(tenant, LEASE, path, kind).stdout == "Resource temporarily unavailable\n"
    for id in (neighbour, tenant):
        stage.runc("delete", "--force", id)


def test_a_lease_from_before_is_found_and_its_holder_killed(stage: Stage, image: Path) -> None:
    """On a library that every container loads."""
    honest = stage.start(image)
    cheat = stage.start(image, LEASE, "/run/gpu-hook/driver/cuda")
    until(lambda: "LEASE" in Path("/proc/locks").read_text())
    with running(stage):
        told = until(lambda: found(stage, cheat))
        assert told[0]["action"] == "killed" and "holds a write lease on " in told[0]["evidence"], told
        until(lambda: stage.runc.living() == {honest})
        assert not found(stage, honest)
        # And from then on nobody can: it is kept open as soon as it can be.
        until(lambda: tries(stage, image, "/run/gpu-hook/driver/cuda") != "leased\n")
    (stage.state / "events").unlink()


@pytest.mark.parametrize("more", [(), ("read",), ("write", "fork")])
def test_a_lease_on_its_own_page_is_reported_only(stage: Stage, image: Path, more: tuple[str, ...]) -> None:
    stay = "" if "fork" not in more else " & sleep 600"
    attack = f"{LEASE} /run/gpu-hook/policy {' '.join(more)}{stay}"
    cheat = stage.start(image, "/bin/sh", "-c", attack, edit=as_docker)
    with running(stage) as agent:
        told = until(lambda: found(stage, cheat))
        assert told[0]["action"] == "reported" and "its policy page" in told[0]["evidence"], told
        assert ("read lease" in told[0]["evidence"]) == ("read" in more)
        assert "holds-lease" in agent.kinds(cheat) and cheat in stage.runc.living()
        assert 'gpu_hook_findings_total{kind="holds-lease"} 1\n' in agent.get("/metrics").decode()
        agent.looks(3)
        assert len(found(stage, cheat)) == 1
    (stage.state / "events").unlink()


def test_a_lease_on_the_account_page_stops_nobody(stage: Stage, image: Path) -> None:
    """Neither `ps` nor the agent waits for it or fails by it; they say what it is."""
    cheat = stage.start(image, "/bin/sh", "-c", f"echo >/run/gpu-hook/account/page; {LEASE} /run/gpu-hook/account/page")
    found_ = grant(stage, cheat)
    assert found_ and found_.life.init
    until(lambda: "LEASE" in Path("/proc/locks").read_text())
    began = time.monotonic()  # an open that waits takes fs.lease-break-time, 45 s
    with account.Account(*found_.life.init) as page, pytest.raises(account.DamagedPage, match="a lease is held on it"):
        page.read(1)
    with account.Account(*found_.life.init) as page, pytest.raises(account.DamagedPage, match="a lease is held on it"):
        page.surcharge(0, 1)
    assert account.look(found_) == "a lease is held on it" and time.monotonic() < began + 40
    with running(stage) as agent:
        until(lambda: agent.kinds(cheat) == {"bad-account-page", "holds-lease"})
        assert agent.node()["agent"]["state"] == "ok" and cheat in stage.runc.living()
    (stage.state / "events").unlink()


# --- parts


def test_the_kernels_own_lines(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    fd = os.open(path, os.O_RDWR)
    try:
        st = os.fstat(fd)
        for kind, write in ((fcntl.F_RDLCK, False), (fcntl.F_WRLCK, True)):
            if kind == fcntl.F_RDLCK:
                os.close(fd)
                fd = os.open(path, os.O_RDONLY)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, kind)
            assert leases.Lease(os.getpid(), (st.st_dev, st.st_ino), write) in leases.now()[0]
            whole, none = proc.budget(60), proc.budget(-1)
            assert leases.holds(os.getpid(), (st.st_dev, st.st_ino), whole)
            assert not leases.holds(1, (st.st_dev, st.st_ino), whole)
            assert not leases.holds(os.getpid(), (st.st_dev, st.st_ino), none)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"LEASE",
        b"1: LEASE",
        b"1: LEASE  ACTIVE    WRITE x fe:00:1 0 EOF\n",
        b"1: LEASE  ACTIVE    WRITE 1 fe:00 0 EOF\n",
        b"1: LEASE  ACTIVE    WRITE 1 zz:00:1 0 EOF\n",
        b"1: POSIX  ADVISORY  WRITE 1 fe:00:1 0 EOF\n",
        b"\xff LEASE \x00\n",
    ],
)
def test_lines_that_are_none(text: bytes) -> None:
    assert leases.parse(text) == []


def test_breaking_ones_count_as_write_leases() -> None:
    text = (
        b"1: POSIX  ADVISORY  READ 5 00:19:7 0 0\n2: LEASE  BREAKING  UNLCK 10429 fe:00:16637955 0 EOF\n"
        b"3: LEASE  ACTIVE    READ 9 00:19:8 0 EOF"
    )
    assert leases.parse(text) == [
        leases.Lease(10429, (os.makedev(0xFE, 0), 16637955), True),
        leases.Lease(9, (os.makedev(0, 0x19), 8), False),
    ]


def test_what_is_kept_open_follows_the_files(tmp_path: Path) -> None:
    def fds() -> int:
        return len(os.listdir("/proc/self/fd"))

    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("b")
    before, keeper = fds(), file_keeper.FileKeeper()
    paths = [str(tmp_path / name) for name in ("a", "link", "fifo", "none", ".")]
    for _ in range(3):
        keeper.keep(paths)
        assert fds() == before + 2 and sorted(keeper.files.values()) == [paths[0], paths[1]]
    (tmp_path / "new").write_bytes(b"y")
    (tmp_path / "new").rename(tmp_path / "a")
    keeper.keep(paths)
    st = os.stat(paths[0])
    assert fds() == before + 2 and keeper.files[st.st_dev, st.st_ino] == paths[0]
    (tmp_path / "a").unlink()
    keeper.keep(paths)
    assert fds() == before + 1
    keeper.close()
    assert fds() == before


def test_all_that_containers_mount_is_wanted(tmp_path: Path) -> None:
    for name in ("lib/shim/libcuda.so.1", "lib/private/container/driver/cuda"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    files = tuple(DriverFile(f"/d/{kind}", kind, "utility") for kind in ("library", "binary", "socket", "proc"))
    inventory = Inventory("b", "1", "/", False, (), (), files, "/d/libcuda", "/d/ml")
    assert file_keeper.wanted(inventory, str(tmp_path)) == [
        "/d/libcuda",
        "/d/ml",
        "/d/library",
        "/d/binary",
        f"{tmp_path}/lib/shim/libcuda.so.1",
        f"{tmp_path}/lib/private/container/driver/cuda",
    ]
    assert len(file_keeper.wanted(None, str(tmp_path))) == 2


def test_many_leases_on_ones_own_file_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process is looked at once, none once the owner's finding is there, and the next look waits."""
    own, needed = (1, 1), (1, 2)
    problems: dict[str, str] = {}
    grants = {"mine": Grant("mine", Identity("/run", "c", "/b"), Life(""), ())}
    node = SimpleNamespace(grants=grants, watched={"mine": Watched()}, problem=problems.__setitem__)
    owners = SimpleNamespace(find=lambda pids, all: {pid: ("mine", TenantProcess(pid, 1, "x", pid)) for pid in pids})
    told: list[tuple[Finding, bool]] = []
    answers = SimpleNamespace(answer=lambda finding, harm: told.append((finding, harm)), clear=told.append)
    watch = no_leases.NoLeases(node, owners, None, answers)  # type: ignore[arg-type]
    watch._needed = lambda: {own: leases.LeasedFile("its page", "mine"), needed: leases.LeasedFile("cuda")}  # type: ignore[method-assign]
    held = [leases.Lease(5, own, False)] * 200 + [leases.Lease(6, own, False), leases.Lease(7, needed, True)]
    monkeypatch.setattr(leases, "now", lambda: (held, True))
    asked: list[tuple[int, tuple[int, int]]] = []

    def holds(pid: int, file: tuple[int, int], *_: object) -> bool:
        asked.append((pid, file))
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        return pid != 5

    monkeypatch.setattr(leases, "holds", holds)
    watch._look()
    assert asked == [(7, needed), (5, own), (6, own)] and watch._next > time.monotonic() + no_leases.LOCKS_REST * 0.05
    assert [(f.pid, harm) for f, harm in told] == [(7, True), (6, False)] and problems == {"locks": ""}
    held[:] = [leases.Lease(pid, own, False) for pid in range(100, 300)]
    monkeypatch.setattr(no_leases, "HOLDERS_SECONDS", 0.1)
    monkeypatch.setattr(leases, "holds", lambda *of: holds(*of) and False)
    asked.clear()
    watch._look()
    assert len(asked) < 20 and "too long" in problems["locks"]
    assert len(told) == len(watch.findings) == 2  # what could not be looked at is not over
    watch.close()


def test_a_lease_that_harms_others_is_answered_again_after_a_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that harmed nobody at first, once it does: a finding is one process with all its leases."""
    own, needed = (1, 1), (1, 2)
    grants = {"mine": Grant("mine", Identity("/run", "c", "/b"), Life(""), ())}
    watched, told = Watched(), []
    node = SimpleNamespace(grants=grants, watched={"mine": watched}, problem=lambda *_: None)
    owners = SimpleNamespace(find=lambda pids, all: {pid: ("mine", TenantProcess(pid, 1, "x", pid)) for pid in pids})
    answers = SimpleNamespace(answer=lambda _, harm: told.append(harm), clear=lambda _: told.append("over"))
    watch = no_leases.NoLeases(node, owners, None, answers)  # type: ignore[arg-type]
    watch._needed = lambda: {own: leases.LeasedFile("its page", "mine"), needed: leases.LeasedFile("cuda")}  # type: ignore[method-assign]
    held = [leases.Lease(5, own, False)]
    monkeypatch.setattr(leases, "now", lambda: (held, True))
    monkeypatch.setattr(leases, "holds", lambda *_: True)

    def looks() -> list[bool | str]:
        told.clear()
        for _ in range(2):
            watch._look()
        return told.copy()

    assert looks() == [False]
    watched.resumed += 1
    assert looks() == []
    held.append(leases.Lease(5, needed, False))
    assert looks() == [True]
    watched.resumed += 1
    assert looks() == [True]
    held.clear()
    assert looks() == ["over"] and not watch._answered
    watch.close()
