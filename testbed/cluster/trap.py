"""A scheduler's way to the extender, on which a fault can wait for the moment between the answer and the Binding.

trap.py FOLDER PORT API-ADDRESS PKI-FOLDER: HTTP on the loopback, passed on to one of the ports in FOLDER/extender. While
FOLDER/trap exists, the next answer to /filter that names a node takes it and does what it says, one JSON object: {"kill": PID,
"after_us": N, "deaf": bool} or {"grace": seconds, "after_us": N} for the pod's deletion. FOLDER/caught tells the pod.
deaf: the scheduler does not get the answer.
"""

import http.client
import json
import os
import random
import signal
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

folder, port = Path(sys.argv[1]), int(sys.argv[2])
API, PKI = sys.argv[3], Path(sys.argv[4])


def armed() -> dict[str, Any] | None:
    """The fault that the trap is set for; taken once."""
    mine = folder / f"trap.{threading.get_ident()}"
    try:
        os.rename(folder / "trap", mine)
    except FileNotFoundError:
        return None
    said: dict[str, Any] = json.loads(mine.read_text())
    mine.unlink()
    return said


def spring(trap: dict[str, Any], pod: dict[str, Any]) -> None:
    end = time.perf_counter() + trap["after_us"] / 1e6
    if trap["after_us"] > 2000:
        time.sleep(trap["after_us"] / 1e6 - 0.001)
    while time.perf_counter() < end:
        pass
    meta = pod["metadata"]
    if "kill" in trap:
        try:
            os.kill(trap["kill"], signal.SIGKILL)
        except ProcessLookupError:
            return
    else:
        delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}?gracePeriodSeconds={trap['grace']}")
    (folder / "caught").write_text(f"{meta['namespace']}/{meta['name']}")


def delete(path: str) -> None:
    context = ssl.create_default_context(cafile=str(PKI / "ca.crt"))
    context.load_cert_chain(PKI / "admin.crt", PKI / "admin.key")
    connection = http.client.HTTPSConnection(API, 443, context=context, timeout=10)
    try:
        connection.request("DELETE", path)
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        pass  # the API server is away: the pod stays
    finally:
        connection.close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status, answer = self.passed_on(body)
        trap = None
        if status == 200 and self.path == "/filter" and json.loads(answer).get("NodeNames"):
            trap = armed()
        if trap is not None:
            threading.Thread(target=spring, args=(trap, json.loads(body)["Pod"])).start()
            if trap.get("deaf"):
                self.close_connection = True
                return
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(answer)

    def passed_on(self, body: bytes) -> tuple[int, bytes]:
        try:
            ports = json.loads((folder / "extender").read_text())
            there = http.client.HTTPConnection("127.0.0.1", random.choice(ports), timeout=5)
            there.request("POST", self.path, body, {"Content-Type": "application/json"})
            answer = there.getresponse()
            return answer.status, answer.read()
        except (OSError, ValueError, IndexError, http.client.HTTPException) as e:
            return 503, str(e).encode()

    def log_message(self, format: str, *args: Any) -> None:
        pass


ThreadingHTTPServer.daemon_threads = True
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
