"""An install that is given another state directory: not under living containers, and nothing stays in the old one."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oci_hook.config import settings_compile
from oci_hook.config.settings import load
from oci_hook.core import layout
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.pages import policy_page
from oci_hook.discovery.save import save_inventory
from oci_hook.engines import prefix as installs
from oci_hook.errors import GhError
from oci_hook.ledger import slot_files, store
from oci_hook.linux.proc import boot_id, process_life
from tests.conftest import Install

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="files of an install are root's")]

Act = Callable[[Install], object]
WAYS: dict[str, Act] = {
    "compile": lambda p: settings_compile.compile(str(p.prefix)),
    "install": lambda p: installs.lay(str(p.prefix)),
    "sim": lambda p: settings_compile.set_driver_root(str(p.prefix), "/"),
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
    before = [(prefix.prefix / file).read_text() for file in (layout.SETTINGS_JSON, layout.LAUNCHER_CONF)]
    if new == "link to other":
        (tmp_path / "other").mkdir()
        (tmp_path / "link").symlink_to("other")
    name(prefix, tmp_path / new.partition(" ")[0])
    with pytest.raises(GhError) as e:
        WAYS[way](prefix)
    (problem,) = e.value.problems
    assert problem.code == "GH-501" and "1 container(s) hold shares in" in problem.message and len(str(problem)) < 300
    assert f"keep state_dir: {str(prefix.state)[:80]}" in problem.message
    assert [(prefix.prefix / file).read_text() for file in (layout.SETTINGS_JSON, layout.LAUNCHER_CONF)] == before
    assert len(prefix.grants()) == 1 and load(str(prefix.prefix)).state_dir == str(prefix.state)


def test_one_directory_by_two_names_is_no_other(prefix: Install, tmp_path: Path) -> None:
    hold(prefix, os.getpid())
    (tmp_path / "link").symlink_to(prefix.state)
    name(prefix, tmp_path / "link")
    settings_compile.compile(str(prefix.prefix))
    assert len(prefix.grants()) == 1 and len(mounts(prefix)) == 1


@pytest.mark.parametrize("way", ["compile", "install"])
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
    for file in (layout.SETTINGS_YAML, layout.SETTINGS_JSON):
        text = (second / file).read_text().replace(f"{tmp_path}/third", str(prefix.state))
        (second / file).write_text(text)
    (prefix.state / layout.STATE_OWNER).write_text(f"{second}\n")
    hold(prefix, os.getpid())
    name(prefix, tmp_path / "other")
    settings_compile.compile(str(prefix.prefix))
    assert len(store.snapshot(str(prefix.state))) == 1 and len(mounts(prefix)) == 1


def test_a_ledger_that_cannot_be_read_may_hold_anything(prefix: Install, tmp_path: Path) -> None:
    one = hold(prefix, os.getpid())
    (prefix.state / f"ledger/{one.key}.json").write_text("{")
    name(prefix, tmp_path / "other")
    with pytest.raises(GhError, match="GH-303"):
        settings_compile.compile(str(prefix.prefix))
    assert load(str(prefix.prefix)).state_dir == str(prefix.state)
