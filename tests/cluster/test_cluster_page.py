"""The cluster's page, dashboard and alerts with two real controllers, a real API server and a real scheduler; nodes are plain objects.
A real browser looks at the page, a real Prometheus at the metrics."""

import asyncio
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.browser import CHROMIUM, Browser
from testbed.cluster import plain_nodes
from testbed.cluster.api import socket_in
from testbed.cluster.machine import wait
from testbed.cluster.pki import API
from testbed.cluster.plane import PODS, PORTS, WORK, Plane
from testbed.prometheus import GRAFANA, PROGRAM, Dashboard, Prometheus

GIB = 1024
PAGES = (9410, 9411)
ZERO = {"Pods evicted that their node had refused", "Memory that offline pods hold"}


class Forward:
    """A port of this machine's loopback that leads to one of the control machine's, as `kubectl port-forward` has it."""

    def __init__(self, pid: int, host: str, port: int) -> None:
        self._pid, self._to = pid, (host, port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listening.accept()
            except OSError:
                return
            try:
                other = socket_in(self._pid, self._to)
            except OSError:
                one.close()
                continue
            for a, b in ((one, other), (other, one)):
                threading.Thread(target=self._copy, args=(a, b), daemon=True).start()

    def _copy(self, a: socket.socket, b: socket.socket) -> None:
        try:
            a.settimeout(None)
            while data := a.recv(1 << 16):
                b.sendall(data)
        except OSError:
            pass
        for end in (a, b):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        a.close()


@pytest.fixture
def forward(plane: Plane) -> Iterator[Callable[[str, int], int]]:
    made: list[Forward] = []

    def to(host: str, port: int) -> int:
        made.append(Forward(plane.control.machine.pid, host, port))
        return made[-1].port

    yield to
    for one in made:
        one.close()


def fill(plane: Plane) -> None:
    """Two nodes and one without a report; three pods that have GPUs, one of them offline; one for which there is no room."""
    for name in ("a", "b"):
        plane.node(name, 16 * GIB, 16 * GIB)
    silent = plain_nodes.node("silent", [])
    silent["metadata"]["annotations"] = {}
    plain_nodes.create_node(plane.api, silent)
    plane.create("one", "4Gi")
    plane.create("night", "2Gi", annotations={"gpu-hook.io/class": "offline"})
    plane.create("whole", annotations={"gpu-hook.io/gpus": "1"})
    plane.create("large", "20Gi")
    for name in ("one", "night", "whole"):
        plane.bound(name)


@pytest.mark.skipif(not CHROMIUM, reason="no chromium")
def test_the_page_of_the_leader_and_of_a_stand_by(
    plane: Plane, forward: Callable[[str, int], int], tmp_path: Path
) -> None:
    first = plane.ready(plane.controller("--page-address", f"127.0.0.1:{PAGES[0]}"))
    plane.controller("--page-address", f"127.0.0.1:{PAGES[1]}", second=True)
    fill(plane)
    ports = [forward("127.0.0.1", port) for port in PAGES]
    assert first.ask("GET", "/api/cluster")[0] == first.ask("GET", "/")[0] == 404, "not at the address without a token"

    async def look() -> None:
        async with Browser(tmp_path) as browser:
            await browser.size(390, 844)
            await browser.open(f"http://127.0.0.1:{ports[0]}/")
            await browser.until("waiting.some(p => p.name === 'large' && p.code === 'GH-201')")
            await browser.until("figures.holders === 3 && figures.offline_mib === 2048 && figures.whole_gpus === 1")
            text = await browser.run("document.body.innerText")
            assert f"{WORK}/large" in text and "20480 MiB of one GPU" in text and "leader: " in text
            assert "1 without a report" in text and "no report from the node yet" in text
            plane.api("DELETE", f"{PODS}/whole")
            await browser.until("figures.holders === 2")
            assert browser.errors == []
            await browser.open(f"http://127.0.0.1:{ports[1]}/")
            await browser.until(
                "document.getElementById('leader').textContent.startsWith('This controller is on standby')"
            )
            await browser.until("figures.holders === 2")  # by its own watch
            first.stop()
            await browser.until("document.getElementById('leader').textContent.startsWith('leader: ')")

    asyncio.run(look())


@pytest.mark.skipif(not shutil.which(PROGRAM), reason="no Prometheus")
def test_every_panel_shows_what_happens_and_the_alerts_fire(
    plane: Plane, forward: Callable[[str, int], int], tmp_path: Path
) -> None:
    first = plane.ready(plane.controller("--certificate-days", "1"))
    plane.controller(second=True)
    at_once = tmp_path / "rules.yaml"
    at_once.write_text(re.sub(r"^ +for: .*\n", "", (GRAFANA / "cluster-alerts.yaml").read_text(), flags=re.M))
    targets = [f"127.0.0.1:{forward(API, port)}" for port in PORTS]
    more = {"scheme": "https", "tls_config": {"insecure_skip_verify": True}}
    dashboard = Dashboard(GRAFANA / "cluster.json")
    began = time.time()
    prometheus = Prometheus(tmp_path, targets, 1, "gpu-hook-controller", at_once, more)
    try:

        def shown(panel: Any) -> dict[str, list[float]]:
            lines = dashboard.series(panel, prometheus, began, time.time())
            names = [name for name, _ in lines]
            assert len(set(names)) == len(names), (panel["title"], names)
            return {name: [value for _, value in points] for name, points in lines}

        titled = {panel["title"]: panel for panel in dashboard.panels}
        wait(60, "it looks at the leader", lambda: any(map(any, shown(titled["Controllers that lead"]).values())))
        fill(plane)
        token = plane.secret()["webhook-token"]
        until, silent = time.monotonic() + 120, ["all"]
        while silent:
            assert time.monotonic() < until, silent
            assert first.ask("POST", f"/pods/{token}", b"no JSON")[0] == 400
            time.sleep(1)
            silent = [
                p["title"] for p in dashboard.panels if p["title"] not in ZERO and not any(map(any, shown(p).values()))
            ]
        gib = 1 << 30
        wait(30, "2 GiB offline", lambda: shown(titled["Memory that offline pods hold"])["offline"][-1] == 2 * gib)
        assert shown(titled["Nodes that cannot be chosen"])[""][-1] == 1
        assert shown(titled["GPUs, by who is on them"])["whole"][-1] == 1
        assert set(shown(titled["Pods that wait, by reason"])) == {"GH-201"}
        assert sorted(values[-1] for values in shown(titled["Who leads"]).values()) == [0, 1]
        assert all(dashboard.choices(name, prometheus) for name in ("instance", "Hostname"))

        def firing() -> set[str]:
            return {
                one["labels"]["alertname"] for one in prometheus.ask("alerts")["alerts"] if one["state"] == "firing"
            }

        expected = {"GpuHookNodesWithoutReport", "GpuHookPodsWaitForGpus", "GpuHookControllerCertificateEnds"}
        wait(60, f"{expected} fire", lambda: expected <= firing())
        assert not firing() & {"GpuHookNoLeader", "GpuHookControllerMissing", "GpuHookNodesRefuse"}
        for controller in plane.controllers:
            controller.stop()
        wait(60, "both that say so fire", lambda: {"GpuHookNoLeader", "GpuHookControllerMissing"} <= firing())
        health = {rule["health"] for group in prometheus.ask("rules")["groups"] for rule in group["rules"]}
        assert health == {"ok"}
    finally:
        prometheus.close()
