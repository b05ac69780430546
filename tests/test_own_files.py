"""An install whose files others than root could change is not used: each start checks what it loads."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from oci_hook.errors import SettingsError
from oci_hook.install import settings_edit
from testbed.containers import Bundle, Runc
from testbed.installs import Install

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
NOBODY = 65534
ASK = {"gpu-hook.io/memory": "1Gi"}


def pack(install: Install) -> Path:
    (found,) = (install.prefix / "lib/gpu-hook").glob("*.pack")
    return found


def without_pack(install: Install) -> Path:
    """Sources are imported where there is no pack for this Python."""
    pack(install).unlink()
    return install.prefix / "lib/gpu-hook/oci_hook"


FILES: dict[str, tuple[Callable[[Install], Path], str]] = {
    "settings": (lambda i: i.prefix / "etc/settings.yaml", "GH-501"),
    "pack": (pack, "GH-504"),
    "folder of the pack": (lambda i: i.prefix / "lib/gpu-hook", "GH-504"),
    "module": (lambda i: without_pack(i) / "core/plan.py", "GH-504"),
    "folder of modules": (lambda i: without_pack(i) / "ledger", "GH-504"),
}


def writable_by_group(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o020)


def writable_by_all(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o002)


def somebody_elses(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY)


@pytest.mark.parametrize("how", [writable_by_group, writable_by_all, somebody_elses])
@pytest.mark.parametrize("name", FILES)
def test_not_used(prefix: Install, bundle: Bundle, runc: Runc, name: str, how: Callable[[Path], None]) -> None:
    which, code = FILES[name]
    folder = bundle(ASK)
    before = (folder / "config.json").read_bytes()
    how(which(prefix))
    log = folder / "log"
    done = runc.create(folder, prefix, flags=("--log", str(log), "--log-format=json"))
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and f"{code}: " in done.stderr, done
    assert json.loads(log.read_text())["msg"].startswith(f"{code}: ")
    assert (folder / "config.json").read_bytes() == before and not (runc.root / runc.ids[-1]).exists()


def test_used_as_laid(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    assert runc.create(bundle(ASK), prefix).returncode == 0
    without_pack(prefix)
    assert runc.create(bundle(ASK), prefix).returncode == 0


@pytest.mark.parametrize("how", [writable_by_group, somebody_elses])
def test_settings_that_others_write_are_not_changed(prefix: Install, how: Callable[[Path], None]) -> None:
    how(prefix.prefix / "etc/settings.yaml")
    with pytest.raises(SettingsError, match="GH-501: .* can be changed by others than root"):
        settings_edit.change(str(prefix.prefix))
