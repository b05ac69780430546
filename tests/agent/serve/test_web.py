"""The web page in a real browser: what it shows is what there is, and names stay text."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from testbed.agent import running
from testbed.stage import Stage
from testbed.until import until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not CHROMIUM, reason="no chromium"),
]
NASTY = "<img src=x onerror=document.title='owned'>"


def test_the_page(stage: Stage, root: Path, tmp_path: Path) -> None:
    names = {"io.kubernetes.cri.sandbox-namespace": "ml", "io.kubernetes.cri.sandbox-name": NASTY}
    share = {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": "3Gi", "gpu-hook.io/compute": "30"}
    with running(stage) as agent:
        id = stage.start(root, "/bin/gpu-probe", "alloc", "300", "hold", "600", annotations={**names, **share})
        stage.refused(root, "GH-201", annotations={"gpu-hook.io/devices": "0", "gpu-hook.io/memory": "7Gi"})
        cheat = stage.start(root, "/bin/bypass", "200")
        until(lambda: agent.kinds(cheat) and agent.container(id)["gpus"][0]["used_mib"])
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"]
        command += [f"--user-data-dir={tmp_path}", "--dump-dom", f"http://127.0.0.1:{agent.port}/"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        dom = done.stdout
        assert 'data-ready="yes"' in dom, done.stderr[-500:]
        assert "<title>gpu-hook</title>" in dom and "<img" not in dom and "&lt;img src=x" in dom
        assert "simulated GPUs" in dom and dom.count("<section>") == 2
        assert "3 GiB" in dom and "30 %" in dom and "no-shim: process" in dom
        assert re.search(r"\d+ MiB / 3 GiB", dom) and "<path" in dom
        refused = dom.partition('id="refused"')[2].partition("</tbody>")[0]
        assert "GH-201: no room" in refused and refused.count("<tr") >= 1
        assert all(word in dom.partition('id="events"')[2] for word in ("granted", "finding", "no-shim on GPU-"))
        assert dom.count("memory limits held by the shim alone: driver 550.0.0 is older than 615") == 2
        assert dom.count("memory limit: shim") == 2
        assert "as of " in dom and "NVML read at " in dom and "ledger read at " in dom
        assert agent.get("/healthz") == b"ok\n" and json.loads(agent.get("/api/events"))["refused"]
        assert not re.search(r"(src|href)=.?https?://", dom)  # works without a network
