"""docs/guide/clients.md: `python -m tests.clients` writes its tables anew (see __main__.py)."""

import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.clients.compare import Verdict
from tests.clients.frame import Case, Client, Known
from tests.clients.known import KNOWN

PAGE = Path(__file__).resolve().parents[2] / "docs/guide/clients.md"
HEAD = "| client | version | what ran | steps that worked | result |\n| --- | --- | --- | --- | --- |\n"
COSTS = "| client | downloaded once | time, bare and share | runs |\n| --- | --- | --- | --- |\n"


def row(client: Client, case: Case, verdict: Verdict) -> str:
    """A case's row of the first table."""
    worked = f"{verdict.succeeded} of {verdict.steps}"
    result = "the same" if not verdict.limits else f"the same; {verdict.limits} by the limit"
    if verdict.known:
        result += f"; {len(verdict.known)} differ (below)"
    return f"| {client.name} | {client.version} | {case.what} | {worked} | {result} |\n"


def cost(client: Client, size: int, seconds: float) -> str:
    """A client's row of the second table."""
    runs = f"`--clients={client.name}`" if client.heavy else "always"
    if not client.heavy and any(case.only_clients for case in client.cases):
        runs = "in part always, whole with `--clients`"
    megabytes = f"{size / 1e6:.1f} MB" if size < 10e6 else f"{size / 1e6:.0f} MB"
    return f"| {client.name} | {megabytes if size else 'nothing'} | {seconds:.0f} s | {runs} |\n"


def differences(known: Iterable[Known] = KNOWN) -> str:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for k in known:
        step = f"{k.step}: `{k.bare}` bare, `{k.share}` on the share"
        by_reason.setdefault((k.client, k.why), []).append(step)
    return (
        "".join(_folded(f"- {client}: {why} {'; '.join(steps)}.") for (client, why), steps in by_reason.items())
        or "None.\n"
    )


def _folded(line: str) -> str:
    return textwrap.fill(line, 138, subsequent_indent="  ", break_on_hyphens=False) + "\n"


def _written(name: str) -> "re.Pattern[str]":
    """The part between two marks that the run writes."""
    return re.compile(rf"(<!-- {name}: [^\n]* -->\n\n?)(.*?)(\n?<!-- end -->)", re.S)


def part(text: str, name: str) -> str:
    found = _written(name).search(text)
    assert found, name
    return found[2]


def rows_of(text: str, name: str, client: Client) -> list[str]:
    """The client's rows in a part."""
    return [line for line in part(text, name).splitlines(keepends=True) if line.startswith(f"| {client.name} |")]


def replaced(text: str, parts: Mapping[str, str]) -> str:
    for name, new in parts.items():
        part(text, name)
        text = _written(name).sub(lambda found, new=new: f"{found[1]}{new}{found[3]}", text)  # type: ignore[misc]
    return text
