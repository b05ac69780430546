"""A headless Chromium for tests and pictures, driven by the DevTools protocol: size, theme, keys, scripts, pictures."""

import asyncio
import base64
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""


class Browser:
    """One page of it; to be used in `async with`. before: words put before the command, as nsenter's. errors: messages of its
    console and scripts."""

    def __init__(self, folder: Path, before: Sequence[str] = (), flags: Sequence[str] = ()) -> None:
        self._folder, self._before, self._flags = folder, before, flags
        self.errors: list[str] = []
        self.received: dict[str, list[int]] = {}  # path -> bytes on the wire of each answer
        self._number = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._paths: dict[str, str] = {}

    async def __aenter__(self) -> "Browser":
        log = self._folder / "chromium.log"
        command = [
            *(*self._before, CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={self._folder}/profile"),
            *(*self._flags, "about:blank"),
        ]
        with open(log, "w") as out:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            self._session = aiohttp.ClientSession()
            self._socket = await self._session.ws_connect(await self._page(log), max_msg_size=1 << 28)
            self._reader = asyncio.create_task(self._read())
            for name in ("Page", "Runtime", "Log", "Network"):
                await self.do(f"{name}.enable")
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reader.cancel()
        await self._socket.close()
        await self._session.close()
        try:  # its socket is in a folder of its own in /tmp, which it leaves
            left = Path(os.readlink(self._folder / "profile/SingletonSocket")).parent
        except OSError:
            left = None
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if left and left.name.startswith("org.chromium."):
            shutil.rmtree(left, ignore_errors=True)

    async def _page(self, log: Path, seconds: float = 60) -> str:
        """The address at which its first page takes commands."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._process.poll() is None:
            found = re.search(r"DevTools listening on ws://([^/\s]+)/", log.read_text())
            if found:
                async with self._session.get(f"http://{found[1]}/json/list") as answer:
                    for one in await answer.json():
                        if one["type"] == "page":
                            return str(one["webSocketDebuggerUrl"])
            await asyncio.sleep(0.1)
        raise RuntimeError(f"Chromium did not start: {log.read_text()[-800:]}")

    async def do(self, method: str, **given: Any) -> Any:
        self._number += 1
        waits = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_str(json.dumps({"id": self._number, "method": method, "params": given}))
        return await asyncio.wait_for(waits, 120)

    async def _read(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                waits = self._answers.pop(said["id"])
                if waits.done():
                    continue
                if "error" in said:
                    waits.set_exception(RuntimeError(str(said["error"])))
                else:
                    waits.set_result(said["result"])
            else:
                self._note(said["method"], said["params"])

    def _note(self, event: str, said: Any) -> None:
        if event == "Runtime.exceptionThrown":
            self.errors.append(str(said["exceptionDetails"].get("exception", said["exceptionDetails"])))
        elif event == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning"):
            self.errors.append(str(said["args"]))
        elif event == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")
        elif event == "Network.responseReceived":
            self._paths[said["requestId"]] = said["response"]["url"].partition("://")[2].partition("/")[2]
        elif event == "Network.loadingFinished" and said["requestId"] in self._paths:
            self.received.setdefault(self._paths[said["requestId"]], []).append(int(said["encodedDataLength"]))

    async def size(self, width: int, height: int, dark: bool = False) -> None:
        """Sets the size; a narrow page is a phone's."""
        phone = width < 600
        await self.do(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )
        theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.do("Emulation.setEmulatedMedia", features=theme)

    async def open(self, url: str, until: str = "document.body && document.body.dataset.ready") -> None:
        await self.do("Page.navigate", url=url)
        await self.until(until)

    async def until(self, script: str, seconds: float = 90) -> None:
        end = time.monotonic() + seconds
        while not await self.run(script):
            if time.monotonic() > end:
                raise TimeoutError(f"{script}: {self.errors} {await self.run('document.body.innerText.slice(0, 500)')}")
            await asyncio.sleep(0.1)

    async def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        done = await self.do("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(str(done["exceptionDetails"].get("exception")))
        return done["result"].get("value")

    async def key(self, name: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            await self.do("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    async def picture(self, file: Path) -> None:
        shot = await self.do("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(shot["data"]))
