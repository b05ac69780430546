"""Device programs of a live process's version 2 cgroup: read back, extended, replaced, and obeyed by the kernel."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oci_hook.apply import to_cgroup_v2
from oci_hook.core.device_program import EXIT, MOV_K, instruction, permit
from oci_hook.core.plan import DeviceRule
from oci_hook.errors import GhError
from oci_hook.linux import bpf, cgroup

pytestmark = pytest.mark.root
REPOSITORY = Path(__file__).resolve().parents[2]
ALLOW = (instruction(MOV_K, 0, immediate=1), instruction(EXIT))
DENY = (instruction(MOV_K, 0, immediate=0), instruction(EXIT))
NULL = (*permit([(1, 3, "rwm")]), *DENY)


def top() -> Path | None:
    for mount in cgroup.mountinfo():
        if mount.fstype == "cgroup2" and mount.root == "/":
            return Path(mount.point)
    return None


TOP = top()
if TOP is None:
    pytest.skip("cgroup v2 is not mounted", allow_module_level=True)


class Group:
    """A version 2 cgroup with one process and these device programs."""

    def __init__(self, path: Path, *programs: tuple[int, ...], flags: int = bpf.F_ALLOW_MULTI) -> None:
        self.path = path
        path.mkdir()
        self.process = subprocess.Popen(["sleep", "100"])
        self.add(self.process.pid)
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        for program in programs:
            self.attach(program, flags)

    def attach(self, program: tuple[int, ...], flags: int = bpf.F_ALLOW_MULTI) -> None:
        fd = bpf.load(program)
        attr = bpf._Attach(self.fd, fd, bpf.CGROUP_DEVICE, flags, 0)
        bpf._bpf(bpf.PROG_ATTACH, attr, "attach")
        os.close(fd)

    def add(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))

    def programs(self) -> list[tuple[int, ...]]:
        found = []
        for id in bpf.attached(self.fd)[0]:
            fd = bpf.open_program(id)
            found.append(bpf.instructions(fd))
            os.close(fd)
        return found

    def opens(self, minor: int, folder: Path) -> bool:
        """Whether the kernel permits a process of this cgroup to open a device, and then looks for its driver."""
        node = folder / f"node-{minor}"
        if not node.exists():
            os.mknod(node, 0o20666, os.makedev(195, minor))
        script = f"echo $$ > {self.path}/cgroup.procs; cat {node}"
        said = subprocess.run(["sh", "-c", script], capture_output=True, text=True).stderr
        reason = said.rpartition(": ")[2].strip()
        assert reason in ("No such device or address", "Operation not permitted"), said
        return reason == "No such device or address"

    def close(self) -> None:
        os.close(self.fd)
        self.process.kill()
        self.process.wait()
        self.path.rmdir()


@pytest.fixture
def path() -> Path:
    assert TOP is not None
    return TOP / f"gpu-hook-test-{os.getpid()}"


@pytest.fixture
def group(path: Path) -> Iterator[Group]:
    group = Group(path, NULL)
    yield group
    group.close()


def opened(group: Group) -> int:
    return to_cgroup_v2.open_devices(group.process.pid)


def test_rules_are_added(group, tmp_path):
    directory = opened(group)
    to_cgroup_v2.check(directory, (3,), ())
    assert not group.opens(3, tmp_path)
    to_cgroup_v2.apply((DeviceRule(195, 3), DeviceRule(195, 255), DeviceRule(1, 3)), directory)
    assert group.opens(3, tmp_path) and group.opens(255, tmp_path) and not group.opens(4, tmp_path)
    to_cgroup_v2.check(directory, (3,), ())
    with pytest.raises(GhError, match="^GH-403: .* 195:3"):
        to_cgroup_v2.check(directory, (4,), ())
    before = group.programs()
    assert len(before) == 1
    to_cgroup_v2.apply((DeviceRule(195, 3),), directory)
    assert group.programs() == before  # no rule is added twice
    os.close(directory)


@pytest.mark.parametrize("flags", [0, 1], ids=["the only one", "may be overridden"])
def test_other_ways_to_attach(path, tmp_path, flags):
    group = Group(path, NULL, flags=flags)
    try:
        directory = opened(group)
        to_cgroup_v2.apply((DeviceRule(195, 3),), directory)
        os.close(directory)
        assert len(group.programs()) == 1 and bpf.attached(group.fd)[1] == flags
        assert group.opens(3, tmp_path) and not group.opens(4, tmp_path)
    finally:
        group.close()


def test_several_programs(group, tmp_path):
    """The kernel asks all programs, and each must permit. Their order stays."""
    group.attach((*permit([(195, 3, "r")]), *DENY))
    group.attach((*permit([(195, 3, "rw"), (195, 4, "rw")]), *DENY))
    old = group.programs()
    directory = opened(group)
    to_cgroup_v2.check(directory, (), ())
    to_cgroup_v2.apply((DeviceRule(195, 3),), directory)
    os.close(directory)
    new = group.programs()
    assert [program[-len(was) :] for program, was in zip(new, old, strict=True)] == old
    assert new[2] == old[2]
    assert group.opens(3, tmp_path) and not group.opens(4, tmp_path)


def test_a_cgroup_above_forbids_it(group, tmp_path):
    inner = Group(group.path / "inner", ALLOW)
    try:
        directory = opened(inner)
        to_cgroup_v2.check(directory, (), ())  # its own program permits everything, but not that of the cgroup above
        with pytest.raises(GhError, match="^GH-405: a cgroup above the container's forbids c 195:3 rw"):
            to_cgroup_v2.apply((DeviceRule(195, 3),), directory)
        os.close(directory)
        assert not inner.opens(3, tmp_path)
    finally:
        inner.close()


@pytest.mark.parametrize("beside", ["", "a process", "a cgroup"])
def test_a_scope_with_the_container_below_it(path, tmp_path, beside):
    """crun with systemd's cgroups: the program is on the scope. It is extended if nobody else is in the scope."""
    scope = Group(path.with_name(f"{path.name}.scope"), NULL)
    inner = Group(scope.path / "container")
    if beside != "a process":
        scope.process.kill()
        scope.process.wait()
    if beside == "a cgroup":
        (scope.path / "other").mkdir()
    directory = opened(inner)
    try:
        to_cgroup_v2.check(directory, (), ())
        if beside:
            with pytest.raises(GhError, match="^GH-405: a cgroup above the container's forbids c 195:3 rw"):
                to_cgroup_v2.apply((DeviceRule(195, 3),), directory)
            assert not inner.opens(3, tmp_path)
        else:
            to_cgroup_v2.apply((DeviceRule(195, 3),), directory)
            assert inner.opens(3, tmp_path) and not inner.opens(4, tmp_path)
    finally:
        os.close(directory)
        inner.close()
        if beside == "a cgroup":
            (scope.path / "other").rmdir()
        scope.close()


