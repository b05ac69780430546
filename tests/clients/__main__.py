"""`python -m tests.clients` runs the light clients with their long lists and writes docs/guide/clients.md; with names, only
these clients, and the rows of the others stay. `python -m tests.clients --only NAME[-CASE] ...` prints what both sides say,
and writes nothing."""

import subprocess
import sys
import tempfile
from pathlib import Path

from testbed import REPO
from testbed import pinned as fetch
from tests.clients import page
from tests.clients.all import clients
from tests.clients.frame import Client
from tests.clients.pair import Pair


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


def write(pair: Pair, names: list[str]) -> int:
    wanted = [c for c in clients() if (c.name in names if names else not c.heavy)]
    ran = {client.name: rows for client in wanted if (rows := run(pair, client))}
    text = page.PAGE.read_text()  # not earlier: another run may have written meanwhile
    rows, costs = [page.HEAD], [page.COSTS]
    for client in clients():
        new = ran.get(client.name)
        rows += new[:-1] if new else page.rows_of(text, "results", client)
        costs += new[-1:] if new else page.rows_of(text, "costs", client)
    parts = {"results": "".join(rows), "costs": "".join(costs)}
    parts |= {"differences": page.differences()}
    page.PAGE.write_text(page.replaced(text, parts))
    return 0 if len(ran) == len(wanted) >= len(names) else 1


def run(pair: Pair, client: Client) -> list[str]:
    """The rows of its cases, and that of its cost; nothing where something differed, which is printed."""
    rows, seconds, faults = [], 0.0, 0
    for case in client.cases:
        verdict, bare, share = pair.judge(client, case)
        rows.append(page.row(client, case, verdict))
        print(rows[-1], *verdict.faults, sep="\n    ", flush=True)
        seconds += bare.seconds + share.seconds
        faults += len(verdict.faults)
    cost = page.cost(client, fetch.size_of(client.pins, client.debs), seconds)
    return [] if faults else [*rows, cost]


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
