"""Each client, bare and on a share: the same but for limits. scripts/test --clients runs the long lists as well, and
--clients=NAME,... the heavy clients of these names."""

from collections.abc import Iterator

import pytest

from testbed import pinned as fetch
from tests.clients import page
from tests.clients.all import clients
from tests.clients.frame import Case, Client
from tests.clients.pair import Pair

pytestmark = [pytest.mark.root, pytest.mark.slow]


def listed() -> list[tuple[Client, Case]]:
    long, heavy = fetch.chosen()
    unknown = heavy - {client.name for client in clients() if client.heavy}
    assert not unknown, f"no heavy client is called {', '.join(sorted(unknown))}"
    return [
        (client, case)
        for client in clients()
        if not client.heavy or client.name in heavy
        for case in client.cases
        if long or not case.only_clients
    ]


@pytest.fixture(scope="module")
def pair(native: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("clients"))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("client", "case"), [pytest.param(*one, id=f"{one[0].name}-{one[1].name}") for one in listed()]
)
def test_bare_and_share_differ_only_in_limits(pair: Pair, client: Client, case: Case) -> None:
    verdict, bare, share = pair.judge(client, case)
    assert not verdict.faults, f"{verdict.faults}\n--- bare: {bare.text}\n--- share: {share.text}"
    assert page.row(client, case, verdict) in page.PAGE.read_text(), "python -m tests.clients writes the page anew"
