"""A plan applied to a live container, and images and neighbours that try to lead it out of the rootfs."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from oci_hook.apply import to_container
from oci_hook.apply.image import check_destinations
from oci_hook.core.plan import Bind, DeviceNode, Tmpfs
from oci_hook.errors import GhError
from oci_hook.linux import libc, mount, namespace, process
from testbed.until import until
from tests.apply.box import LIBDIR, Box, Host, maker
from tests.apply.box_maker import MS_RDONLY, MS_SHARED

pytestmark = pytest.mark.root


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def give(host: Host, box: Box, plan=None, checked: bool = True, sources=None, applied=lambda: None) -> None:
    """What the hook does with a plan. applied() is called between applying and verifying."""
    plan = host.plan() if plan is None else plan
    container = to_container.open_container(box.pid, str(host.rootfs))
    try:
        steps = check_destinations(container.path(), (), plan) if checked else plan
        to_container.apply(steps, container, sources or host.sources)
        applied()
        to_container.verify(plan, container)
    finally:
        os.close(container.pidfd)
        os.close(container.root)


def refused(host: Host, box: Box, *codes: str, **more) -> str:
    with pytest.raises(GhError) as e:
        give(host, box, **more)
    assert e.value.problems[0].code in codes, str(e.value)
    [line] = str(e.value).splitlines()
    return line


def test_the_whole_plan(host):
    before = host.snapshot()
    with Box(host.rootfs) as box:
        give(host, box)
        assert box.read(f"{LIBDIR}/libcuda.so.1") == box.read(f"{LIBDIR}/libcuda.so") == "shim"
        assert box.read("/run/gpu-hook/driver/cuda") == "real"
        assert box.read("/run/gpu-hook/policy") == "page"
        assert box.read("/usr/bin/nvidia-smi") == box.read(f"{LIBDIR}/libnvidia-tool.so.2") == "tool"
        assert box.run("stat", "-c", "%F %t:%T %a %u", "/dev/nvidia0") == "character special file c3:0 666 0\n"
        assert box.run("stat", "-c", "%F %t:%T %a %u", "/dev/nvidiactl") == "character special file c3:ff 666 0\n"
        assert box.run("stat", "-c", "%a", "/run/gpu-hook/account") == "1777\n"
        assert box.mounts() == [
            ("/dev", "rw,relatime"),
            ("/proc", "rw,relatime"),
            ("/run/gpu-hook", "ro,nosuid,nodev,noexec,relatime"),
            ("/run/gpu-hook/driver/cuda", "ro,nosuid,nodev,relatime"),
            ("/run/gpu-hook/policy", "ro,nosuid,nodev,noexec,relatime"),
            ("/run/gpu-hook/account", "rw,nosuid,nodev,noexec,relatime"),
            ("/usr/bin/nvidia-smi", "ro,nosuid,nodev,relatime"),
            (f"{LIBDIR}/libnvidia-tool.so.2", "ro,nosuid,nodev,relatime"),
            ("/dev/nvidia-sim/0", "rw,nosuid,nodev,noexec,relatime"),
            (f"{LIBDIR}/libcuda.so.1", "ro,nosuid,nodev,relatime"),
        ]
    assert host.snapshot() == before
    made = {str(p.relative_to(host.rootfs)): p.stat() for p in host.rootfs.rglob("*") if p.name.startswith("nvidia")}
    assert {path: (st.st_size, st.st_mode & 0o777) for path, st in made.items()} == {"usr/bin/nvidia-smi": (0, 0)}
    assert (host.rootfs / LIBDIR[1:] / "libcuda.so.1").read_text() == "the image's own"


def test_twice_is_refused_and_changes_nothing(host):
    with Box(host.rootfs) as box:
        give(host, box)
        mounts = box.mounts()
        refused(host, box, "GH-402")
        assert box.mounts() == mounts


# --- images whose paths are links ---


def paths(host: Host) -> list[str]:
    return [s.destination if isinstance(s, Bind | Tmpfs) else s.path for s in host.plan() if hasattr(s, "destination")
            or isinstance(s, DeviceNode)]  # fmt: skip


LIBRARIES = (f"{LIBDIR}/libcuda.so.1", f"{LIBDIR}/libcuda.so")
DESTINATIONS = [
    "/run/gpu-hook",
    "/run/gpu-hook/driver/cuda",
    "/run/gpu-hook/driver",
    "/run/gpu-hook/policy",
    "/run/gpu-hook/account",
    "/usr/bin/nvidia-smi",
    f"{LIBDIR}/libnvidia-tool.so.2",
    "/dev/nvidia0",
    "/dev/nvidiactl",
    "/dev/nvidia-sim/0",
    "/dev/nvidia-sim",
    f"{LIBDIR}/libcuda.so.1",
    f"{LIBDIR}/libcuda.so",
    LIBDIR,
    "/usr/lib",
    "/usr",
    "/run",
    "/dev",
]
ELSEWHERE = [
    "../../../../../../../..",
    "/",
    "/proc/1/root/dev",
    "/proc/self/fd",
    "/proc/sys/kernel/hostname",
    "/nothing",
]


def test_destinations_are_those_of_the_plan(host):
    assert set(paths(host)) < set(DESTINATIONS)


def make_link(rootfs: Path, path: str, target: str) -> bool:
    """Put a link at a path of the image; False where that cannot be (below another file)."""
    where = Path(f"{rootfs}{path}")
    if where.is_dir() and not where.is_symlink():
        shutil.rmtree(where)
    elif where.is_symlink() or where.exists():
        where.unlink()
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        where.symlink_to(target)
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("path", DESTINATIONS)
@pytest.mark.parametrize("checked", [True, False], ids=["planned", "unplanned"])
def test_link_instead_of(tmp_path, path, checked):
    """Every path as a link to every other, to the private path, and out: nothing outside changes, what a
    program opens is the shim, or the container is refused, and then the host's own is not there either.

    "unplanned": the applier alone holds as well, as it must when the image changes after it was looked at.
    """
    outcomes = set()
    targets = [t for t in DESTINATIONS if t != path] + ELSEWHERE + [str(tmp_path / "0" / "outside"), "HOST"]
    for number, target in enumerate(targets):
        folder = tmp_path / str(number)
        folder.mkdir()
        host = Host(folder)
        if target == "HOST":
            target = "../../../../../../../../.." + str(host.outside / "lib/libcuda.so.1")
        assert make_link(host.rootfs, path, target)
        before = host.snapshot()
        with Box(host.rootfs, bare=("dev",) if path.startswith("/dev") else ()) as box:
            try:
                give(host, box, checked=checked)
                outcomes.add("given")
                found = box.read_each(*LIBRARIES, "/run/gpu-hook/policy")
                assert found == ["shim", "shim", "page"], target
                assert box.run("stat", "-c", "%t:%T", "/dev/nvidia0") == "c3:0\n"
            except GhError as e:
                assert e.problems[0].code in ("GH-402", "GH-405"), (target, str(e))
                outcomes.add("refused")
                assert "the host's own" not in box.read_each(*LIBRARIES), target
            points = [point for point, _ in box.mounts()]
            assert not [p for p in points if p.startswith("/proc/")], target
        assert host.snapshot() == before, target
        shutil.rmtree(folder)
    assert "refused" in outcomes


@pytest.mark.parametrize(
    "target", ["libcuda.so.1", "sub/libcuda.so.1", "../y/libcuda.so.1", "/opt/driver/libcuda.so.1"]
)
def test_ordinary_links_work(host, target):
    """In images libcuda.so is a link; libcuda.so.1 may be one too, to a file elsewhere in the image or to none."""
    link = host.rootfs / LIBDIR[1:] / ("libcuda.so" if target == "libcuda.so.1" else "libcuda.so.1")
    link.unlink()
    link.symlink_to(target)
    for checked in (True, False) if "/" not in target else (True,):
        with Box(host.rootfs) as box:
            give(host, box, checked=checked)
            assert box.read(f"{LIBDIR}/libcuda.so.1") == box.read(f"{LIBDIR}/libcuda.so") == "shim"
            points = [point for point, _ in box.mounts()]
            assert len(points) == len(set(points))


@pytest.mark.slow
@pytest.mark.parametrize("checked", [True, False], ids=["planned", "unplanned"])
@pytest.mark.parametrize("until", ["applied", "verified"])
def test_swapped_while_the_hook_runs(host, checked, until):
    """A process of the host exchanges directories of the rootfs for links out of it, all the time.

    When it stops before the last look, that look finds what is wrong. When it goes on, it can put its own library back
    afterwards, as whoever writes in a rootfs always can; never the host's, never the real one.
    """
    swaps = ("usr/lib/x", "usr/lib", "run", "usr/bin")
    out = "../../../../../../../../.." + str(host.outside)
    for name in swaps:
        (host.folder / ("link-" + name.replace("/", "-"))).symlink_to(out)
    stop = threading.Event()

    def swap(seed: int, pace: float) -> None:
        rng = random.Random(seed)
        while not stop.wait(rng.random() * pace):
            name = rng.choice(swaps)
            link = host.folder / ("link-" + name.replace("/", "-"))
            exchange(link, host.rootfs / name)
            stop.wait(rng.random() * pace)
            exchange(link, host.rootfs / name)

    before = host.snapshot()
    outcomes = []
    for number in range(100):
        if number >= 60 and set(outcomes) == {"given", "refused"}:
            break
        slower = 2 ** max(0, (number - 60) // 4)  # on a busy machine a hook that is not disturbed needs longer
        with Box(host.rootfs) as box:
            stop.clear()
            swapper = threading.Thread(target=swap, args=(number, 0.0005 * 10 ** (number % 4) * slower))
            swapper.start()

            def settle(swapper: threading.Thread = swapper) -> None:
                stop.set()
                swapper.join()

            try:
                give(host, box, checked=checked, applied=settle if until == "applied" else lambda: None)
                outcomes.append("given")
            except GhError as e:
                assert e.problems[0].code in ("GH-402", "GH-405"), str(e)
                outcomes.append("refused")
            finally:
                settle()
            for found in box.read_each(*LIBRARIES):
                if outcomes[-1] == "given":
                    assert found == "shim" or until == "verified" and found in ("the image's own", None)
                assert found != "the host's own"
            assert host.snapshot() == before
    assert set(outcomes) == {"given", "refused"}


def exchange(a: Path, b: Path) -> None:
    renameat2 = 316 if os.uname().machine == "x86_64" else 276
    assert libc._libc.syscall(renameat2, -100, str(a).encode(), -100, str(b).encode(), 2) == 0


# --- what is in the way ---


@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "file below", "private file", "private link"])
def test_not_a_place_to_mount(host, kind):
    path = host.rootfs / LIBDIR[1:] / "libnvidia-tool.so.2"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        os.mknod(path, 0o20666, os.makedev(1, 3))
    elif kind == "file below":
        (host.rootfs / "run/gpu-hook").mkdir()
        (host.rootfs / "run/gpu-hook/policy").write_text("forged")
    elif kind == "private file":
        (host.rootfs / "run/gpu-hook").write_text("")
    else:
        (host.rootfs / "run/other").mkdir()
        (host.rootfs / "run/gpu-hook").symlink_to("other")
    for checked in (False, True) if kind != "private link" else (False,):
        with Box(host.rootfs) as box:
            assert "/run/gpu-hook" in refused(host, box, "GH-402", checked=checked) or "private" not in kind


def test_an_empty_private_directory_is_left_over_from_an_earlier_container(host):
    (host.rootfs / "run/gpu-hook").mkdir()
    with Box(host.rootfs) as box:
        give(host, box)


@pytest.mark.parametrize("where", [LIBDIR, "/usr/lib", "/run", f"{LIBDIR}/libcuda.so.1"])
def test_a_directory_of_the_host_in_the_way(host, where):
    """A volume at or above a destination: the empty files to mount on would be created on the host."""
    volume = host.outside / "lib"
    if where.endswith(".so.1"):
        volume = volume / "libcuda.so.1"
    before = host.snapshot()
    with Box(host.rootfs, ((volume, where),)) as box:
        refused(host, box, "GH-402", checked=False)
    assert host.snapshot() == before


def test_mounts_that_the_host_would_see(host):
    with Box(host.rootfs, flags=MS_SHARED) as box:
        assert "host" in refused(host, box, "GH-402")
        assert [point for point, _ in box.mounts()] == ["/dev", "/proc"]


def test_read_only_root(host):
    (host.rootfs / "run/gpu-hook").mkdir()
    with Box(host.rootfs, flags=MS_RDONLY) as box:
        assert "read-only" in refused(host, box, "GH-402")
        assert "Read-only file system" in refused(host, box, "GH-405", checked=False)


def test_device_node_there_already(host):
    with Box(host.rootfs) as box:
        box.run("mknod", "-m", "600", "/dev/nvidia0", "c", "195", "0")
        give(host, box)
    with Box(host.rootfs) as box:
        box.run("mknod", "/dev/nvidia0", "c", "195", "1")
        assert "195:0" in refused(host, box, "GH-405", checked=False)
    with Box(host.rootfs) as box:
        box.run("touch", "/dev/nvidia0")
        refused(host, box, "GH-405", checked=False)
    with Box(host.rootfs) as box:
        box.run("ln", "-s", "/nothing", "/dev/nvidia0")
        refused(host, box, "GH-402", checked=False)


# --- sources ---


def test_sources_outside_the_allowed_places(host):
    for source in (f"{host.outside}/secret", f"{host.prefix}/../outside/secret", "/etc/passwd", f"{host.prefix}"):
        with Box(host.rootfs) as box:
            refused(host, box, "GH-405", plan=(Bind(source, "/usr/bin/x"),))
            assert box.read("/usr/bin/x") is None


@pytest.mark.parametrize("fault", ["missing", "link", "owner", "mode", "group"])
def test_sources_that_are_not_safe(host, fault):
    shim = host.prefix / "shim"
    if fault == "missing":
        shim.unlink()
    elif fault == "link":
        shim.unlink()
        shim.symlink_to(host.outside / "secret")
    elif fault == "owner":
        os.chown(shim, 65534, 0)
    elif fault == "mode":
        shim.chmod(0o646)
    else:
        shim.chmod(0o664)
        os.chown(shim, 0, 65534)
    with Box(host.rootfs) as box:
        assert str(shim) in refused(host, box, "GH-305")
        assert [point for point, _ in box.mounts()] == ["/dev", "/proc"]


# --- verification ---


def test_verify_finds_what_is_not_there(host):
    with Box(host.rootfs) as box:
        container = to_container.open_container(box.pid, str(host.rootfs))
        for step in host.plan():
            if isinstance(step, Bind | Tmpfs | DeviceNode):
                with pytest.raises(GhError, match="GH-405"):
                    to_container.verify((step,), container)


def test_verify_finds_what_is_on_top(host):
    with Box(host.rootfs) as box:
        give(host, box)
        container = to_container.open_container(box.pid, str(host.rootfs))
        over = f"mount --bind {host.prefix}/real {host.rootfs}{LIBDIR}/libcuda.so.1"
        subprocess.run(["nsenter", "-m", "-t", str(box.pid), "sh", "-c", over], check=True)
        with pytest.raises(GhError, match="GH-405: .*libcuda.so.1 is not .*shim"):
            to_container.verify(host.plan(), container)


# --- whose process it is ---


def test_not_the_containers_init(host):
    gone = subprocess.Popen(["true"])
    gone.wait()
    with Box(host.rootfs) as box, subprocess.Popen(["sleep", "100"]) as sleeper:
        try:
            (host.folder / "plain").mkdir()
            for pid, rootfs in (
                (os.getpid(), host.rootfs),
                (os.getpid(), Path("/")),
                (sleeper.pid, host.rootfs),
                (gone.pid, host.rootfs),
                (0, host.rootfs),
                (2, host.rootfs),
                (box.pid, host.folder / "plain"),
                (box.pid, host.folder / "absent"),
                (box.pid, host.rootfs / "bin/busybox"),
            ):
                with pytest.raises(GhError, match=r"^GH-406: process \d+ "):
                    to_container.open_container(pid, str(rootfs))
        finally:
            sleeper.kill()
        container = to_container.open_container(box.pid, str(host.rootfs))
        to_container.check_child_of(container, maker().pid)
        with pytest.raises(GhError, match="GH-406"):
            to_container.check_child_of(container, os.getppid())


def test_an_init_whose_parent_has_ended(host):
    """crun makes the init of a user namespace so. It is known by crun's program and command line, which it still has."""

    def has_its_words(pid: int) -> bool:
        """Popen returns a moment before the kernel has set them."""
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""

    with Box(host.rootfs) as box:
        container = to_container.open_container(box.pid, str(host.rootfs))
        with subprocess.Popen(maker().args, stdin=subprocess.PIPE) as runtime:  # like the init, a copy of the maker
            until(lambda: has_its_words(runtime.pid))
            to_container.check_child_of(container, runtime.pid)
        same_program = [os.readlink(f"/proc/{box.pid}/exe"), "-c", "input()"]
        with subprocess.Popen(same_program, stdin=subprocess.PIPE) as other:
            until(lambda: has_its_words(other.pid))
            with pytest.raises(GhError, match="GH-406"):
                to_container.check_child_of(container, other.pid)
            other.kill()


