"""`gpu-hook sim up|down` and `gpus` on an install: settings, inventory, refusals."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpu_hook_simulator import driver_root
from oci_hook.cli.main import cli
from oci_hook.config.settings import load
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.policy_page import policy_page
from oci_hook.discovery import char_links
from oci_hook.errors import NodeError
from oci_hook.install import settings_edit
from oci_hook.install.settings_template import default_settings_yaml
from oci_hook.ledger import inventory, store
from oci_hook.linux.proc import boot_id, process_life

REAL_ROOT = "/srv/driver"


class Install:
    def __init__(self, place: Path) -> None:
        self.prefix = place / "prefix"
        (self.prefix / "etc").mkdir(parents=True)
        (place / "state").mkdir(mode=0o700)
        runtime = place / "runc"
        runtime.write_text("#!/bin/sh\n")
        runtime.chmod(0o755)
        text = default_settings_yaml(
            prefix=str(self.prefix), runtime=str(runtime), driver_root=REAL_ROOT, state_dir=str(place / "state")
        )
        self.yaml = self.prefix / "etc/settings.yaml"
        self.yaml.write_text(text)
        self.settings = settings_edit.change(str(self.prefix))

    def run(self, *args: str, status: int = 0) -> str:
        r = CliRunner().invoke(cli, [*args, "--prefix", str(self.prefix)], catch_exceptions=False)
        assert r.exit_code == status, r.output
        return r.output

    def data(self, *args: str, status: int = 0) -> Any:
        return json.loads(self.run(*args, "--json", status=status))

    def grant(self, share: Share) -> None:
        life = Life(boot_id(), creator=process_life(os.getpid()))
        grant = Grant(store.grant_key("/run/runc", "box"), Identity("/run/runc", "box", "/b"), life, (share,))
        with store.open_ledger(self.settings.state_dir) as ledger:
            ledger.put(grant, policy_page(grant, inventory.load(load(str(self.prefix)))))


@pytest.fixture
def install(tmp_path: Path, simulated: Path) -> Install:
    return Install(tmp_path)


@pytest.mark.root
@pytest.mark.parametrize("before", ["nothing", "0755 from 0.1.0", "other things in it"])
def test_other_users_of_the_machine_reach_no_gpu(install: Install, before: str) -> None:
    """A process with a GPU may write to its file: only containers, by bind mounts, and root."""
    state = Path(install.settings.state_dir)
    if before == "nothing":
        state.rmdir()
    else:
        state.chmod(0o755)
        (state / ("events" if "0755" in before else "other")).touch()
        (state / "owner").write_text(f"{install.prefix}\n")  # the other things came later
    umask = os.umask(0)
    try:
        install.run("sim", "up")
    finally:
        os.umask(umask)
    gpu = state / "sim/gpus/0"
    assert stat.S_IMODE((state / "sim").stat().st_mode) == 0o700
    assert stat.S_IMODE(state.stat().st_mode) == (0o755 if "other" in before else 0o700)
    top = install.prefix.parent  # the child starts here, as if pytest's folders were open to all
    code = f"import os; os.chdir({str(top)!r}); os.setuid(65534); open('state/sim/gpus/0', 'r+b')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert gpu.exists() and "PermissionError" in done.stderr, done


def test_up_shows_gpus_and_down_undoes_it(install: Install) -> None:
    before = install.yaml.read_text()
    said = install.run("sim", "up", "--gpus", "2", "--memory", "2Gi")
    assert all("simulated" in line for line in said.splitlines())
    root = install.prefix / "sim/root"
    assert install.yaml.read_text() == before.replace(REAL_ROOT, str(root))
    assert load(str(install.prefix)).driver_root == str(root)
    table = install.run("gpus")
    assert "simulated" in table.splitlines()[0] and table.count("Simulated GPU 2 GiB") == 2
    assert install.run("sim", "down").startswith("simulated GPUs removed")
    assert install.yaml.read_text() == before
    assert not (install.prefix / "sim").exists()
    assert os.listdir(install.settings.state_dir) == ["owner"]
    assert "there are no simulated GPUs" in install.run("sim", "down")


@pytest.mark.root
def test_device_nodes_are_made_on_request_and_go_with_the_gpus(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers in user namespaces get the machine's nodes. One that is there already stays."""
    nodes = [(str(tmp_path / f"nvidia{minor}"), 195, minor) for minor in range(3)]
    monkeypatch.setattr(char_links, "nodes", lambda found: nodes)
    os.mknod(nodes[0][0], stat.S_IFCHR | 0o600, os.makedev(195, 0))
    install.run("sim", "up")
    assert not os.path.exists(nodes[1][0])
    for again in ("up", "down"):
        install.run("sim", "up", "--nodes")
        for path, major, minor in nodes:
            assert char_links.is_device(path, major, minor) and os.access(path, os.R_OK)
        assert [stat.S_IMODE(os.stat(path).st_mode) for path, _, _ in nodes] == [0o600, 0o666, 0o666]
        install.run("sim", again)
        assert [os.path.exists(path) for path, _, _ in nodes] == [True, False, False]


