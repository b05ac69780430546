"""`gpu-hook freeze` and `resume`, also of a container that keeps its policy page closed by a lease."""

import fcntl
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oci_hook.core.grant import Grant, Share
from oci_hook.ledger import store
from tests.cli.box import Install

STATUS = 3  # the ledger has the change, the container does not


@pytest.fixture
def batch(install: Install) -> Grant:
    return install.grant("batch", Share("GPU-0", 1024, 30, slot=1))


def in_ledger(install: Install) -> Grant:
    (grant,) = store.snapshot(str(install.state))
    return grant


@contextmanager
def lease(install: Install, grant: Grant) -> Iterator[None]:
    """A lease as a container can hold on its own page: opening the page for writing would block."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel's request to give the lease up
    fd = os.open(Path(install.state, "pages", grant.key, "policy"), os.O_RDONLY)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        yield
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, before)


def test_freeze_and_resume(install: Install, batch: Grant) -> None:
    frozen = install.data("freeze", "batch")
    assert frozen == {
        "id": "batch",
        "key": batch.key,
        "frozen_since": in_ledger(install).frozen,
        "changed": True,
        "in_effect": True,
    }
    assert frozen["frozen_since"] > 1_700_000_000
    assert install.text("freeze", "batch") == "container batch is frozen already\n"
    assert install.text("resume", "batch") == "container batch resumed\n"
    assert install.data("resume", "batch")["frozen_since"] is None and not in_ledger(install).frozen
    told = [json.loads(line) for line in install.text("events", "--json").splitlines()]
    assert [e["changes"] for e in told] == [["its GPU work is stopped"], ["its GPU work goes on"]]


def test_nothing_to_freeze(install: Install) -> None:
    install.grant("whole", Share("GPU-1", 24576, whole=True), exclusive=True)
    text = install.text("freeze", "whole", status=1)
    assert text.startswith("GH-411: container whole has its GPUs alone") and "docker pause" in text


@pytest.mark.root
def test_a_change_that_is_not_in_effect_yet(install: Install, batch: Grant) -> None:
    with lease(install, batch):
        text = install.text("freeze", "batch", status=STATUS)
        assert text.splitlines()[0] == "container batch frozen"
        assert "not in effect yet" in text and "the former state still applies" in text
        assert in_ledger(install).frozen
        data = install.data("set", "batch", "--memory", "2Gi", status=STATUS)
        assert data["in_effect"] is False and data["after"]["gpus"][0]["memory_mib"] == 2048
        assert "the former share still applies" in install.text("set", "batch", "--memory", "3Gi", status=STATUS)
    assert install.data("resume", "batch")["in_effect"] is True
