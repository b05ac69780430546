"""ClusterIP Services for the whole cluster: every node sends 10.96.0.0/16 here, and this passes connections on.

services.py PKI-FOLDER API-ADDRESS DEVICE MINOR-VERSION. TCP only; a connection goes to an endpoint that is ready at that moment.
"""

import asyncio
import itertools
import json
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

pki, api, device, minor = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
turn = itertools.count()
Key = tuple[str, int]  # a Service's address and port
ready: dict[Key, list[Key]] = {}


def asked(path: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"https://{api}{path}", context=context, timeout=5) as answer:
        found: list[dict[str, Any]] = json.load(answer)["items"]
        return found


def slices() -> list[dict[str, Any]]:
    """EndpointSlices; before Kubernetes 1.33 Endpoints in that shape, as API servers of the time look for webhooks in them."""
    if minor >= 33:
        return asked("/apis/discovery.k8s.io/v1/endpointslices")
    found = []
    for one in asked("/api/v1/endpoints"):
        label = {"kubernetes.io/service-name": one["metadata"]["name"]}
        metadata = {"namespace": one["metadata"]["namespace"], "labels": label}
        for subset in one.get("subsets") or ():
            at = [{"addresses": [a["ip"] for a in subset.get("addresses") or ()], "conditions": {"ready": True}}]
            found.append({"metadata": metadata, "endpoints": at, "ports": subset.get("ports")})
    return found


def wanted() -> dict[Key, list[Key]]:
    """(address, port) of each Service -> the addresses and ports behind it."""
    behind: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in slices():
        name = one["metadata"].get("labels", {}).get("kubernetes.io/service-name", "")
        behind.setdefault((one["metadata"]["namespace"], name), []).append(one)
    found: dict[Key, list[Key]] = {}
    for service in asked("/api/v1/services"):
        metadata = service["metadata"]
        address = service["spec"].get("clusterIP", "None")
        if address == "None":
            continue
        for port in service["spec"].get("ports") or []:
            found[address, port["port"]] = [
                (at, p["port"])
                for one in behind.get((metadata["namespace"], metadata["name"]), [])
                for p in one.get("ports") or ()
                if (p.get("name") or "") == port.get("name", "")
                for end in one.get("endpoints") or ()
                if end["conditions"].get("ready")
                for at in end["addresses"]
            ]
    return found


async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
        target.write_eof()
    except OSError:
        pass


async def main() -> None:
    servers: dict[Key, asyncio.Server] = {}

    async def connect(key: Key, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        targets = ready.get(key, [])
        try:
            if targets:
                there = await asyncio.open_connection(*targets[next(turn) % len(targets)])
                await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))
                there[1].close()
        except OSError:
            pass
        writer.close()

    while True:
        try:
            now = await asyncio.to_thread(wanted)
        except (OSError, ValueError):  # the API server is away: the old Services stay
            await asyncio.sleep(1)
            continue
        ready.clear()
        ready.update(now)
        for key in servers.keys() - now.keys():
            servers.pop(key).close()
        for key in now.keys() - servers.keys():
            subprocess.run(["ip", "address", "replace", f"{key[0]}/32", "dev", device], check=True)
            try:
                servers[key] = await asyncio.start_server(lambda r, w, key=key: connect(key, r, w), *key)
            except OSError as e:
                print(f"{key[0]} port {key[1]}: {e}", file=sys.stderr, flush=True)
        await asyncio.sleep(1)


asyncio.run(main())
