"""The dashboard's queries and the alerts' rules in a real Prometheus that looks at a real agent."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from testbed.agent import running
from testbed.prometheus import GRAFANA, PROGRAM, Dashboard, Prometheus
from testbed.stage import Stage
from testbed.until import until

pytestmark = pytest.mark.skipif(not shutil.which(PROGRAM) or not shutil.which("promtool"), reason="no Prometheus")


def test_the_alerts_fire_as_they_should() -> None:
    for words in (
        *(("check", "rules", "alerts.yaml"), ("test", "rules", "alerts.test.yaml")),
        *(("check", "rules", "cluster-alerts.yaml"), ("test", "rules", "cluster-alerts.test.yaml")),
    ):
        done = subprocess.run(["promtool", *words], cwd=GRAFANA, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_every_panel_shows_what_happens(stage: Stage, root: Path, tmp_path: Path) -> None:
    """Two share GPU 0; on GPU 1 one is of class offline and two cheat; one is refused; the agent has a problem."""
    share = {"gpu-hook.io/memory": "1Gi", "gpu-hook.io/devices": "0", "io.kubernetes.cri.sandbox-namespace": "ml"}
    other = {**share, "gpu-hook.io/devices": "1"}
    busy = ("/bin/gpu-probe", "alloc", "100", "run", "500", "600")
    dashboard = Dashboard()
    textfiles = tmp_path / "textfiles"
    textfiles.mkdir()
    with running(stage, "--textfile", f"{textfiles}/gpu_hook.prom") as agent:
        began = time.time()
        prometheus = Prometheus(tmp_path, f"127.0.0.1:{agent.port}", 1)
        try:

            def shown(panel: dict) -> dict[str, list[float]]:
                lines = dashboard.series(panel, prometheus, began, time.time())
                names = [name for name, _ in lines]
                assert len(set(names)) == len(names), (panel["title"], names)  # one line of a container, not two
                return {name: [value for _, value in points] for name, points in lines}

            titled = {panel["title"]: panel for panel in dashboard.panels}
            until(lambda: any(map(any, shown(titled["Healthy agents"]).values())))
            textfiles.rename(tmp_path / "away")
            stage.start(root, *busy, annotations={**share, "gpu-hook.io/compute": "30"})
            stage.start(root, *busy, annotations={**share, "gpu-hook.io/compute": "60"})
            stage.start(root, *busy, annotations={**other, "gpu-hook.io/class": "offline"})
            stage.start(root, "/bin/bypass", "200", "own", annotations=other)
            stage.start(root, "/bin/bypass", "100", annotations=other)
            stage.refused(root, "GH-201", annotations={**share, "gpu-hook.io/memory": "7Gi"})

            end = time.monotonic() + 60
            still = {"Driver's memory limits that were not as granted"}  # this driver has none: a line of zeros
            until(lambda: shown(titled[next(iter(still))]))
            while silent := [
                p["title"] for p in dashboard.panels if p["title"] not in still and not any(map(any, shown(p).values()))
            ]:
                assert time.monotonic() < end, silent
                time.sleep(0.3)
            until(lambda: shown(titled["Refusals in the last hour"])[""][-1] >= 1)  # the first one as well
            assert set(shown(titled["Containers refused, by error code"])) == {"GH-201"}
            until(lambda: shown(titled["New findings, by kind"])["no-shim"][-1] > 0)
            assert all(dashboard.choices(name, prometheus) for name in ("instance", "gpu", "namespace"))

            def health() -> set[str]:
                return {rule["health"] for group in prometheus.ask("rules")["groups"] for rule in group["rules"]}

            until(lambda: "unknown" not in health())
            assert health() == {"ok"}
        finally:
            prometheus.close()
    (stage.state / "events").unlink()