def test_container_dies_meanwhile(host):
    with Box(host.rootfs) as box:
        container = to_container.open_container(box.pid, str(host.rootfs))
        box.end()
        with pytest.raises(GhError, match="GH-405"):
            to_container.apply(host.plan(), container, host.sources)


REPO = Path(__file__).resolve().parents[2]
FAKE_PROC = """
import os, subprocess, sys
from oci_hook.apply import to_container
from oci_hook.errors import GhError
subprocess.run(["mount", "-t", "tmpfs", "none", "/proc"], check=True)
os.makedirs(f"/proc/{os.getpid()}/root/etc")
try:
    to_container.open_container(os.getpid(), "/")
except GhError as e:
    print(e)
"""


def test_a_proc_that_is_none_is_not_believed():
    """An attacker has mounted a folder over /proc, so that a pid there leads anywhere."""
    command = ["unshare", "-m", "--propagation", "private", sys.executable, "-c", FAKE_PROC]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPO)
    assert done.stdout.startswith("GH-404: /proc is not a proc file system"), done


# --- kernels and clocks ---


@pytest.mark.parametrize("call", sorted(libc.SINCE.keys() & libc.NUMBERS))  # every call that mounting needs
def test_a_kernel_without(host, monkeypatch, call):
    monkeypatch.setitem(libc.NUMBERS, call, 9999)
    with Box(host.rootfs) as box:
        line = refused(host, box, "GH-404")
        assert f"{call}: Function not implemented (Linux {libc.SINCE[call]} or newer has it)" in line
        assert "gpu-hook-runtime" in line
        # If a late call fails, the private directory may stay in the image, but no library.
        assert box.read(f"{LIBDIR}/libcuda.so.1") == "the image's own"


