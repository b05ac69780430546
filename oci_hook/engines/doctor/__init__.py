"""Finds what is wrong on this node, with the command that fixes it. Changes nothing.

Every check is a function that yields findings; if a check itself fails, the failure becomes a finding too.
"""

import os
import re
from collections.abc import Iterator

from oci_hook.config import settings as node_settings
from oci_hook.config.settings import Settings, load
from oci_hook.core.layout import SETTINGS_YAML
from oci_hook.engines.doctor.cluster import check_cluster
from oci_hook.engines.doctor.finding import EDIT, FAIL, NOTE, OK, STATES, WARN, CheckResult
from oci_hook.engines.doctor.node import check_driver, check_inventory, check_kernel, check_leases, check_ledger
from oci_hook.engines.doctor.prefix import check_prefix, check_settings, check_shim
from oci_hook.engines.doctor.registered import check_engines
from oci_hook.engines.edits import Registration
from oci_hook.errors import GhError

__all__ = ["FAIL", "NOTE", "OK", "STATES", "WARN", "CheckResult", "examine"]


def examine(prefix: str, host_root: str = "/") -> list[CheckResult]:
    """All findings, from the install to the engines. host_root: where the machine's / is mounted."""
    option = node_settings.option(prefix)
    try:
        settings: Settings | None = load(prefix)
    except GhError:
        settings = None
    checks = [("prefix", check_prefix(prefix, option))]
    if os.path.isdir(prefix):
        checks += [
            ("settings", check_settings(prefix, option)),
            ("shim", check_shim(prefix, option)),
        ]
    if settings is not None:
        checks += [
            ("driver", check_driver(settings, option)),
            ("inventory", check_inventory(settings, option)),
            ("ledger", check_ledger(settings, option)),
            ("cluster", check_cluster(prefix, option)),
        ]
    checks += [
        ("kernel", check_kernel(option)),
        ("leases", check_leases()),
        ("engine", check_engines(Registration(prefix, host_root=host_root), option, settings)),
    ]
    return [finding for name, findings in checks for finding in guarded(name, findings, option, prefix)]


def guarded(name: str, findings: Iterator[CheckResult], option: str, prefix: str) -> Iterator[CheckResult]:
    """Yields a check's findings. If the check fails, the error is its last finding, with the command that it names."""
    try:
        yield from findings
    except GhError as e:
        for problem in e.problems:
            message = str(problem).partition(": ")[2]
            named = re.search(r"`(gpu-hook [^`]+)`", message)
            fix = f"{named[1]}{option}" if named and "--prefix" not in named[1] else named[1] if named else ""
            if " release --force " in fix:
                fix += "  # stop its container first: otherwise it keeps running, unaccounted"
            if message.endswith("run this as root"):
                fix = f"sudo gpu-hook doctor{option}"
            if not fix and name == "settings":
                fix = f"{EDIT} {prefix}/{SETTINGS_YAML} && gpu-hook settings check{option}"
            yield CheckResult(name, FAIL, message, problem.code, fix)
    except OSError as e:
        yield CheckResult(name, WARN, f"cannot be checked: {e}", "", f"sudo gpu-hook doctor{option}")
