"""For each engine on this machine: whether this install is registered completely and the engine has read that."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from oci_hook.config.settings import Settings
from oci_hook.engines import containerd, containerd_place, containerd_spec, cri, daemons, detect, engine, toml_text
from oci_hook.engines.doctor.finding import EDIT, FAIL, NOTE, OK, WARN, CheckResult
from oci_hook.engines.edits import (
    NAME,
    FileChange,
    Record,
    Registration,
    annotation_patterns,
    pod_patterns,
    read,
    takes_lines,
)
from oci_hook.engines.effective import Has
from oci_hook.engines.register import is_default, lacks, planned, unused
from oci_hook.errors import GhError
from oci_hook.oci import nvidia_hooks

ANNOTATIONS_SINCE = 24  # docker run --annotation


def check_engines(registration: Registration, option: str, settings: Settings | None) -> Iterator[CheckResult]:
    prefix = registration.prefix
    record = Record(prefix)
    here = detect.found(registration)
    names = [name for name in here if name != "runc"] + [name for name in record.engines if name not in here]
    if not names:
        yield CheckResult("engine", NOTE, f"none found; call {registration.program} in place of runc")
    for name in names:
        try:
            yield from check_engine(name, registration, record, option, settings)
        except GhError as e:
            for problem in e.problems:
                message = str(problem).partition(": ")[2]
                named = re.search(r"`(gpu-hook [^`]+)`", message)
                yield CheckResult(name, FAIL, message, problem.code, named[1] if named else edit(message))


def edit(message: str) -> str:
    """The fix for a file that only a person can change: a message about it begins with its path. "" if there is none."""
    path = re.split(r": | already ", message)[0].partition(":")[0]
    return f"{EDIT} {shlex.quote(path)}" if path.startswith("/") else ""


def check_engine(
    name: str, registration: Registration, record: Record, option: str, settings: Settings | None
) -> Iterator[CheckResult]:
    if why := unused(name, record, registration):
        yield CheckResult(name, NOTE, f"gpu-hook is not registered: {why}")
        return
    configs = configurations(name, record, registration)
    for config in configs:
        fix = f"gpu-hook install --engine {name}{option}" + (f" --config {shlex.quote(config)}" if config else "")
        yield from check_registration(name, replace(registration, config=config), record, fix, configs)
        if name == "docker":
            yield from docker_age(settings)


def configurations(name: str, record: Record, registration: Registration) -> list[str | None]:
    """The files that `install --config` was given; None for the usual file."""
    files = {Path(path): entry["notes"] for path, entry in record.engines.get(name, {}).items()}
    if name != "docker":
        return list(dict.fromkeys(notes.get("config") for notes in files.values())) or [None]
    usual = {read(path)[0] for path in engine(name).paths(registration)}
    return [None if path in usual else str(path) for path in files] or [None]


def check_registration(
    name: str, registration: Registration, record: Record, fix: str, configs: list[str | None]
) -> Iterator[CheckResult]:
    """Compares what the engine has with what a new install would give it, first in its files, then in its daemons."""
    module = engine(name)
    if name == "containerd" and (found := containerd.found(registration)):
        yield CheckResult(name, NOTE, f"it is {found}")
    if name == "containerd" and containerd.by_hand(registration):
        yield told_by_hand(registration, f"{fix} --print")
        return
    changes = planned(name, registration, record)
    places = [change for change in changes if not change.former]
    if all(change.old == change.before for change in changes):
        recorded = name in record.engines
        where = places[0].path if places else "the configuration"
        lost = f"was registered, but its lines are not in {where}" if recorded else "is not registered"
        yield CheckResult(name, WARN if recorded else NOTE, f"gpu-hook {lost}", "GH-510" if recorded else "", fix)
        if name == "docker":
            yield from still_offered(registration)
        return
    default = is_default(name, record, registration)
    has = module.has(registration, {})
    incomplete = [change for change in places if change.old != change.new and not migrated(name, change)]
    for change in incomplete:
        yield CheckResult(name, FAIL, f"{change.path}: {missing(name, change)}", "GH-510", fix)
    wrong = lacks(has, registration, default)
    for what in wrong if not incomplete else ():  # which no install would change
        by = has.default_by if "default" in what else has.program_by
        yield CheckResult(name, WARN, what, "GH-510", by_hand(by, name) if by else fix)
    if not incomplete and not wrong:
        yield CheckResult(name, OK, f"registered in {places[0].path}")
    for what in module.doubts(registration) if hasattr(module, "doubts") else ():
        yield CheckResult(name, NOTE, what)
    yield from nvidia_default(name, has)
    if name == "containerd":
        yield from disabled(places[0])
    yield from running_daemons(name, registration, places[0].path, default, fix, configs)
    for folder in sorted({change.path.parent for change in places[1:]}):
        yield from rival_hooks(name, folder)


def running_daemons(
    name: str, registration: Registration, path: Path, default: bool, fix: str, configs: list[str | None]
) -> Iterator[CheckResult]:
    """Asks the daemons that read this file what they have; says so where all of them read one that we are not in."""
    if engine(name).RELOAD is None:
        return
    for pid, file in daemons.elsewhere(name, path):
        other = f"{fix.partition(' --config ')[0]} --config {shlex.quote(file)}"
        other = other if takes_lines(Path(file)) else f"gpu-hook install --print --engine {name}"
        message = f"the running {engine(name).PROGRAMS[0]} ({pid}) reads {file} instead of {path}"
        if file not in configs and not (file == daemons.USUAL[name] and None in configs):
            yield CheckResult(name, WARN, message, "GH-510", other)
    command, why = daemons.command(name, path), daemons.not_to_reload(name, path)
    late = daemons.stale(name, path)
    for pid, words in daemons.readers(name, path):
        offered = daemons.offered(name, words)
        if pid in late:
            message = f"process {pid} has not read {path} since it was changed" + (
                f"; no reload, since {why}" if why else ""
            )
            yield CheckResult(name, WARN, message, "GH-510", command)
        elif offered is not None:
            by_hooks = name == "containerd" and containerd_spec.is_used(registration)
            program = (not by_hooks and offered.runtimes.get(NAME)) or registration.program
            for what in lacks(Has(program, offered.default or NAME), registration, default):
                yield CheckResult(name, WARN, f"process {pid}, as it runs: {what}", "GH-510", command)


def told_by_hand(registration: Registration, fix: str) -> CheckResult:
    """The finding of a containerd that only a person can tell of us: by its own word."""
    try:
        known = cri.offered(containerd_place.of(registration).address)
    except (OSError, ValueError) as e:
        return CheckResult(
            "containerd", WARN, f"it does not say whether it knows the handler {NAME}: {e}", "GH-510", fix
        )
    if known is not None and NAME not in known.runtimes:
        return CheckResult("containerd", FAIL, f"it does not know the handler {NAME}", "GH-510", fix)
    return CheckResult("containerd", OK, f"it knows the handler {NAME}")


def migrated(name: str, change: FileChange) -> bool:
    if name != "containerd" or change.old is None or change.new is None:
        return False
    old, new = (toml_text.parse(text.decode(), change.path) for text in (change.old, change.new))
    return containerd.is_whole(old, new)


def missing(name: str, change: FileChange) -> str:
    """The difference in words for users, instead of a diff."""
    if change.old is None:
        return "is missing"
    if change.old == change.before:
        return "has no lines of gpu-hook, and is the file that counts"
    if name == "containerd":
        for handler in containerd.handlers(toml_text.parse(change.old.decode(), change.path)):
            for key, wanted in (("pod_annotations", pod_patterns()), ("container_annotations", annotation_patterns())):
                passed = handler.get(key, [])
                lost = [p for p in wanted if p not in passed]
                if lost:
                    return f"{key} of {NAME} lacks {', '.join(lost)}: containerd does not pass such annotations on"
    return "differs from the lines that this install writes"


def docker_age(settings: Settings | None) -> Iterator[CheckResult]:
    major = version("dockerd")
    if major and major < ANNOTATIONS_SINCE and settings is not None and not settings.rules.trust_env:
        message = (
            f"docker {major} passes no annotations: request by `-v /dev/null:/run/gpu-hook/request/memory=4Gi`, or"
            " by -e if the setting `trust_env: true` trusts all images"
        )
        yield CheckResult("docker", NOTE, message)


def still_offered(registration: Registration) -> Iterator[CheckResult]:
    """A dockerd that was told of us once: a reload does not take the last entry of `runtimes` away."""
    for host in daemons.docker_hosts():
        has = daemons.docker_has(host)
        if has is None or NAME not in has.runtimes:
            continue
        program = has.runtimes[NAME] or registration.program
        if program == registration.program or not os.path.exists(registration.host(program)):
            where, fix = ("", "systemctl restart docker") if host == daemons.SOCKET else (f" at {host}", "")
            message = f"the running dockerd{where} still offers the runtime {NAME}, until it is restarted"
            yield CheckResult("docker", WARN, message, "GH-510", fix)


def disabled(change: FileChange) -> Iterator[CheckResult]:
    data = toml_text.parse((change.old or b"").decode("utf-8", "replace"), change.path)
    for plugin in containerd.disabled(data):
        message = f"{change.path}: disabled_plugins has {plugin}, so containerd serves no kubelet"
        yield CheckResult("containerd", WARN, message, "GH-510", by_hand(change.path, "containerd"))


def rival_hooks(name: str, folder: Path) -> Iterator[CheckResult]:
    for other in sorted(folder.glob("*.json")):
        if any(program in other.read_text(errors="replace") for program in nvidia_hooks.FAMILY):
            message = f"{other} is NVIDIA's own hook: containers that it also matches are refused (GH-409)"
            yield CheckResult(name, NOTE, message, "", f"mv {other} {other}.off")


def by_hand(path: Path, name: str) -> str:
    """The fix for a setting of others' that only a person can change."""
    return f"{EDIT} {shlex.quote(str(path))}" + (f" && systemctl restart {name}" if engine(name).RELOAD else "")


def nvidia_default(name: str, has: Has) -> Iterator[CheckResult]:
    if "nvidia" in has.default and has.default_by is not None:
        message = f"the default runtime is {has.default}: an image's own NVIDIA_VISIBLE_DEVICES gives it every GPU"
        yield CheckResult(name, WARN, message, "GH-403", by_hand(has.default_by, name))


def version(program: str) -> int | None:
    try:
        text = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    number = re.search(r"(\d+)\.\d", text)
    return int(number[1]) if number else None