def test_a_kernel_whose_statx_tells_no_mount(host, monkeypatch):
    """Linux 5.6 and 5.7 fill in the rest, and leave the bit out of stx_mask."""
    statx = mount._statx

    def old(*words: Any) -> int:
        done = statx(*words)
        words[-1][:4] = bytes(4)
        return done

    monkeypatch.setattr(mount, "_statx", old)
    with Box(host.rootfs) as box:
        line = refused(host, box, "GH-404")
    assert "statx: Function not implemented (Linux 5.8 or newer has it)" in line and "gpu-hook-runtime" in line


def test_a_python_without_pidfd_open(host, monkeypatch):
    with Box(host.rootfs) as box, monkeypatch.context() as patch:
        patch.delattr(os, "pidfd_open")
        assert to_container.open_container(box.pid, str(host.rootfs)).pid == box.pid


class Late(Exception):
    pass


def test_the_deadline_ends_the_child(host, monkeypatch):
    children = []

    def slow(parent: int) -> None:
        signal.pause()

    fork = os.fork
    monkeypatch.setattr(process, "die_with_parent", slow)
    monkeypatch.setattr(os, "fork", lambda: children.append(fork()) or children[-1])

    def late(*_: object) -> None:
        raise Late

    with Box(host.rootfs) as box:
        children.clear()
        old = signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(Late):
                give(host, box)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
        with pytest.raises(ProcessLookupError):
            os.kill(children[0], 0)