@pytest.mark.parametrize(
    "programs",
    [
        (ALLOW,),
        (),
        ((*permit([(195, 1, "r")]), *DENY),),
        (ALLOW, (*permit([(195, 1, "w")]), *DENY)),
        ((*permit([(226, 128, "rw"), (226, 129, "rw")]), *DENY),),
    ],
)
def test_gpus_that_are_not_granted(path, tmp_path, programs):
    group = Group(path, *programs)
    try:
        directory = opened(group)
        with pytest.raises(GhError, match="^GH-403: .* let it open (every GPU|195:1|226:129),"):
            to_cgroup_v2.check(directory, (0,), {(226, 129)})
        os.close(directory)
    finally:
        group.close()


def test_a_program_that_does_more(group):
    """One that calls the kernel (bpf_ktime_get_ns) cannot be read: refused, and left as it is."""
    group.attach((instruction(0x85, immediate=125), *ALLOW))
    before = group.programs()
    directory = opened(group)
    to_cgroup_v2.check(directory, (), ())
    with pytest.raises(GhError, match="^GH-404: .*calls a function.*gpu-hook-runtime"):
        to_cgroup_v2.apply((DeviceRule(195, 3),), directory)
    os.close(directory)
    assert group.programs()[-1] == before[-1]


def test_somebody_replaces_it_meanwhile(group, tmp_path, monkeypatch):
    """`runc update` may replace the program meanwhile. BPF_F_REPLACE names the old one, so that no rule is lost."""
    calls = []
    real = bpf.replace

    def late(cgroup: int, old: int, new: int, flags: int) -> None:
        if not calls:
            other = bpf.load((*permit([(195, 9, "rw")]), *DENY))
            real(cgroup, old, other, flags)
            os.close(other)
        calls.append(new)
        real(cgroup, old, new, flags)

    monkeypatch.setattr(bpf, "replace", late)
    directory = opened(group)
    to_cgroup_v2.apply((DeviceRule(195, 3),), directory)
    os.close(directory)
    assert len(calls) == 2
    assert group.opens(3, tmp_path) and group.opens(9, tmp_path) and not group.opens(4, tmp_path)


def test_what_the_verifier_says(group):
    with pytest.raises(OSError, match="BPF_PROG_LOAD|bpf") as failed:
        bpf.load((instruction(MOV_K, 0, immediate=7), instruction(EXIT)))
    assert "R0" in str(failed.value)


WITHOUT_RIGHTS = """
import sys
from oci_hook.apply import to_cgroup_v2
from oci_hook.core.plan import DeviceRule
from oci_hook.errors import GhError
directory = to_cgroup_v2.open_devices({pid})
try:
    to_cgroup_v2.{call}
except GhError as e:
    print(e)
"""


@pytest.mark.parametrize("call", ["check(directory, (), ())", "apply((DeviceRule(195, 3),), directory)"])
def test_a_process_that_may_not(group, call):
    """The hook runs in a user namespace, or without CAP_SYS_ADMIN and CAP_BPF."""
    code = WITHOUT_RIGHTS.format(pid=group.process.pid, call=call)
    dropped = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--reuid=12345", "--clear-groups"]
    command = [*dropped, "/usr/bin/python3", "-I", "-c", f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.startswith("GH-404: ") and "CAP_SYS_ADMIN" in done.stdout, done
    assert "gpu-hook-runtime" in done.stdout


def test_somebody_else_in_the_cgroup(group):
    with subprocess.Popen(["sleep", "100"]) as other:
        group.add(other.pid)
        try:
            with pytest.raises(GhError, match=f"^GH-403: .* process {other.pid};"):
                opened(group)
        finally:
            other.kill()


def test_nobody():
    with pytest.raises(GhError, match="^GH-405: "):
        to_cgroup_v2.open_devices(4_000_000)


def test_no_hierarchy(group):
    code = WITHOUT_RIGHTS.format(pid=group.process.pid, call="check(directory, (), ())").replace(
        "directory = to_cgroup_v2.open_devices", "from oci_hook.linux import cgroup; print(cgroup.open_v2"
    )
    code = code[: code.index("\ntry")] + ")"
    setup = f"umount -R /sys/fs/cgroup; {shlex.quote(sys.executable)} -c '{code}'"
    command = ["unshare", "-m", "--propagation", "private", "sh", "-ec", setup]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.stdout == "None\n", done
