"""Laying an install, laying it anew, taking it away: nothing of it stays, nothing of others goes."""

import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oci_hook.cli.main import cli
from oci_hook.config.settings import load
from oci_hook.core import layout
from oci_hook.errors import GhError
from oci_hook.install import files, settings_edit
from oci_hook.install import prefix as installs
from oci_hook.linux import lock
from testbed.containers import Bundle, Runc
from testbed.installs import Install

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files of an install are root's")


@pytest.fixture
def place(native: Path, tmp_path: Path) -> Path:
    return tmp_path / "prefix"


def lay(place: Path, **chosen: str) -> object:
    return installs.lay(str(place), state_dir=str(place.parent / "state"), **chosen)


def code(error: pytest.ExceptionInfo[GhError]) -> str:
    (problem,) = error.value.problems
    assert len(str(problem)) < 300
    return problem.code


def test_what_is_laid(place: Path) -> None:
    umask = os.umask(0o077)
    try:
        settings = installs.lay(str(place), state_dir=str(place.parent / "state"))
    finally:
        os.umask(umask)
    assert settings.runtime in ("/usr/sbin/runc", "/usr/bin/runc", "/usr/local/sbin/runc", "/usr/bin/crun")
    for path in sorted(place.rglob("*")):
        st = path.lstat()
        assert st.st_uid == 0 and not path.is_symlink(), path
        if path == place / layout.OPEN_DIR:  # plain users of containers write to what is mounted there
            assert st.st_mode & 0o7777 == 0o1777 and not os.listdir(path)
            continue
        assert not st.st_mode & 0o022, path
        if path == place / layout.CLOSED_DIR:  # and nobody else comes there
            assert st.st_mode & 0o7777 == 0o700
        elif path != place:  # containers map all of it as any user, whatever the umask was
            assert st.st_mode & 0o004 and (not path.is_dir() or st.st_mode & 0o001), path
    assert not list(place.rglob("*.new"))
    for program in ("gpu-hook-runtime", "oci-gpu-hook", "gpu-hook-boundary", "gpu-hook-probe"):
        assert os.access(place / "bin" / program, os.X_OK)
    skeleton = place / layout.CONTAINER_DIR
    assert sorted(str(p.relative_to(skeleton)) for p in skeleton.rglob("*")) == [
        "account",
        "driver",
        "driver/cuda",
        "driver/ml",
        "policy",
        *sorted(["share", *(f"share/{i}" for i in range(16)), "slot", *(f"slot/{i}" for i in range(16))]),
    ]
    package = place / layout.LIB_DIR / "oci_hook"
    assert (package / "runtime.py").exists() and (package / "hook.py").exists()
    assert {p.name for p in package.iterdir() if p.is_dir()} == {*installs.HOT_FOLDERS}
    assert len(list((place / layout.LIB_DIR).glob("*.pack"))) == 1


