"""`gpu-hook gpus --probe` on simulated GPUs."""

import os
import time
from pathlib import Path

from oci_hook.config.settings import load
from oci_hook.core.gpu_page import tiers_of
from oci_hook.core.grant import Share
from oci_hook.core.inventory import Inventory
from oci_hook.core.tiers import MEMOPS
from oci_hook.discovery import survey_tiers
from oci_hook.ledger import inventory
from oci_hook.ledger import tier_file as seen_tiers
from simulator.tests.test_cli import Install
from simulator.tests.test_cli import install as install

SCALE = "5"  # a machine with two busy cores keeps up with a GPU this slow


def the_inventory(install: Install) -> Inventory:
    return inventory.load(load(str(install.prefix)))


def test_stream_memory_operations_count_by_what_they_do(install: Install) -> None:
    install.run("sim", "up", "--time-scale", SCALE)
    assert install.data("gpus")["gpus"][0]["tier"] is None
    for _ in range(3):  # on a busy machine the probe may not get enough time
        (gpu,) = install.data("gpus", "--probe")["gpus"]
        found = gpu["tier"]
        if found["name"] == "0.5":
            break
    assert found["name"] == "0.5", found
    assert found["memops"]["resume_us"] > 0
    settings = load(str(install.prefix))
    assert install.data("gpus", "--refresh")["gpus"][0]["tier"] == found
    assert seen_tiers.usable(settings, the_inventory(install)) == {gpu["uuid"]: MEMOPS}
    install.run("sim", "down")
    assert os.listdir(settings.state_dir) == ["owner"]


def test_findings_expire(install: Install) -> None:
    """A finding holds for one driver version, boot and GPU."""
    install.run("sim", "up")
    there, settings = the_inventory(install), load(str(install.prefix))
    seen = {"memops": {"held": True, "resumed": True, "written": True, "resume_us": 9.0, "beside": 1.0}}
    survey_tiers.save(settings, there, {there.gpus[0].uuid: seen, "GPU-gone": seen})
    assert list(seen_tiers.load(settings, there)) == [there.gpus[0].uuid]
    assert "0.5" in install.run("gpus").splitlines()[2].split()
    assert seen_tiers.load(settings, there.replace(boot_id="another")) == {}
    assert seen_tiers.load(settings, there.replace(driver_version="1")) == {}
    file = Path(settings.state_dir) / "tiers.json"
    file.chmod(0o666)
    assert seen_tiers.load(settings, there) == {}, "anybody could have written it"
    for damage in (b"", b"[]", b'{"format": 1}', b"\xff"):
        file.write_bytes(damage)
        file.chmod(0o644)
        assert seen_tiers.load(settings, there) == {}
    assert install.data("gpus")["gpus"][0]["tier"] is None


def test_a_gpu_with_containers_is_left_alone(install: Install) -> None:
    install.run("sim", "up")
    install.grant(Share(the_inventory(install).gpus[0].uuid, 1024, 10, 100))
    assert "warning: GH-310" in install.run("gpus", "--probe")
    assert install.data("gpus")["gpus"][0]["tier"] is None


def test_a_driver_that_hangs_is_given_up(install: Install, tmp_path: Path) -> None:
    """It hangs in dlopen, which waits for a writer of the FIFO."""
    install.run("sim", "up")
    there = the_inventory(install)
    os.mkfifo(tmp_path / "libcuda")
    begin = time.monotonic()
    assert (
        "no answer" in survey_tiers.probe(there.replace(libcuda=str(tmp_path / "libcuda")), there.gpus[0], 1)["error"]
    )
    assert time.monotonic() - begin < 30
    gone = survey_tiers.probe(there.replace(libcuda=str(tmp_path / "none")), there.gpus[0])
    assert "cannot open" in str(gone["error"])
    assert tiers_of(b"") == 0
