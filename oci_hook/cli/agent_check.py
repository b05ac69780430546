"""`doctor`'s findings on the node agent: whether it runs, answers, has this version, and which problems it reports."""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress

from oci_hook import __version__
from oci_hook.agent.serve import whereabouts
from oci_hook.boundary import limit_records
from oci_hook.cli import named, node_now, output
from oci_hook.config.settings import Settings
from oci_hook.core import words
from oci_hook.core.grant import Grant
from oci_hook.core.layout import AGENT_LOCK, AGENT_SOCKET
from oci_hook.engines.doctor import NOTE, OK, WARN, CheckResult
from oci_hook.errors import GhError
from oci_hook.ledger import events, inventory

UNIT = "gpu-hook-agent"
UNIT_FOLDERS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
# The agent's problem -> the command that fixes it or shows more.
FIXES = {
    "settings": "gpu-hook settings check{option}",
    "disk": "du -ah {state_dir} | sort -h | tail",
    "ledger": "gpu-hook ps{option}",
    "inventory": "gpu-hook gpus --refresh{option}",
    "nvml": "nvidia-smi",
    "gpus": "dmesg | grep -i xid",
    "devices": "nvidia-smi",
    "locks": "lslocks",
    "accounts": "journalctl -u gpu-hook-agent",
    "textfile": "journalctl -u gpu-hook-agent",
    "boundary": "gpu-hook ps{option}",
    "cluster": "journalctl -u gpu-hook-agent",
    "suspend": "gpu-hook events{option}",
    "driver": "gpu-hook agent take-driver{option}",
    "page": "ss -ltnp",
    "socket": "ls -l {state_dir}.sock",
}


def _has_records(state_dir: str) -> bool:
    """True if containers were given limits by the driver."""
    try:
        return bool(limit_records.keys(state_dir))
    except OSError:  # only root can see them
        return False


def _lent(settings: Settings) -> tuple[bool, str]:
    """(whether memory is lent, by the setting or by grants of before; the containers that are away for others)"""
    grants: tuple[Grant, ...] = ()
    moves = True
    with suppress(GhError):  # reported by other checks
        grants = named.snapshot(settings)
        moves = inventory.load(settings).moves_memory
    away = words.first([events.title(grant.who) for grant in grants if grant.lent_to], 3)
    lends = (settings.rules.lends and moves) or any(share.request_mib for grant in grants for share in grant.shares)
    return lends or bool(away), away


def _taken(path: str) -> bool:
    """By what no agent removes: a file, a directory, a link."""
    try:
        return not stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def check_agent(settings: Settings, prefix: str, option: str) -> Iterator[CheckResult]:
    pid, node = whereabouts.holder(f"{settings.state_dir}/{AGENT_LOCK}"), node_now.ask(settings)
    here = any(os.path.exists(f"{folder}/{UNIT}.service") for folder in UNIT_FOLDERS)
    managed = here and shutil.which("systemctl") is not None
    if not pid and node is None:
        start = f"systemctl enable --now {UNIT}" if managed else f"gpu-hook agent{option}"
        message = "does not run: nothing detects containers that bypass their limits; containers do not need it"
        lent, away = _lent(settings)
        if lent:
            message = "does not run, and memory is lent: only the agent makes room for allocations that find none"
            message += ", and brings back who was moved for them" + (away and f" (away now: {away})")
        if _has_records(settings.state_dir):
            message += ", but no driver's limit that is lost, or could not be set, is set again without it"
        yield CheckResult("agent", WARN if lent else NOTE, message, "", start)
        return
    restart = f"systemctl restart {UNIT}" if managed else f"kill {pid}; gpu-hook agent{option}"
    of = f" (process {pid})" if pid else ""  # only root can see who holds the lock
    if not pid and not managed:
        restart = f"sudo gpu-hook doctor{option}"  # `kill 0` would end the shell that it is pasted into
    if node is None:
        message = f"runs{of}, but does not answer at {settings.state_dir}{AGENT_SOCKET}"
        if _taken(f"{settings.state_dir}{AGENT_SOCKET}"):
            look = FIXES["socket"].format(state_dir=settings.state_dir)
            yield CheckResult("agent", WARN, f"{message}: something else has this name; move it away", "GH-321", look)
            return
        yield CheckResult("agent", WARN, message, "", restart)
        return
    agent = node["agent"]
    version = str(agent.get("version", "an older version"))
    if version != __version__:
        yield CheckResult(
            "agent", WARN, f"is version {output.printable(version)}, the install is {__version__}", "", restart
        )
    for name, what in agent["problems"].items():
        fix = FIXES.get(name, restart).format(option=option, state_dir=settings.state_dir)
        yield CheckResult("agent", WARN, f"degraded: {name}: {output.printable(what)}", "", fix)
    if not agent["problems"]:
        where = f"web page http://{agent['page']}/" if agent.get("page") else "no web page"
        yield CheckResult("agent", OK, f"{output.printable(version)} runs{of}, {where}")
