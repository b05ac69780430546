"""An install's settings and a two-GPU inventory in a temporary directory, and the command line run in this process."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from oci_hook.cli.main import cli
from oci_hook.config.settings import Settings
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import DeviceFile, DriverFile, Gpu, Inventory
from oci_hook.core.policy_page import policy_page
from oci_hook.discovery.save import save_inventory
from oci_hook.install import settings_edit
from oci_hook.install.settings_template import default_settings_yaml
from oci_hook.ledger import store
from oci_hook.linux.proc import boot_id, process_life
from tests.terms import made

UUIDS = ("GPU-0", "GPU-1")
CREATED = 1_800_000_000  # 2027-01-15T08:00:00Z


def this_process() -> Life:
    """A life that lasts as long as the test."""
    return Life(boot_id(), creator=process_life(os.getpid()))


class Install:
    """`run` is the command line with --prefix; `text` what it prints, with the prefix shown as PREFIX."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.state = prefix / "state"
        for name in ("driver/libcuda.so.1.2", "driver/libnvidia-ml.so.1.2", "driver/libx.so.1.2", "driver/nvidia-smi"):
            self.file(name)
        for name in ("lib/private/container/policy", "lib/shim/libcuda.so.1", "lib/shim/libnvidia-ml.so.1"):
            self.file(name)
        for name in ("state/sim/gpus/0", "state/sim/gpus/1"):
            self.file(name)
        self.state.chmod(0o700)
        (prefix / "etc").mkdir()
        runtime = self.file("runc")
        runtime.chmod(0o755)
        self.say(
            default_settings_yaml(
                runtime=str(runtime),
                python=sys.executable,
                driver_root=str(prefix / "driver"),
                state_dir=str(self.state),
            )
        )
        self.settings: Settings = settings_edit.change(str(prefix))
        driver = prefix / "driver"
        self.inventory = Inventory(
            boot_id=boot_id(),
            driver_version="1.2",
            driver_root=str(driver),
            simulated=True,
            gpus=tuple(
                Gpu(uuid, i, i, 24576, "Simulated GPU", simulated=True, file=str(self.state / f"sim/gpus/{i}"))
                for i, uuid in enumerate(UUIDS)
            ),
            control=(DeviceFile("/dev/nvidiactl", 195, 255),),
            files=(
                DriverFile(f"{driver}/libx.so.1.2", "library", "compute", ("libx.so.1.2", "libx.so.1")),
                DriverFile(f"{driver}/nvidia-smi", "binary", "utility"),
            ),
            libcuda=f"{driver}/libcuda.so.1.2",
            libnvml=f"{driver}/libnvidia-ml.so.1.2",
        )
        save_inventory(self.settings, self.inventory)

    def file(self, name: str) -> Path:
        path = self.prefix / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        return path

    def say(self, yaml: str) -> None:
        (self.prefix / "etc/settings.yaml").write_text(yaml)

    def run(self, *args: str) -> Result:
        return CliRunner().invoke(cli, [*args, "--prefix", str(self.prefix)], catch_exceptions=False)

    def text(self, *args: str, status: int = 0) -> str:
        """Standard output and error together."""
        result = self.run(*args)
        assert result.exit_code == status, result.output
        return result.output.replace(str(self.prefix), "PREFIX")

    def run_last(self, command: str, *args: str) -> Result:
        """`run` for a command that passes the last words on: --prefix comes first."""
        return CliRunner().invoke(cli, [command, "--prefix", str(self.prefix), *args], catch_exceptions=False)

    def text_last(self, command: str, *args: str, status: int = 0) -> str:
        result = self.run_last(command, *args)
        assert result.exit_code == status, result.output
        return result.output

    def data(self, *args: str, status: int = 0) -> Any:
        """The --json document: all of standard output."""
        result = self.run(*args, "--json")
        assert result.exit_code == status, result.output
        return json.loads(result.stdout.replace(str(self.prefix), "PREFIX"))

    def grant(
        self, id: str, *shares: Share, life: Life | None = None, who: dict[str, str] | None = None, **more: Any
    ) -> Grant:
        """A grant in the ledger, as the runtime puts it there; without `life`, it lives as long as the test."""
        identity = Identity("/run/runc", id, f"/bundles/{id}", **(who or {}))
        key = store.grant_key("/run/runc", id)
        grant = made(Grant, key, identity, life or this_process(), shares, created=CREATED, **more)
        with store.open_ledger(str(self.state)) as ledger:
            ledger.put(grant, policy_page(grant, self.inventory))
        return grant

    def ledger(self) -> list[str]:
        """Every file of the state directory with its contents, to see that nothing changed."""
        return sorted(
            f"{path.relative_to(self.state)} {path.stat().st_mtime_ns} {path.read_bytes()!r}"
            for path in self.state.rglob("*")
            if path.is_file()
        )
