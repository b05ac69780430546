"""An install that is given another state directory: not under living containers, and nothing stays in the old one."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oci_hook.config.settings import load, state_in_use
from oci_hook.core import layout
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.policy_page import policy_page
from oci_hook.discovery.save import save_inventory
from oci_hook.errors import GhError
from oci_hook.install import prefix as installs
from oci_hook.install import settings_edit
from oci_hook.ledger import slot_files, store
from oci_hook.linux.proc import boot_id, process_life
from testbed.containers import Bundle, Runc
from testbed.installs import Install

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="files of an install are root's")]

ASK = {"gpu-hook.io/memory": "1Gi"}
Act = Callable[[Install], object]
WAYS: dict[str, Act] = {
    "settings": lambda p: settings_edit.change(str(p.prefix)),
    "install": lambda p: installs.lay(str(p.prefix)),
    "sim": lambda p: settings_edit.set_driver_root(str(p.prefix), "/"),
}


def hold(prefix: Install, pid: int) -> Grant:
    uuid = prefix.inventory.gpus[0].uuid
    life = Life(boot_id(), creator=process_life(pid))
    one = Grant(store.grant_key("/run/runc", "c"), Identity("/run/runc", "c", "/b"), life, (Share(uuid, 1024, slot=1),))
    with store.open_ledger(str(prefix.state)) as ledger:
        ledger.put(one, policy_page(one, prefix.inventory))
    return one


def name(prefix: Install, state: Path) -> None:
    yaml = prefix.prefix / layout.SETTINGS_YAML
    lines = [line for line in yaml.read_text().splitlines() if not line.startswith("state_dir:")]
    yaml.write_text("\n".join([*lines, f"state_dir: {state}", ""]))


def mounts(prefix: Install) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {prefix.state}/" in line]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("new", ["other", "link to other"])
def test_not_while_a_container_holds_a_share(prefix: Install, tmp_path: Path, way: str, new: str) -> None:
    """It would run on, and its memory be given to another."""
    hold(prefix, os.getpid())
    before = (prefix.prefix / layout.STATE_IN_USE).read_text()
    if new == "link to other":
        (tmp_path / "other").mkdir()
        (tmp_path / "link").symlink_to("other")
    name(prefix, tmp_path / new.partition(" ")[0])
    with pytest.raises(GhError) as e:
        WAYS[way](prefix)
    (problem,) = e.value.problems
    assert problem.code == "GH-501" and "1 container(s) hold shares in" in problem.message and len(str(problem)) < 300
    assert f"keep state_dir: {str(prefix.state)[:80]}" in problem.message
    assert (prefix.prefix / layout.STATE_IN_USE).read_text() == before
    assert len(prefix.grants()) == 1 and state_in_use(str(prefix.prefix)) == str(prefix.state)


def test_one_directory_by_two_names_is_no_other(prefix: Install, tmp_path: Path) -> None:
    hold(prefix, os.getpid())
    (tmp_path / "link").symlink_to(prefix.state)
    name(prefix, tmp_path / "link")
    settings_edit.change(str(prefix.prefix))
    assert len(prefix.grants()) == 1 and len(mounts(prefix)) == 1


@pytest.mark.parametrize("way", ["settings", "install"])
def test_nothing_of_ours_stays_behind(prefix: Install, tmp_path: Path, way: str) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as creator:
        hold(prefix, creator.pid)
    assert len(mounts(prefix)) == 1  # of a container that is gone: its GPU's tmpfs stays for the next one
    (prefix.state / "foreign").write_text("x")
    name(prefix, tmp_path / "other")
    WAYS[way](prefix)
    assert mounts(prefix) == [] and sorted(os.listdir(prefix.state)) == ["foreign", "sim"]
    assert load(str(prefix.prefix)).state_dir == str(tmp_path / "other")
    save_inventory(load(str(prefix.prefix)), prefix.inventory)
    assert not slot_files.gpus(str(tmp_path / "other"))


def test_what_became_anothers_is_left(prefix: Install, tmp_path: Path) -> None:
    second = tmp_path / "second"
    installs.lay(str(second), state_dir=str(tmp_path / "third"))
    for file in (layout.SETTINGS_YAML, layout.STATE_IN_USE):
        text = (second / file).read_text().replace(f"{tmp_path}/third", str(prefix.state))
        (second / file).write_text(text)
    (prefix.state / layout.STATE_OWNER).write_text(f"{second}\n")
    hold(prefix, os.getpid())
    name(prefix, tmp_path / "other")
    settings_edit.change(str(prefix.prefix))
    assert len(store.snapshot(str(prefix.state))) == 1 and len(mounts(prefix)) == 1


def test_a_ledger_that_cannot_be_read_may_hold_anything(prefix: Install, tmp_path: Path) -> None:
    one = hold(prefix, os.getpid())
    (prefix.state / f"ledger/{one.key}.json").write_text("{")
    name(prefix, tmp_path / "other")
    with pytest.raises(GhError, match="GH-303"):
        settings_edit.change(str(prefix.prefix))
    assert state_in_use(str(prefix.prefix)) == str(prefix.state)


def test_nothing_starts_until_the_install_has_moved(
    prefix: Install, bundle: Bundle, runc: Runc, tmp_path: Path
) -> None:
    """The ledger of the new directory does not know the containers of the old one."""
    assert runc.create(bundle(ASK), prefix).returncode == 0
    text = (prefix.prefix / layout.SETTINGS_YAML).read_text()
    name(prefix, tmp_path / "other")
    advice = f"`gpu-hook settings set state_dir={tmp_path}/other`"
    refused = runc.create(bundle(ASK), prefix)
    assert refused.returncode == 1 and "GH-504: " in refused.stderr, refused.stderr
    assert f"this install still uses {prefix.state}"[:90] in refused.stderr and advice in refused.stderr
    with pytest.raises(GhError, match="GH-504"):
        load(str(prefix.prefix))
    assert runc.create(bundle(), prefix).returncode == 0  # one that asks for nothing
    assert not (tmp_path / "other").exists() and len(prefix.grants()) == 1
    with pytest.raises(GhError, match="GH-501: .* 1 container"):
        settings_edit.change(str(prefix.prefix), state_dir=str(tmp_path / "other"))
    (prefix.prefix / layout.SETTINGS_YAML).write_text(text)  # back again: in effect at once
    assert runc.create(bundle(ASK), prefix).returncode == 0
    runc.close()
    name(prefix, tmp_path / "other")
    settings_edit.change(str(prefix.prefix), state_dir=str(tmp_path / "other"))
    refused = runc.create(bundle(ASK), prefix)
    assert refused.returncode == 1 and "GH-301: " in refused.stderr  # its GPUs are not listed yet
    save_inventory(load(str(prefix.prefix)), prefix.inventory)
    assert (tmp_path / "other" / layout.STATE_OWNER).read_text() == f"{prefix.prefix}\n"


@pytest.mark.parametrize("left", ["", "no line end", "/other\n", None])
def test_an_install_that_does_not_say_what_it_uses_starts_nothing(prefix: Install, left: str | None) -> None:
    file = prefix.prefix / layout.STATE_IN_USE
    file.unlink() if left is None else file.write_text(left)
    with pytest.raises(GhError, match="GH-504: .* `gpu-hook settings set state_dir=/"):
        load(str(prefix.prefix))
    settings_edit.change(str(prefix.prefix), state_dir=str(prefix.state))
    assert load(str(prefix.prefix)).state_dir == str(prefix.state)