def test_a_child_that_is_killed(host, monkeypatch):
    monkeypatch.setattr(process, "die_with_parent", lambda parent: os.kill(os.getpid(), signal.SIGKILL))
    with Box(host.rootfs) as box:
        refused(host, box, "GH-405")


def test_the_child_goes_with_a_hook_that_is_killed(host, monkeypatch):
    def stuck(*_: object) -> None:
        os.write(writer, b"x")
        signal.pause()

    monkeypatch.setattr(namespace, "setns", stuck)
    with Box(host.rootfs) as box:
        reader, writer = os.pipe()
        hook = os.fork()
        if hook == 0:
            give(host, box)
            os._exit(0)
        os.close(writer)
        assert os.read(reader, 1) == b"x"
        os.kill(hook, signal.SIGKILL)
        os.waitpid(hook, 0)
        assert os.read(reader, 1) == b""  # nobody holds the other end: the child is gone
    os.close(reader)


# --- user namespaces ---


@pytest.fixture
def user_namespace(host):
    """A container with a user namespace: a device node on a file system of its own cannot be opened."""
    script = f"mount --bind {host.rootfs} {host.rootfs} && mount -t tmpfs none {host.rootfs}/dev && echo && read stop"
    command = ["unshare", "-U", "-r", "-m", "--propagation", "private", "sh", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sandbox:
        assert sandbox.stdout and sandbox.stdout.readline() == b"\n"
        yield sandbox
        sandbox.communicate(b"\n")


def test_user_namespace_gets_the_hosts_nodes(host, user_namespace):
    container = to_container.open_container(user_namespace.pid, str(host.rootfs))
    plan = tuple(s for s in host.plan() if not isinstance(s, DeviceNode))
    plan += (DeviceNode("/dev/null", 1, 3),)
    to_container.apply(plan, container, host.sources)
    to_container.verify(plan, container)
    enter = ["nsenter", "-U", "-m", "-t", str(user_namespace.pid), "sh", "-c", f"echo > {host.rootfs}/dev/null"]
    subprocess.run(enter, check=True)


def test_user_namespace_without_nodes_on_the_host(host, user_namespace):
    container = to_container.open_container(user_namespace.pid, str(host.rootfs))
    for node in (DeviceNode("/dev/nvidia-absent", 195, 9), DeviceNode("/dev/null", 195, 9)):
        with pytest.raises(GhError, match="GH-405"):
            to_container.apply((node,), container, host.sources)
