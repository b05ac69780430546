"""Differences between bare and share that are no limits. Each has its reason, which docs/guide/clients.md prints."""

from tests.clients.frame import Known

KNOWN: tuple[Known, ...] = ()
