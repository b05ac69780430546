"""The web page in a real browser, with answers made up here: on a phone and on a desk, for eyes and for screen readers.
test_web.py shows it with a real agent."""

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed import REPO

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="no chromium")]
PAGE = REPO / "oci_hook/agent/serve/page.html"
NASTY = "<img src=x onerror=document.title='owned'>"
LONG = "a-name-of-63-characters-" + "x" * 39
UUID = "GPU-51de0000-6f33-4bf0-a35a-08465603b98f"
# Loads the page into a frame of so many pixels, and says how wide it became.
PROBE = """<!doctype html><iframe id=f src="/" style="border:0;width:WIDTHpx;height:2000px"></iframe><pre id=said>waits</pre><script>
const frame = document.getElementById("f");
setInterval(() => {
  const page = frame.contentDocument;
  if (!page || !page.body || !page.body.dataset.ready) return;
  const cut = [...page.querySelectorAll("td, th")].filter(e => e.offsetParent && e.scrollWidth > e.clientWidth + 1 && e.closest("tbody"));
  const pen = document.createElement("canvas").getContext("2d");
  const tight = [...page.querySelectorAll("tbody td, tbody th")].filter(e => {  // the column's name runs into the figure
    const style = frame.contentWindow.getComputedStyle(e, "::before");
    pen.font = style.font;
    const room = parseFloat(frame.contentWindow.getComputedStyle(e).paddingLeft);
    return style.content !== "none" && pen.measureText(e.dataset.label).width > room - 4;
  });
  document.getElementById("said").textContent = JSON.stringify({
    inner: frame.contentWindow.innerWidth, width: page.documentElement.scrollWidth, client: page.documentElement.clientWidth,
    title: page.title, html: page.documentElement.outerHTML,
    shown: page.querySelector("#containers td.n").getBoundingClientRect().width > 0,
    head: page.querySelector("thead").getBoundingClientRect().height,
    tight: tight.map(e => e.dataset.label), cut: cut.map(e => e.textContent.slice(0, 40)),
  });
}, 100);
</script>"""


def share(index: int, memory: int, used: int | None, compute: int, **more: Any) -> dict[str, Any]:
    return {
        "index": index, "uuid": UUID + str(index), "memory_mib": memory, "used_mib": used, "compute": compute,
        "compute_limit": 100, "whole": False, "utilization": 30, "compute_used": None, "compute_shortfall": 7.0, "gate": None,
        "waits_for": None, **more,
    }  # fmt: skip


def container(name: str, *shares: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "key": name, "id": "f" * 64, "namespace": "ml", "pod": name, "name": name, "state": "running", "class": "default",
        "policy": "burst-share", "gpus": list(shares), "findings": [], **more,
    }  # fmt: skip


def answers(many: bool = True) -> dict[str, Any]:
    gpu = {
        "name": "Simulated GPU", "memory_mib": 8192, "granted_mib": 6144, "granted_compute": 60,
        "granted_offline_compute": 100, "used_mib": 900,
        "utilization": 40, "harvested": None, "error": "", "unlisted_mib": 0, "unknown_processes": 0,
        "unknown_processes_mib": 0,
    }  # fmt: skip
    agent = {
        "problems": {},
        "policy": "protect",
        "findings": 1,
        "interval": 60,
        "nvml_read": 1_800_000_000.0,
        "ledger_read": None,
    }
    containers = [
        container("two-gpus", share(0, 2048, 1024, 30), share(1, 1024, 0, 0)),
        container(NASTY, share(0, 1024, None, 20)),
        container(LONG, share(0, 512, 10, 10), findings=[{"kind": "no-shim", "evidence": "process 7 " + "y" * 200}]),
        container("none-at-all"),
    ]
    log = [
        {
            "at": 1_800_000_000.5 - i,
            "event": "refused",
            "container": f"{NASTY}{LONG}",
            "text": f"GH-201: no room {'z' * 300}",
        }
        for i in range(50)
    ]
    history = {"two-gpus": {UUID + "0": [[1_800_000_000 + 5 * i, 10 * i, i % 100] for i in range(120)]}}
    return {
        "/api/node": {
            "at": 1_800_000_000.2, "driver_version": "550", "simulated": True, "agent": agent,
            "gpus": [{**gpu, "index": i, "uuid": UUID + str(i)} for i in (0, 1)] if many else [],
            "containers": containers if many else [],
        },
        "/api/history": history if many else {},
        "/api/events": {"events": log, "refused": log} if many else {"events": [], "refused": []},
    }  # fmt: skip


