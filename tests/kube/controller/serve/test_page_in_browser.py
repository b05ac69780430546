"""The cluster's page in a real browser: phone and desktop, large clusters, keyboard and screen reader, changes of the cluster, a
controller that is away or does not lead."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from oci_hook.kube.answers.overview import Waiting
from oci_hook.kube.controller.serve import page as pages
from testbed.browser import CHROMIUM, Browser
from testbed.cluster_page import Scene, node, pod, scene, served

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="no chromium")]
NASTY = "<img src=x onerror=document.title='owned'>"
NODES = 1000
# Visible faults: text that is cut off, overlaps, is too small, or lies outside the screen.
BROKEN = """(() => {
  const found = [], wide = document.documentElement.clientWidth;
  for (const e of document.querySelectorAll("body *")) {
    if (["SCRIPT", "STYLE", "OPTION"].includes(e.tagName) || e.closest(".hidden, [hidden]")) continue;
    const box = e.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const said = (e.id || e.className || e.tagName) + ": " + e.textContent.slice(0, 40);
    if (box.right > wide + 1 || box.left < -1) found.push("outside " + said);
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (own && parseFloat(getComputedStyle(e).fontSize) < 11) found.push("small " + said);
    const hides = e.clientHeight && getComputedStyle(e).overflowY === "hidden";
    if (own && hides && e.scrollHeight > e.clientHeight + 2) found.push("cut " + said);
    if (own && e.closest(".gpu") && e.scrollWidth > e.clientWidth + 1) found.push("cut " + said);
  }
  const rows = [...document.querySelectorAll("#nodes > div")].map(e => e.getBoundingClientRect()).sort((a, b) => a.top - b.top);
  rows.forEach((box, i) => { if (i && box.top < rows[i - 1].bottom - 1) found.push("overlap of rows"); });
  for (const row of document.querySelectorAll("#nodes > div")) {
    const end = row.getBoundingClientRect().bottom + 1;
    for (const e of row.querySelectorAll(".gpu, .who"))
      if (e.getBoundingClientRect().bottom > end) found.push("below its row " + row.textContent.slice(0, 40));
  }
  const cells = [...document.querySelectorAll("#figures > div, form > label")].map(e => e.getBoundingClientRect());
  for (const a of cells) for (const b of cells)
    if (a !== b && a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1) found.push("overlap");
  return found;
})()"""


@asynccontextmanager
async def shown(cluster: Scene, width: int = 1280, height: int = 900, dark: bool = False) -> AsyncIterator[Browser]:
    folder = Path(tempfile.mkdtemp())
    try:
        async with served(cluster.page()) as url, Browser(folder) as browser:
            await browser.size(width, height, dark)
            await browser.open(url)
            yield browser
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(act: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(act())


@pytest.fixture(scope="module")
def large() -> Scene:
    """1 000 nodes of 8 GPUs, and special ones: MIG devices, one GPU, a long name, a problem, no report yet."""
    made = scene(NODES)
    made.copy.node(node("mig", 56, 10_000))
    made.copy.node(node("one", 1))
    made.copy.node(node("a-name-of-" + "x" * 200, 16, model="m" * 200))
    return made


@pytest.mark.parametrize(
    ("width", "height", "dark"), [(320, 640, False), (390, 844, True), (800, 600, False), (1280, 900, True)]
)
def test_a_thousand_nodes_at_this_width(large: Scene, width: int, height: int, dark: bool) -> None:
    async def act() -> None:
        async with shown(large, width, height, dark) as browser:
            assert await browser.run("innerWidth") == width
            assert await browser.run("document.documentElement.scrollWidth") <= width
            for place in (0, 0.5, 1):
                await browser.run(f"scrollTo(0, {place} * document.documentElement.scrollHeight)")
                await asyncio.sleep(0.5)
                assert await browser.run(BROKEN) == []
                assert await browser.run("document.querySelectorAll('#nodes > div').length") < 80, (
                    "only what is in sight"
                )
            assert await browser.run("document.querySelectorAll('#nodes > div').length") > 5
            last = await browser.run(
                "[...document.querySelectorAll('#nodes > div')].at(-1).getAttribute('aria-posinset')"
            )
            assert int(last) == NODES + 6 and "scroll" not in await browser.run(
                "getComputedStyle(document.body).overflowX"
            )
            back = await browser.run("getComputedStyle(document.body).backgroundColor")
            assert (back == "rgb(17, 22, 29)") == dark
            assert browser.errors == []

    run(act)


def test_it_says_in_words_what_it_shows(large: Scene) -> None:
    async def act() -> None:
        async with shown(large) as browser:
            named = "[...document.querySelectorAll('#nodes [role=img]')].map(e => e.getAttribute('aria-label'))"
            labels = await browser.run(named)
            assert len(labels) > 50 and all(label and label.startswith("GPU ") for label in labels)
            assert any("class offline has" in label for label in labels) and any(
                "given as a whole" in label for label in labels
            )
            tree = (await browser.do("Accessibility.getFullAXTree"))["nodes"]
            roles = {n["role"]["value"]: n.get("name", {}).get("value", "") for n in tree if not n.get("ignored")}
            assert (
                roles["RootWebArea"] == "gpu-hook cluster"
                and {"list", "listitem", "table", "columnheader", "rowheader"} <= roles.keys()
            )
            for role in ("searchbox", "combobox", "list", "table", "navigation"):
                assert roles.get(role), f"{role} has no name"
            figures = await browser.run("document.getElementById('figures').innerText")
            assert "1 with a problem, 1 without a report" in figures and "offline pods hold" in figures
            waiting = await browser.run("document.getElementById('waiting').innerText")
            assert "ml/train-large-0" in waiting and "GH-201" in waiting and "81920 MiB of one GPU" in waiting
            assert "not refused by gpu-hook so far" in waiting
            assert (await browser.run("document.getElementById('leader').textContent")).startswith(
                "leader: gpu-hook-controller"
            )
            links = await browser.run(
                "[...document.querySelectorAll('[src], link, a')].map(e => e.getAttribute('src') || e.getAttribute('href'))"
            )
            assert not [link for link in links if "//" in link], "works without a network"

    run(act)


def test_by_keys_alone(large: Scene) -> None:
    async def act() -> None:
        async with shown(large) as browser:
            seen = []
            for _ in range(12):
                await browser.key("Tab", 9)
                seen.append(
                    await browser.run("document.activeElement.id || document.activeElement.getAttribute('href')")
                )
            assert seen.index("#nodes-title") < seen.index("name") < seen.index("namespace") < seen.index("order")
            assert await browser.run("getComputedStyle(document.getElementById('name'), null).outlineStyle") is not None
            await browser.run("document.getElementById('name').focus()")
            await browser.do("Input.insertText", text="GPU-0777")
            await browser.until("document.querySelectorAll('#nodes > div').length === 1")
            assert "1 of 1,006 nodes" in await browser.run("document.getElementById('nodes-title').innerText")
            await browser.key("Enter", 13)
            assert await browser.run("location.pathname + location.search") == "/"
            await browser.do("Input.insertText", text="?")
            await browser.until("!document.getElementById('none').hidden")

    run(act)


def test_order_and_namespace(large: Scene) -> None:
    async def act() -> None:
        async with shown(large) as browser:
            first = "document.querySelector('#nodes > div').textContent"
            await browser.run("order; document.getElementById('order').value = 'problem'; sorted()")
            assert "lab-2" in await browser.run(first) or "gpu-new" in await browser.run(first)
            await browser.run("document.getElementById('order').value = 'free'; sorted(); scrollTo(0, 0)")
            free = await browser.run("order.map(free)")
            assert free == sorted(free, reverse=True) and len(free) == NODES + 6
            await browser.run("document.getElementById('namespace').value = 'batch'")
            await browser.run("document.getElementById('namespace').dispatchEvent(new Event('change'))")
            assert await browser.run("order.every(n => n.namespaces.some(s => s[0] === 'batch')) && order.length > 100")
            assert "none in this namespace" in await browser.run("document.getElementById('waiting').innerText")
            assert browser.errors == []

    run(act)


def test_a_change_redraws_its_node_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "EVERY", 0.2)

    async def act() -> None:
        cluster = Scene(NODES)
        async with shown(cluster) as browser:
            await browser.run(
                "window.was = new Map([...live].map(([name, [, e]]) => [name, e])); document.getElementById('name').focus()"
            )
            await browser.run("scrollTo(0, 200)")
            cluster.copy.node(node("gpu-0002", 3))
            await browser.until("live.get('gpu-0002')[0].gpus.length === 3")
            assert await browser.run(
                "[...was].filter(([name, e]) => live.get(name)[1] !== e).map(([name]) => name)"
            ) == ["gpu-0002"]
            assert await browser.run("scrollY") == 200 and await browser.run("document.activeElement.id") == "name"
            cluster.copy.node(node("gpu-0000-new"))
            await browser.until("live.has('gpu-0000-new')")
            names = (
                "[...document.querySelectorAll('#nodes .who > div:first-child')].map(e => e.textContent).slice(0, 3)"
            )
            assert await browser.run(names) == ["gpu-0000", "gpu-0000-new", "gpu-0001"]
            assert (
                await browser.run("[...was].filter(([name, e]) => live.has(name) && live.get(name)[1] !== e).length")
                == 1
            )
            cluster.copy.no_node("gpu-0000-new")
            await browser.until("!nodes.has('gpu-0000-new') && !live.has('gpu-0000-new')", 20)
            assert await browser.run(BROKEN) == [] and browser.errors == []
            whole, *rest = [
                size for path, sizes in browser.received.items() if path.startswith("api/") for size in sizes
            ]
            assert max(rest) < whole / 5, (whole, rest)

    run(act)


def test_many_that_wait_are_shown_on_demand() -> None:
    async def act() -> None:
        cluster = Scene(2)
        for i in range(60):
            cluster.wait(f"p{i}", "ml", Waiting("GH-607", "GH-607: no node has room"), memory="1Gi")
        async with shown(cluster) as browser:
            rows = "document.querySelectorAll('#waiting tr').length"
            assert await browser.run(rows) == 20
            await browser.run("document.querySelector('#more button').click()")
            assert (
                await browser.run(rows) == 60 and await browser.run("document.activeElement.textContent") == "show 20"
            )

    run(act)


def test_names_stay_text() -> None:
    async def act() -> None:
        cluster = Scene(1)
        cluster.copy.node(node(NASTY, 2, model=NASTY, **{"gpu-hook.io/mode": NASTY}))
        cluster.copy.enabled.add(NASTY)
        cluster.wait(NASTY, NASTY, Waiting("GH-607", f"GH-607: {NASTY}"), memory=NASTY)
        held = pod("x", NASTY, "gpu-0000", [(0, 1, 0)])
        cluster.copy.pod(held)
        cluster.who = {**cluster.who, "holder": NASTY, "own": NASTY}
        async with shown(cluster) as browser:
            html = await browser.run("document.body.innerHTML.split('<script>')[0]")
            assert "<img" not in html and html.count("&lt;img src=x") >= 5
            assert await browser.run("document.title") == "gpu-hook cluster" and browser.errors == []
            assert await browser.run("document.querySelectorAll('img').length") == 0

    run(act)


def test_nothing_at_all() -> None:
    async def act() -> None:
        async with shown(Scene(0), 390, 844) as browser:
            text = await browser.run("document.body.innerText")
            assert "no node matches" in text and "0 GPUs, 0 pods with a share, 0 waiting" in text
            assert await browser.run(BROKEN) == [] and browser.errors == []

    run(act)


@pytest.mark.parametrize(
    ("who", "said", "bad"),
    [
        (
            {"leads": False, "holder": "gpu-hook-controller-77-1-0a1b2c3d", "own": "me"},
            "pod/gpu-hook-controller-77",
            False,
        ),
        ({"leads": False, "holder": "", "own": "me"}, "No controller leads", True),
        ({"leads": False, "holder": "me", "own": "me"}, "No controller leads", True),
        ({"leads": True, "holder": "me", "own": "me"}, "leader: me", False),
        ({"leads": True, "holder": "me", "own": "me", "synced": False}, "still being read", False),
    ],
)
def test_who_leads(who: dict[str, Any], said: str, bad: bool) -> None:
    async def act() -> None:
        cluster = Scene(1)
        cluster.who = {"synced": True, **who}
        async with shown(cluster) as browser:
            assert said in await browser.run("document.getElementById('leader').textContent")
            assert (await browser.run("document.getElementById('leader').className") == "bad") == bad
            assert "gpu-0000" in await browser.run("document.getElementById('nodes').textContent")

    run(act)


def test_a_controller_that_goes_and_another_one_that_comes(tmp_path: Path) -> None:
    """The old data stays, with its age. The next controller's data replaces it, whatever its version is called."""

    async def act() -> None:
        first, second = Scene(3), Scene(1)
        async with Browser(tmp_path) as browser:
            await browser.size(1280, 900)
            async with served(first.page()) as url:
                await browser.open(url)
                assert await browser.run("nodes.size") == 3
            await browser.until("document.getElementById('state').className === 'bad'")
            assert "does not answer" in await browser.run("document.getElementById('state').textContent")
            assert "s ago)" in await browser.run("document.getElementById('asof').textContent")
            assert await browser.run("document.querySelectorAll('#nodes > div').length") == 3
            async with served(second.page(), int(url.rstrip("/").rpartition(":")[2])):
                await browser.until("nodes.size === 1 && document.getElementById('state').className === 'dim'")

    run(act)