def test_folders_above_the_prefix_whatever_the_umask(native: Path, tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        installs.lay(str(tmp_path / "new/folders/prefix"), state_dir=str(tmp_path / "state"))
    finally:
        os.umask(umask)
    for name in ("new", "new/folders", "new/folders/prefix"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o755, name


def test_the_library_needs_nothing_that_is_not_there(place: Path) -> None:
    """Each module of the hot path is imported by the install's own Python, without this checkout and its packages."""
    lay(place)
    lib = place / layout.LIB_DIR
    files = sorted(p.relative_to(lib) for p in (lib / "oci_hook").rglob("*.py"))
    names = [str(f).removesuffix(".py").replace("/", ".").removesuffix(".__init__") for f in files]
    code = f"import sys; sys.path.insert(0, {str(lib)!r}); [__import__(n) for n in {names!r}]"
    subprocess.run(["/usr/bin/python3", "-I", "-S", "-B", "-W", "error", "-c", code], check=True)


def test_again_keeps_the_settings_and_renews_the_rest(place: Path) -> None:
    lay(place)
    yaml = place / layout.SETTINGS_YAML
    yaml.write_text(yaml.read_text().replace("placement: by-class", "placement: spread"))
    stale = place / layout.LIB_DIR / "oci_hook/core/gone.py"
    stale.write_text("")
    program = place / "bin/gpu-hook-runtime"
    program.write_bytes(b"old")
    old = program.stat().st_ino
    settings = installs.lay(str(place))
    assert settings.rules.placement == "spread"
    assert load(str(place)).rules.placement == "spread"
    assert not stale.exists()
    assert program.stat().st_ino != old and program.read_bytes() != b"old"
    with pytest.raises(GhError) as e:
        installs.lay(str(place), state_dir="/run/other")
    assert code(e) == "GH-504" and "state_dir" in str(e.value)


def test_again_fixes_what_an_older_one_laid(place: Path) -> None:
    """0.1.0 laid the account's folder 0755. What somebody put there while he could goes."""
    lay(place)
    closed, opened = place / layout.CLOSED_DIR, place / layout.OPEN_DIR
    closed.chmod(0o755)
    opened.chmod(0o755)
    (opened / "planted/deep").mkdir(parents=True)
    (opened / "link").symlink_to("/etc")
    installs.lay(str(place))
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700 and stat.S_IMODE(opened.stat().st_mode) == 0o1777
    assert os.listdir(opened) == [] and os.path.isdir("/etc")


def test_a_first_try_with_wrong_values_leaves_nothing(place: Path) -> None:
    with pytest.raises(GhError) as e:
        lay(place, runtime="/nowhere/runc")
    assert code(e) == "GH-503" and not place.exists()
    with pytest.raises(GhError) as e:
        lay(place, python="/bin/true/python")
    assert code(e) == "GH-501" and not place.exists()
    with pytest.raises(GhError) as e:
        lay(place, python="/bin/false")
    assert str(e.value).startswith("GH-501: python: /bin/false is not Python") and not place.exists()
    lay(place, runtime="/bin/true")
    with pytest.raises(GhError):  # what is there stays
        lay(place, runtime="/nowhere/runc")
    assert load(str(place)).runtime == "/bin/true"


@pytest.mark.parametrize("odd", ["/run/a\nb", "/run/a'\"b", "/run/a\udcff"])
@pytest.mark.parametrize("key", ["runtime", "python", "state_dir"])
def test_characters_that_no_line_of_settings_can_hold(place: Path, key: str, odd: str) -> None:
    with pytest.raises(GhError) as e:
        installs.lay(str(place), **{key: odd})
    assert code(e) == "GH-501" and str(e.value).startswith(f"GH-501: {key}: ") and "cannot hold" in str(e.value)
    assert not place.exists()
    with pytest.raises(GhError) as e:
        installs.lay(f"{place}{odd[4:]}x\n", state_dir=str(place.parent / "state"))
    assert code(e) == "GH-504" and "the prefix " in str(e.value) and os.listdir(place.parent) == []


def test_a_check_refuses_what_the_first_one_would(place: Path) -> None:
    """And writes nothing. An existing install is compared with what is asked for."""
    taken = place.parent / "taken"
    wrong: list[dict[str, str]] = [
        *({"python": path} for path in ("/nonexistent", "/tmp", "/bin/true")),
        *({"runtime": path} for path in ("/nonexistent", str(installs.native() / "gpu-hook-runtime"))),
        {"state_dir": "rel"},
    ]
    for chosen in wrong:
        with pytest.raises(GhError) as checked:
            installs.check(str(place), **{"state_dir": str(taken), **chosen})
        with pytest.raises(GhError) as laid:
            installs.lay(str(place), **{"state_dir": str(taken), **chosen})
        assert str(checked.value) == str(laid.value) and os.listdir(place.parent) == []
        code(checked)  # one line
    installs.lay(str(place), state_dir=str(taken))
    with pytest.raises(GhError, match="GH-501: state_dir: .* is that of the install in"):
        installs.check(f"{place}2", state_dir=str(taken))
    before = {path: path.stat().st_ino for path in place.rglob("*")}
    with pytest.raises(GhError, match="GH-504: .* says state_dir"):
        lay(place)
    assert {path: path.stat().st_ino for path in place.rglob("*")} == before
    assert installs.check(str(place)).state_dir == str(taken)


@pytest.mark.parametrize("name", ["bin/other", "lib/shim/mine.so", "lib/container/policy.txt", "notes"])
def test_a_folder_of_somebody_else_is_no_prefix(place: Path, name: str) -> None:
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_text("x")
    with pytest.raises(GhError) as e:
        lay(place)
    assert code(e) == "GH-504" and f"{place / name} is not gpu-hook's" in str(e.value)
    assert [p for p in place.rglob("*") if p.is_file()] == [place / name]


def test_a_prefix_that_is_no_absolute_path(native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for prefix in ("", ".", "some/where"):
        for call in (installs.lay, installs.remove):
            with pytest.raises(GhError) as e:
                call(prefix)
            assert code(e) == "GH-504" and "not an absolute path" in str(e.value)
        done = CliRunner().invoke(cli, ["install", "--no-engines", "--prefix", prefix])
        assert done.exit_code == 2 and "is not an absolute path" in done.output
    assert os.listdir(tmp_path) == []


def test_what_a_killed_one_left_can_be_removed(place: Path) -> None:
    lay(place)
    for name in (layout.SETTINGS_YAML, layout.STATE_IN_USE):
        (place / name).unlink()
    assert installs.remove(str(place)) == [] and not place.exists()


def test_what_a_killed_first_one_was_writing_is_ours(place: Path) -> None:
    """Its list before any install is there, and the settings after that."""
    cut = [place / f"{name}.21019.new" for name in (layout.INSTALLED, layout.SETTINGS_YAML)]
    for file in cut:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("half")
    other = place / f"{layout.INSTALLED}.mine.new"
    other.write_text("")
    with pytest.raises(GhError, match=f"{other} is not gpu-hook's"):
        lay(place)
    other.unlink()
    lay(place)
    assert all(file.exists() for file in cut)
    assert installs.remove(str(place)) == [] and not place.exists()


def test_two_at_once(place: Path) -> None:
    """Installs and removals of one prefix wait for each other, and nobody ever finds half a program."""
    lay(place)
    program = place / "bin/gpu-hook-runtime"
    whole = program.read_bytes()
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=lay, args=(place,)) for _ in range(4)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        assert program.read_bytes() == whole
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert not list(place.rglob("*.new"))

    def away() -> None:
        try:
            installs.remove(str(place))
        except GhError as e:
            assert "is no gpu-hook install" in str(e)

    mixed = [context.Process(target=target) for target in (away, lambda: lay(place), away, lambda: lay(place), away)]
    for worker in mixed:
        worker.start()
    for worker in mixed:
        worker.join()
    assert [worker.exitcode for worker in mixed] == [0] * 5
    if program.exists():
        assert installs.remove(str(place)) == []
    assert not place.exists()


def test_many_who_change_the_settings_at_once(place: Path) -> None:
    """Nobody's change is lost."""
    lay(place)

    def turns(key: str) -> None:
        for n in range(1, 31):
            settings_edit.change(str(place), **{key: str(n)})
            assert getattr(load(str(place)).rules, key) == n

    context = multiprocessing.get_context("fork")
    keys = ("memory_wait", "memory_turn", "memory_step", "max_shares_per_gpu")
    workers = [context.Process(target=turns, args=(key,)) for key in keys]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert {getattr(load(str(place)).rules, key) for key in keys} == {30} and not (place / installs.LOCK).exists()


def test_many_who_make_and_remove_one_prefix(place: Path) -> None:
    """The folder may vanish between any two steps of taking its lock."""

    def turns() -> None:
        for _ in range(200):
            with installs._alone(place):
                pass

    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=turns) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4 and not place.exists()


@pytest.mark.parametrize("where", ["/proc/none/prefix", "/dev/null"])
def test_a_prefix_where_none_can_be(where: str) -> None:
    with pytest.raises(GhError) as e:
        lay(Path(where))
    assert code(e) == "GH-504" and where.split("/prefix")[0] in str(e.value)


def test_not_built(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installs, "native", lambda: tmp_path / "none")
    with pytest.raises(GhError) as e:
        lay(place)
    assert code(e) == "GH-504" and "scripts/build" in str(e.value)
    assert not place.exists()


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_prefix_that_others_can_change(place: Path, mode: int) -> None:
    place.mkdir()
    place.chmod(mode)
    with pytest.raises(GhError) as e:
        lay(place)
    assert code(e) == "GH-504"


def test_a_prefix_below_a_folder_that_others_can_change(place: Path) -> None:
    """Else they put an install of their own there, whose programs the engines run as root."""
    top = place.parent / "top"
    top.mkdir()
    top.chmod(0o777)
    (place.parent / "link").symlink_to(top)
    for prefix in (top / "a/prefix", place.parent / "link/prefix"):
        with pytest.raises(GhError) as e:
            lay(prefix)
        assert code(e) == "GH-504" and f"{top} can be changed by others" in str(e.value)
    assert os.listdir(top) == []
    top.chmod(0o755)
    lay(top / "prefix")
    os.chown(top, 65534, 65534)
    with pytest.raises(GhError) as e:
        lay(top / "prefix")
    assert code(e) == "GH-504"


@pytest.mark.parametrize("key", ["state_dir", "driver_root", "runtime", "python"])
def test_settings_below_a_folder_that_others_can_change(place: Path, key: str) -> None:
    top = place.parent / "top"
    (top / "bin").mkdir(parents=True)
    for name in ("runc", "python3"):
        (top / "bin" / name).write_bytes(Path("/bin/true").read_bytes())
        (top / "bin" / name).chmod(0o755)
    value = {"runtime": top / "bin/runc", "python": top / "bin/python3"}.get(key, top / "bin")
    lay(place)
    yaml = place / layout.SETTINGS_YAML
    lines = [f"{key}: {value}" if line.startswith(f"{key}:") else line for line in yaml.read_text().splitlines()]
    yaml.write_text("\n".join(lines) + "\n")
    top.chmod(0o777)
    before = (place / layout.STATE_IN_USE).read_text()
    with pytest.raises(GhError) as e:
        installs.lay(str(place))
    assert f"{key}: {top} can be changed by others" in str(e.value)
    assert (place / layout.STATE_IN_USE).read_text() == before


HOLD = "import fcntl, os, sys, time; os.setuid({uid}); fd = os.open({path!r}, os.O_RDONLY | os.O_CREAT, 0o600);"
HOLD += "fcntl.flock(fd, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)"


@pytest.fixture
def hold() -> Iterator[Callable[..., int]]:
    """A process of that user that holds the flock of a file, and does not let go."""
    holders = []

    def start(path: Path, uid: int) -> int:
        code = HOLD.format(uid=uid, path=str(path)).replace(" | os.O_CREAT, 0o600" if path.is_dir() else "\0", "")
        holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        holders.append(holder)
        assert holder.stdout and holder.stdout.readline() == "held\n"
        return holder.pid

    yield start
    for holder in holders:
        holder.kill()
        holder.communicate()


def test_no_other_user_can_keep_an_install_waiting(native: Path, hold: Callable[..., int]) -> None:
    """He may lock whatever he may open of the prefix."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to other users
        os.chmod(folder, 0o755)
        place = Path(folder, "prefix")
        lay(place)
        for path in (place, place / "etc", place / layout.SETTINGS_YAML, place / "bin/gpu-hook-runtime"):
            hold(path, 65534)
        before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for another user"))
        signal.alarm(30)
        try:
            installs.lay(str(place))
            assert installs.remove(str(place)) == []
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)


def test_whoever_holds_the_lock_is_named(place: Path, hold: Callable[..., int], monkeypatch: Any) -> None:
    lay(place)
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.0)
    monkeypatch.setattr(lock, "LOCK_SECONDS", 0.2)
    pid = hold(place / installs.LOCK, 0)
    ways: list[Callable[[], object]] = [
        *(lambda: installs.lay(str(place)), lambda: installs.remove(str(place))),
        lambda: settings_edit.change(str(place), placement="spread"),
    ]
    for act in ways:
        with pytest.raises(GhError) as e:
            act()
        assert code(e) == "GH-504" and f"{place}/.lock is locked" in str(e.value) and f"process {pid};" in str(e.value)
    assert (place / "bin/gpu-hook-runtime").exists()


def test_a_prefix_that_is_a_file(place: Path) -> None:
    place.write_text("")
    with pytest.raises(GhError) as e:
        lay(place)
    assert code(e) == "GH-504"


def test_remove_leaves_nothing_of_ours(place: Path) -> None:
    lay(place)
    for name in (layout.CLUSTER_KEYS, layout.CLUSTER_SETTINGS):  # the reporter's; a later install would take these keys
        (place / name).write_text("{}")
    assert installs.remove(str(place)) == []
    assert os.listdir(place.parent) == []
    with pytest.raises(GhError) as e:
        installs.remove(str(place))
    assert code(e) == "GH-504"


def test_remove_leaves_what_is_not_ours(place: Path) -> None:
    lay(place)
    (place / "bin/other").write_text("x")
    (place / "notes").write_text("x")
    left = installs.remove(str(place))
    assert left == [str(place / "bin"), str(place / "bin/other"), str(place / "notes")]
    assert (place / "bin/other").read_text() == "x"


def test_remove_takes_what_the_list_names(place: Path) -> None:
    """Also of an earlier version; and nothing that others put beside it."""
    lay(place)
    listed = place / layout.INSTALLED
    (place / layout.LIB_DIR / "oci_hook/core/gone.py").write_text("")
    (place / "../aside").write_text("x")
    listed.write_text(f"{listed.read_text()}{layout.LIB_DIR}/oci_hook/core/gone.py\n../aside\n{place.parent}/aside\n")
    others = [place / name for name in ("lib/shim/mine.so", "lib/private/notes", "lib/gpu-hook/mine.py")]
    for other in others:
        other.write_text("x")
    left = installs.remove(str(place))
    assert [path for path in left if not Path(path).is_dir()] == sorted(map(str, others))
    assert (place.parent / "aside").exists() and not (place / layout.LIB_DIR / "oci_hook").exists()


@pytest.mark.parametrize(
    "name", ["lib", "lib/shim", "lib/gpu-hook", "lib/gpu-hook/oci_hook/core", "lib/private", "bin", "etc"]
)
def test_a_link_of_roots_for_a_folder_of_ours_is_neither_followed_nor_emptied(
    place: Path, tmp_path: Path, name: str
) -> None:
    lay(place)
    (place / name).rename(tmp_path / "elsewhere")
    (place / name).symlink_to(tmp_path / "elsewhere")
    before = {path: path.read_bytes() for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()}
    for path in before:
        path.write_bytes(b"of somebody else")
    for again in (lay, lambda place: installs.check(str(place))):
        with pytest.raises(GhError, match=f"^GH-504: {place / name} is a link") as e:
            again(place)
        assert len(str(e.value)) < 300
    assert str(place / name) in installs.remove(str(place))
    assert {path.read_bytes() for path in before} == {b"of somebody else"}


def test_a_directory_that_is_no_install_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/shim").mkdir()
    with pytest.raises(GhError) as e:
        installs.remove(str(tmp_path))
    assert code(e) == "GH-504" and (tmp_path / "lib/shim").is_dir()


@pytest.mark.root
def test_remove_while_a_container_holds_a_share(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    assert runc.create(bundle({"gpu-hook.io/memory": "1Gi"}), prefix).returncode == 0
    with pytest.raises(GhError) as e:
        installs.remove(str(prefix.prefix))
    assert code(e) == "GH-504" and runc.ids[-1][:40] in str(e.value)
    assert len(prefix.grants()) == 1
    assert installs.remove(str(prefix.prefix), force=True) == []
    assert runc.living() == {runc.ids[-1]}  # it runs on with what it has mounted


def test_a_running_container_keeps_its_library(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    assert runc.create(bundle({"gpu-hook.io/memory": "1Gi"}), prefix).returncode == 0
    id = runc.ids[-1]
    assert runc("start", id).returncode == 0
    before = runc.exec(id, "md5sum", "/usr/lib64/libcuda.so.1").stdout
    mounts = Path(f"/proc/{runc.pid(id)}/mountinfo").read_text()
    old = prefix.prefix / "lib/container"  # as 0.1.0 had it: what is mounted on would take its mount along
    (old / "driver").mkdir(parents=True)
    installs.lay(str(prefix.prefix))
    after = Path(f"/proc/{runc.pid(id)}/mountinfo").read_text()
    assert after.replace("//deleted", "") == mounts and (old / "driver").is_dir()
    (prefix.prefix / "lib/shim/libcuda.so.1").write_text("a newer one")
    assert runc.exec(id, "md5sum", "/usr/lib64/libcuda.so.1").stdout == before
    assert stat.S_ISREG((prefix.prefix / "lib/shim/libcuda.so.1").stat().st_mode)