class Handler(http.server.BaseHTTPRequestHandler):
    def __init__(self, found: dict[str, Any], *args: Any) -> None:
        self.found = found
        super().__init__(*args)

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        kind, data = "text/html", b""
        if path == "/":
            data = PAGE.read_bytes()
        elif path == "/probe":
            data = PROBE.replace("WIDTH", query).encode()
        elif path in self.found:
            kind, data = "application/json", json.dumps(self.found[path]).encode()
        self.send_response(200 if data else 404)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


class Browser:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found = answers()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, self.found))

    def look(self, width: int) -> Any:
        command = [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=8000",
            "--window-size=2200,2200",
        ]
        command += [
            f"--user-data-dir={self.folder}",
            "--dump-dom",
            f"http://127.0.0.1:{self.server.server_port}/probe?{width}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        said = re.search(r'<pre id="said">(.*?)</pre>', done.stdout, re.S)
        assert said and said[1] != "waits", done.stderr[-500:]
        text = said[1].replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", " ").replace("&amp;", "&")
        return json.loads(text)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    browser = Browser(tmp_path)
    thread = threading.Thread(target=browser.server.serve_forever)
    thread.start()
    yield browser
    browser.server.shutdown()
    thread.join()
    browser.server.server_close()


@pytest.mark.parametrize("width", [320, 390, 760, 780, 1280])
def test_it_is_as_wide_as_the_screen(browser: Browser, width: int) -> None:
    """No sideways scrolling of the page; nothing on a phone is cut, and names of columns stand at each figure there."""
    seen = browser.look(width)
    assert seen["inner"] == width and seen["shown"] and seen["title"] == "gpu-hook"
    assert seen["width"] <= seen["client"]
    if width < 768:
        assert seen["cut"] == seen["tight"] == [] and seen["head"] <= 1
    else:
        assert seen["head"] > 10


def test_it_says_in_words_what_it_shows(browser: Browser) -> None:
    html = browser.look(1280)["html"]
    assert "<img" not in html.partition("<script>")[0] and "&lt;img src=x" in html
    body = html.partition("<script>")[0]
    for id, columns in (("containers", 8), ("refused", 3), ("events", 4)):
        head, _, rows = body.partition(f'id="{id}"')[0].rpartition("<thead")[2], "", body.partition(f'id="{id}"')[2]
        assert head.count('scope="col"') == head.count("<th ") == columns
        first = rows.partition("</tr>")[0]
        assert first.count('scope="row"') == 1 and first.count("data-label=") == columns
    pictures = re.findall(r'<(?:svg|div)[^>]*role="img"[^>]*>', body)
    labels = [re.search(r'aria-label="([^"]+)"', picture) for picture in pictures]
    assert len(pictures) == 4 + 4 and all(labels)
    texts = [label[1] for label in labels if label]
    assert "ml/two-gpus/two-gpus 2 GiB, of that 1 GiB in use" in texts[0] and "of 8 GiB" in texts[0]
    assert "ml/two-gpus/two-gpus 30 %" in texts[1] and "compute granted: none" in texts[3]
    assert "memory 0 MiB to 1.2 GiB, now 1.2 GiB; busy 0 % to 99 %, now 19 %; guarantee 30 %" in " ".join(texts)
    assert body.count("no figures yet") == 3
    assert (
        "as of " in body
        and "NVML read at " in body
        and "ledger read" not in body
        and '<time datetime="2027-01-15' in body
    )
    for link in ("metrics", "api/node", "api/history", "api/events", "api/processes", "healthz"):
        assert f'href="{link}"' in body
    assert body.count("GH-201: no room") == 100


def test_a_node_with_nothing(browser: Browser) -> None:
    browser.found.update(answers(many=False))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"]
    command += [f"--user-data-dir={browser.folder}", "--dump-dom", f"http://127.0.0.1:{browser.server.server_port}/"]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=240).stdout
    assert 'data-ready="yes"' in dom
    for text in ("no container holds a share", "no container was refused", "nothing happened yet"):
        assert text in dom


def test_an_agent_that_answers_no_more(browser: Browser) -> None:
    del browser.found["/api/events"]
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"]
    command += [f"--user-data-dir={browser.folder}", "--dump-dom", f"http://127.0.0.1:{browser.server.server_port}/"]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=240).stdout
    assert "the agent does not answer (api/events: 404)" in dom and 'data-ready="yes"' not in dom
