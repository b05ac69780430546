"""Runs the clients with their long lists and writes docs/guide/clients.md. `python -m tests.clients [NAME ...]`: also these
heavy ones. `python -m tests.clients --only NAME[-CASE] ...` prints what both sides say, and writes nothing."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.clients import fetch, page
from tests.clients.all import clients
from tests.clients.frame import Client
from tests.clients.pair import Pair
from tests.conftest import REPO


def show(pair: Pair, names: list[str]) -> int:
    faults = 0
    for client in clients():
        for case in client.cases:
            if client.name in names or f"{client.name}-{case.name}" in names:
                verdict, bare, share = pair.judge(client, case)
                print(f"=== {client.name}-{case.name}\n--- bare: {bare.text}\n--- share: {share.text}")
                print(f"--- {page.row(client, case, verdict)}", *verdict.faults, sep="\n    ")
                faults += len(verdict.faults)
    return min(faults, 1)


def write(pair: Pair, heavy: list[str]) -> int:
    text = page.PAGE.read_text()
    rows, costs, faults = [], [], 0
    old_rows, old_costs = page.part(text, "results"), page.part(text, "costs")
    for client in clients():
        if client.heavy and client.name not in heavy:
            mine = f"| {client.name} |"
            rows += [line + "\n" for line in old_rows.splitlines() if line.startswith(mine)]
            costs += [line + "\n" for line in old_costs.splitlines() if line.startswith(mine)]
            continue
        seconds = 0.0
        for case in client.cases:
            verdict, bare, share = pair.judge(client, case)
            rows.append(page.row(client, case, verdict))
            print(rows[-1], *verdict.faults, sep="\n    ", flush=True)
            seconds += bare.seconds + share.seconds
            faults += len(verdict.faults)
        costs.append(page.cost(client, fetch.size_of(client.pins, client.debs), seconds))
    shown: tuple[Client, ...] = clients()
    new = page.replaced(
        text,
        {
            "results": page.HEAD + "".join(rows),
            "costs": page.COSTS + "".join(costs),
            "limits": page.limits(shown),
            "differences": page.differences(),
        },
    )
    if not faults:
        page.PAGE.write_text(new)
    return min(faults, 1)


def main(words: list[str]) -> int:
    subprocess.run([sys.executable, str(REPO / "scripts/build")], check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(Path(folder))
        try:
            return show(pair, words[1:]) if words[:1] == ["--only"] else write(pair, words)
        finally:
            pair.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
