"""One install per state directory: a second one is refused, and an uninstall leaves what is another's."""

import os
import stat
import threading
from pathlib import Path

import pytest

from oci_hook.config.settings import load, state_in_use
from oci_hook.core import layout
from oci_hook.discovery.save import save_inventory
from oci_hook.errors import GhError, SettingsError
from oci_hook.install import prefix as installs
from oci_hook.install import settings_edit, state_owner
from oci_hook.ledger import inventory, slot_files
from testbed.installs import Install, make_inventory

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="files of an install are root's")]


@pytest.fixture
def state(native: Path, tmp_path: Path) -> Path:
    return tmp_path / "state"


def lay(prefix: Path, state: Path) -> None:
    installs.lay(str(prefix), state_dir=str(state))


def test_a_second_install_is_refused_and_leaves_nothing(state: Path, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    lay(a, state)
    assert (state / "owner").read_text() == f"{a}\n"
    assert stat.S_IMODE((state / "owner").stat().st_mode) == 0o600 and stat.S_IMODE(state.stat().st_mode) == 0o700
    (tmp_path / "link").symlink_to(state)
    for named in (state, tmp_path / "link"):
        with pytest.raises(GhError) as e:
            lay(b, named)
        assert f"install in {a};" in str(e.value) and len(str(e.value)) <= 300
        assert not b.exists()
    lay(a, state)  # the first one again
    assert installs.remove(str(a)) == [] and not state.exists()
    lay(b, state)


def test_settings_that_name_anothers_are_refused(state: Path, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    lay(a, state)
    lay(b, tmp_path / "other")
    yaml = b / layout.SETTINGS_YAML
    yaml.write_text(yaml.read_text().replace(f"{tmp_path}/other", str(state)))
    with pytest.raises(SettingsError, match=rf"GH-501: .*yaml:\d+: state_dir: .* install in {a};"):
        settings_edit.change(str(b))
    assert state_in_use(str(b)) == f"{tmp_path}/other"
    with pytest.raises(SettingsError, match="GH-504"):
        load(str(b))


def test_after_a_reboot_it_is_whose_gpus_are_listed_first(prefix: Install, tmp_path: Path) -> None:
    """tmpfs is empty then, and without a list of the GPUs no container starts."""
    (prefix.state / "owner").unlink()
    save_inventory(prefix.settings, prefix.inventory)
    second = prefix.settings.replace(prefix=str(tmp_path / "b"))
    with pytest.raises(SettingsError, match="GH-504"):
        save_inventory(second, make_inventory(tmp_path / "driver2", tmp_path / "state2"))
    assert inventory.load(prefix.settings) == prefix.inventory


@pytest.mark.parametrize("how", ["gone", "moved on", "torn", "never written"])
def test_what_nobody_uses_may_be_taken_over(state: Path, tmp_path: Path, how: str) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    lay(a, state)
    if how == "gone":
        installs._remove_files(a)
    elif how == "moved on":
        yaml = a / layout.SETTINGS_YAML
        yaml.write_text(yaml.read_text().replace(str(state), f"{tmp_path}/new"))
        settings_edit.change(str(a))
    elif how == "torn":
        (state / "owner").write_text(str(a)[:-1])
    else:
        (state / "owner").unlink()
    lay(b, state)
    assert (state / "owner").read_text() == f"{b}\n"


def test_half_an_install_still_owns(state: Path, tmp_path: Path) -> None:
    lay(tmp_path / "a", state)
    (tmp_path / "a" / layout.STATE_IN_USE).write_text("damaged")
    with pytest.raises(GhError, match="GH-50"):
        lay(tmp_path / "b", state)


def test_an_uninstall_leaves_what_is_anothers(prefix: Install, tmp_path: Path) -> None:
    """Two installs of 0.1.0 could share a directory: who looked at the GPUs last has it now."""
    second = tmp_path / "second"
    lay(second, tmp_path / "other")
    for name in (layout.SETTINGS_YAML, layout.STATE_IN_USE):
        file = second / name
        file.write_text(file.read_text().replace(f"{tmp_path}/other", str(prefix.state)))
    before = sorted(os.listdir(prefix.state))
    gpus = prefix.state / "sim/gpus"
    assert installs.remove(str(second), simulated=[second / "sim/root", gpus]) == []
    assert not second.exists()
    assert sorted(os.listdir(prefix.state)) == before and sorted(os.listdir(gpus)) == ["0", "1"]
    assert inventory.load(prefix.settings) == prefix.inventory
    assert installs.remove(str(prefix.prefix), simulated=[gpus]) == [] and not prefix.state.exists()


def test_of_two_at_once_one_wins(state: Path, tmp_path: Path) -> None:
    told: list[str] = []

    def install(name: str) -> None:
        try:
            lay(tmp_path / name, state)
            told.append("")
        except GhError as e:
            told.append(str(e))

    threads = [threading.Thread(target=install, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    owner = Path((state / "owner").read_text().strip())
    assert sorted(map(bool, told)) == [False, True] and f"install in {owner};" in max(told)
    assert sorted(p.name for p in tmp_path.iterdir()) == [owner.name, "state"]


def test_an_open_directory_of_ours_is_closed_and_others_are_left(state: Path, tmp_path: Path) -> None:
    state.mkdir()
    state.chmod(0o755)
    lay(tmp_path / "a", state)
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    (state / "other").mkdir()  # put there later
    state.chmod(0o755)
    lay(tmp_path / "a", state)
    assert stat.S_IMODE(state.stat().st_mode) == 0o755
    state_owner.release(str(tmp_path / "a"), str(state))
    assert os.listdir(state) == ["other"]


@pytest.mark.parametrize("name", ["other", ".hidden", "ledger.bak", "\n", "x" * 255])
def test_a_directory_of_somebody_else_is_refused(state: Path, tmp_path: Path, name: str) -> None:
    """Such as /etc or /home: an uninstall would remove `events` and `sim` there."""
    (state / name).mkdir(parents=True)
    (state / "events").write_text("theirs")
    (tmp_path / "link").symlink_to(state)
    before = sorted(os.listdir(state))
    for named in (state, tmp_path / "link"):
        with pytest.raises(GhError) as e:
            lay(tmp_path / "a", named)
        (problem,) = e.value.problems
        assert problem.code == "GH-504" and "is not empty and not gpu-hook's (it has " in problem.message
        with pytest.raises(GhError, match="GH-504: state_dir .* is not empty") as e:
            state_owner.claim(str(tmp_path / "a"), str(named))
        assert len(str(e.value)) < 300 and "\n" not in str(e.value)
    assert sorted(os.listdir(state)) == before and not (tmp_path / "a").exists()
    assert stat.S_IMODE(state.stat().st_mode) == 0o755


def test_an_owner_file_that_is_not_ours_lets_nobody_in(state: Path, tmp_path: Path) -> None:
    state.mkdir()
    (state / "other").touch()
    for said in ("", "somebody", f"{tmp_path}/gone\n", f"{tmp_path}/a"):
        (state / "owner").write_text(said)
        with pytest.raises(GhError, match="GH-504"):
            lay(tmp_path / "a", state)
    (state / "owner").write_text(f"{tmp_path}/a\n")
    lay(tmp_path / "a", state)


@pytest.mark.parametrize("place", ["state/b", "state/deep/er", "state/ledger", "a/state", "a/lib/gpu-hook/x", "link/b"])
@pytest.mark.parametrize("used", [False, True])
def test_a_directory_inside_another_install_is_refused(state: Path, tmp_path: Path, place: str, used: bool) -> None:
    lay(tmp_path / "a", state)
    if used:
        (state / "ledger").mkdir()
    (tmp_path / "link").symlink_to(state)
    with pytest.raises(GhError, match="GH-504.* is inside the (state directory|install) /"):
        lay(tmp_path / "b", tmp_path / place)
    assert not (tmp_path / "b").exists()
    assert installs.remove(str(tmp_path / "a")) == [] and not state.exists()


def test_inside_its_own_prefix_it_may_be(state: Path, tmp_path: Path) -> None:
    for _ in range(2):
        lay(tmp_path / "a", tmp_path / "a/state")
    assert installs.remove(str(tmp_path / "a")) == [] and not (tmp_path / "a").exists()


def test_an_uninstall_leaves_what_is_not_ours_in_it(prefix: Install) -> None:
    top = prefix.state / "share"
    slot_files.ready(str(prefix.state), "GPU-x")
    (top / "theirs/deep").mkdir(parents=True)
    (top / "file").write_text("x")
    (prefix.state / "notes").write_text("x")
    left = installs.remove(str(prefix.prefix), simulated=[prefix.state / "sim/gpus"])
    assert left == [str(prefix.state / "notes"), str(top / "file"), str(top / "theirs")]
    assert sorted(os.listdir(top)) == ["file", "theirs"] and sorted(os.listdir(prefix.state)) == ["notes", "share"]
    assert not prefix.prefix.exists()


def test_a_place_where_none_can_be_made(state: Path, tmp_path: Path) -> None:
    with pytest.raises(GhError, match="GH-303: /proc/x: No such file or directory; choose another state_dir"):
        lay(tmp_path / "a", Path("/proc/x"))
    assert not (tmp_path / "a").exists()