@pytest.mark.parametrize(
    ("words", "version", "cuda"),
    [
        ((), "550.0.0", 12040),
        (("--driver", "470"), "470.0.0", 11040),
        (("--driver", "580.65"), "580.65.0", 13000),
        (("--driver", "615.71.05"), "615.71.05", 13040),
        (("--driver", "615", "--limits", "misc"), "615.0.0", 13040),
    ],
)
def test_a_driver_of_that_version(install: Install, words: tuple[str, ...], version: str, cuda: int) -> None:
    assert f"simulated driver {version} in" in install.run("sim", "up", *words)
    known = inventory.load(load(str(install.prefix)))
    assert known.driver_version == version
    libraries = sorted(file.name for file in Path(install.prefix, "sim/root").rglob("*.so.*.*"))
    assert libraries == [f"libcuda.so.{version}", f"libnvidia-ml.so.{version}"]
    head = Path(install.settings.state_dir, "sim/gpus/0").read_bytes()[:512]
    assert int.from_bytes(head[248:252], "little") == cuda
    by = {"--limits": 2}.get(words[-2] if words else "", 1 if version > "615" else 0)
    assert int.from_bytes(head[432:436], "little") == by


@pytest.mark.parametrize("version", ["", "6", "600", "615.", "615.1.2.3", "615.x", "٦15", "-615", "615.1234"])
def test_a_driver_that_there_is_not(install: Install, version: str) -> None:
    said = install.run("sim", "up", "--driver", version, status=1)
    assert "GH-101" in said and "known drivers are" in said
    assert not (install.prefix / "sim").exists()


def test_a_slow_gpu_is_known_as_one(install: Install) -> None:
    install.run("sim", "up", "--time-scale", "20")
    assert [gpu["time_scale"] for gpu in install.data("gpus")["gpus"]] == [20]
    assert [c.time_scale for c in inventory.load(load(str(install.prefix))).gpus] == [20]
    install.run("sim", "up", "--time-scale", "0", status=2)


def test_faults_are_set_and_cleared(install: Install) -> None:
    assert "no simulated GPU" in install.run("sim", "fault", status=1)
    install.run("sim", "up", "--gpus", "2")
    gpu = Path(install.settings.state_dir) / "sim/gpus/1"
    options = "--fail-every", "7", "--fail-code", "2", "--block-every", "3", "--nvml-without", "processes", "--lost"
    said = install.data("sim", "fault", "--gpu", "1", *options)
    assert said["gpus"] == [1] and said["faults"]["fail_every"] == 7
    words = [int.from_bytes(gpu.read_bytes()[at : at + 4], "little") for at in driver_root.FAULTS.values()]
    assert words == [7, 2, 3, 50000, 0, 2, 1]
    assert install.run("sim", "fault").splitlines() == [f"simulated GPU {n}: no faults" for n in (0, 1)]
    assert gpu.read_bytes()[336:360] == bytes(24) and gpu.read_bytes()[428:432] == bytes(4)


def test_data(install: Install) -> None:
    said = install.data("sim", "up", "--gpus", "3", "--memory", "1Gi")
    assert [gpu["minor"] for gpu in said["gpus"]] == [0, 1, 2]
    assert len({gpu["uuid"] for gpu in said["gpus"]}) == 3
    assert all(gpu["uuid"].startswith("GPU-51de") for gpu in said["gpus"])
    listed = install.data("gpus")
    assert listed["simulated"] and [c["uuid"] for c in listed["gpus"]] == [c["uuid"] for c in said["gpus"]]
    assert install.data("sim", "down") == {"removed": True, "driver_root": REAL_ROOT}


