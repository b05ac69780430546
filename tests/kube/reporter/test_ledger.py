"""The node's own state as the reporter reads it."""

import json
import os
import selectors

from oci_hook.core.layout import UNLISTED
from oci_hook.kube.reporter.ledger import LedgerView
from oci_hook.linux.proc import process_life
from testbed.installs import Install


def test_memory_that_nobody_has_is_told_and_taken_back(prefix: Install) -> None:
    """The agent writes it beside the inventory, which does not change."""
    with selectors.DefaultSelector() as selector:
        ledger = LedgerView(str(prefix.prefix), selector)
        ledger.follow()
        uuid = prefix.inventory.gpus[0].uuid
        file = prefix.prefix.parent / "state" / UNLISTED
        seen = []
        for missing in ({}, {uuid: 7}, {uuid: 900}, {}):
            file.unlink(missing_ok=True)
            if missing:
                file.write_text(json.dumps({"agent": process_life(os.getpid()), "mib": missing}))
                file.chmod(0o600)
            seen.append([gpu.missing_mib for gpu in ledger.inventory().inventory.gpus])
        ledger.close()
    rest = [0] * (len(prefix.inventory.gpus) - 1)
    assert seen == [[0, *rest], [7, *rest], [900, *rest], [0, *rest]]
