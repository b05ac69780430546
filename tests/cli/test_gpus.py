"""`gpu-hook gpus`: the table and its JSON, what is granted of each GPU, and the warning about GPUs that are in use."""

import json
from pathlib import Path

import pytest

from oci_hook.cli import gpus
from oci_hook.core.grant import Share
from oci_hook.core.inventory import Gpu
from oci_hook.ledger import store
from tests.cli.box import Install


def test_table_and_json(install: Install) -> None:
    install.grant("one", Share("GPU-0", 4096, 30))
    install.grant("two", Share("GPU-0", 1024))
    install.grant("three", Share("GPU-1", 1024, 60), priority_class="offline")
    head, title, first, second, held = install.text("gpus").splitlines()
    assert head == "driver 1.2 in PREFIX/driver, simulated"
    assert " ".join(title.split()) == "INDEX UUID NAME MEMORY MINOR TIER GRANTED MEMORY GRANTED COMPUTE CONTAINERS"
    assert first.split() == ["0", "GPU-0", "Simulated", "GPU", "24Gi", "0", "-", "5Gi", "30%", "2"]
    assert second.split() == [
        "1",
        "GPU-1",
        "Simulated",
        "GPU",
        "24Gi",
        "1",
        "-",
        "1Gi",
        "0%",
        "and",
        "60%",
        "offline",
        "1",
    ]
    assert held == "memory limits held by the shim alone: the driver was not asked when the GPUs were listed"
    data = install.data("gpus")
    assert (data["driver_version"], data["simulated"]) == ("1.2", True)
    gpu = data["gpus"][0]
    assert (gpu["index"], gpu["uuid"], gpu["memory_mib"], gpu["tier"]) == (0, "GPU-0", 24576, None)
    assert (gpu["granted_mib"], gpu["granted_compute"], gpu["containers"]) == (5120, 30, 2)
    assert [(g["granted_compute"], g["granted_offline_compute"]) for g in data["gpus"]] == [(30, 0), (0, 60)]
    with store.open_ledger(str(install.state)) as ledger:
        (one,) = (g for g in ledger.grants if g.who.id == "one")
        ledger.change(one.replace(suspended=5, host_mib=9))
    gpu = install.data("gpus")["gpus"][0]
    assert (gpu["granted_mib"], gpu["granted_compute"], gpu["containers"]) == (1024, 0, 2)


def test_who_holds_memory_limits(install: Install) -> None:
    """A line for each answer."""

    def answer(*whys: str) -> list[str]:
        file = install.state / "inventory.json"
        found = json.loads(file.read_text())
        for gpu, why in zip(found["gpus"], whys, strict=True):
            gpu["no_limits"] = why
        file.write_text(json.dumps(found))
        data = install.data("gpus")["gpus"]
        assert [(gpu["boundary"], gpu["boundary_why"]) for gpu in data] == [
            ("shim" if w else "driver", w) for w in whys
        ]
        assert "no_limits" not in data[0]
        return install.text("gpus").splitlines()[4:]

    assert answer("", "") == ["memory limits held by the shim and the driver"]
    assert answer("", "it is odd") == [
        "GPU 0: memory limits held by the shim and the driver",
        "GPU 1: memory limits held by the shim alone: it is odd",
    ]


def test_who_holds_limits_with_the_setting_shim_and_of_mig_devices() -> None:
    migs = [Gpu(f"MIG-{n}", 0, 0, 1024, parent="GPU-p", instance=n, no_limits="it is MIG") for n in (0, 1)]
    listed = (*migs, Gpu("GPU-1", 1, 1, 1024, no_limits=""))
    auto, shim = gpus.boundary_lines(listed, "auto"), gpus.boundary_lines(listed, "shim")
    assert auto[0] == shim[0] == "GPU 0:0, 0:1: memory limits held by the shim alone: it is MIG"
    assert auto[1] == "GPU 1: memory limits held by the shim and the driver"
    assert shim[1].startswith("GPU 1: memory limits held by the shim alone: the setting `boundary` is shim")


def test_without_an_inventory(install: Install) -> None:
    (install.state / "inventory.json").unlink()
    assert install.data("gpus", status=1)["errors"][0]["code"] == "GH-301"


def test_a_gpu_in_use_is_not_probed(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[str] = []
    monkeypatch.setattr(gpus.probed, "probe", lambda inventory, gpu: probed.append(gpu.uuid) or {"bits": 0})
    monkeypatch.setattr(gpus.probed, "save", lambda settings, inventory, seen: None)
    install.grant("one", Share("GPU-0", 4096, 30))
    result = install.run("gpus", "--probe")
    assert probed == ["GPU-1"] and result.exit_code == 0
    assert result.stderr.startswith("warning: GH-310: GPU 0 (GPU-0) has containers and was not probed")


def test_refresh_names_what_is_missing(install: Install) -> None:
    """The driver's folder of this install has files that are no libraries."""
    before = Path(install.state, "inventory.json").read_bytes()
    assert install.data("gpus", "--refresh", status=1)["errors"][0]["code"] in ("GH-301", "GH-302")
    assert Path(install.state, "inventory.json").read_bytes() == before