def test_after_a_reboot_the_gpus_have_the_same_uuids(install: Install) -> None:
    """A reboot empties the state directory, which is a tmpfs."""
    command = ["sim", "up", "--gpus", "2"]
    first = [gpu["uuid"] for gpu in install.data(*command)["gpus"]]
    shutil.rmtree(f"{install.settings.state_dir}/sim")
    assert [gpu["uuid"] for gpu in install.data(*command)["gpus"]] == first
    install.data("sim", "down")
    assert [gpu["uuid"] for gpu in install.data(*command)["gpus"]] == first and len(set(first)) == 2
    assert [gpu["uuid"] for gpu in install.data(*command)["gpus"]] != first


def test_up_again_makes_new_gpus_and_remembers_the_first_root(install: Install) -> None:
    first = install.data("sim", "up")["gpus"][0]["uuid"]
    assert install.data("sim", "up", "--gpus", "2")["gpus"][0]["uuid"] != first
    assert len(install.data("gpus")["gpus"]) == 2
    assert install.data("sim", "down")["driver_root"] == REAL_ROOT


def test_containers_on_the_gpus_keep_them(install: Install) -> None:
    gpu = install.data("sim", "up", "--memory", "2Gi")["gpus"][0]
    install.grant(Share(gpu["uuid"], 512, compute=30, slot=1))
    [row] = [line for line in install.run("gpus").splitlines() if "Simulated GPU" in line]
    assert row.split()[-3:] == ["512Mi", "30%", "1"]
    assert install.data("gpus")["gpus"][0]["granted_mib"] == 512
    for command in ("up", "down"):
        error = install.data("sim", command, status=1)["errors"][0]
        assert error["code"] == "GH-306" and "box" in error["message"] and f"sim {command} --force" in error["message"]
    assert install.data("gpus")["gpus"][0]["uuid"] == gpu["uuid"]
    shared = Path(install.settings.state_dir, "share")
    assert shared.exists()
    install.run("sim", "down", "--force")
    assert not (install.prefix / "sim").exists() and not shared.exists()


@pytest.mark.parametrize("memory", ["0", "4G", "much", "-1", "99999Ti"])
def test_memory_that_is_no_size(install: Install, memory: str) -> None:
    assert install.data("sim", "up", f"--memory={memory}", status=1)["errors"][0]["code"] == "GH-101"
    assert not (install.prefix / "sim").exists()


@pytest.mark.parametrize("name", ["a user", "a:b", "a;b"])
def test_a_prefix_that_no_loader_could_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    odd = Install(tmp_path / name)
    assert "GH-306" in odd.run("sim", "up", status=1)
    assert not (odd.prefix / "sim").exists()


def test_nothing_stays_when_up_fails(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    before = install.yaml.read_text()
    monkeypatch.setattr("gpu_hook_simulator.driver_root.native_parts", lambda: install.prefix)
    error = install.data("sim", "up", status=1)["errors"][0]
    assert error["code"] == "GH-306" and "scripts/build" in error["message"]
    assert install.yaml.read_text() == before
    assert not (install.prefix / "sim").exists()


def test_without_an_install(tmp_path: Path) -> None:
    for command in (["sim", "up"], ["sim", "down"], ["gpus"]):
        r = CliRunner().invoke(cli, [*command, "--prefix", str(tmp_path)])
        assert r.exit_code == 1 and "GH-501" in r.output


def test_gpus_before_the_first_refresh_and_without_a_driver(install: Install) -> None:
    assert "GH-301" in install.run("gpus", status=1)
    assert "GH-302" in install.run("gpus", "--refresh", status=1)


def test_gpus_refresh_after_the_gpus_changed(install: Install) -> None:
    install.run("sim", "up")
    (Path(install.settings.state_dir) / "inventory.json").unlink()
    with pytest.raises(NodeError, match="GH-301"):
        inventory.load(load(str(install.prefix)))
    assert "Simulated GPU" in install.run("gpus", "--refresh")
    inventory.load(load(str(install.prefix)))
