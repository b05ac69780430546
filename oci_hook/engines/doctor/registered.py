"""For each engine on this machine: whether this install is registered completely and the engine has read that."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from oci_hook.config.settings import Settings
from oci_hook.engines import containerd, daemons, detect, engine, json_text, toml_text
from oci_hook.engines.doctor.finding import EDIT, FAIL, NOTE, OK, WARN, CheckResult
from oci_hook.engines.edits import NAME, FileChange, Record, Registration, annotation_patterns, plan, pod_patterns, read
from oci_hook.engines.register import unused
from oci_hook.errors import GhError
from oci_hook.observe.daemons import flag_value, running
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
                yield CheckResult(name, FAIL, message, problem.code, edit(message))


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
    module = engine(name)
    fix = f"gpu-hook install --engine {name}{option}"
    recorded = [Path(path) for path in record.engines.get(name, {})]
    paths = list(dict.fromkeys([*recorded, *([] if recorded else module.paths(registration))]))
    if (own := own_file(name, recorded, registration)) is not None:
        registration = replace(registration, config=str(own))
        fix += f" --config {own}"
    changes = [plan(module.target(path, registration), record, name) for path in paths]
    if all(change.old == change.before for change in changes):
        state = WARN if recorded else NOTE
        lost = "was registered, but its lines are gone from the configuration" if recorded else "is not registered"
        yield CheckResult(name, state, f"gpu-hook {lost}", "GH-510" if recorded else "", fix)
        if name == "docker":
            yield from still_offered(registration)
        return
    incomplete = [change for change in changes if change.old != change.new and not migrated(name, change)]
    for change in incomplete:
        yield CheckResult(name, FAIL, f"{change.path}: {missing(name, change)}", "GH-510", fix)
    if not incomplete:
        yield CheckResult(name, OK, f"registered in {', '.join(str(change.path) for change in changes[:1])}")
    if name in OF_ENGINE:
        yield from OF_ENGINE[name](changes[0], settings, option)
    yield from not_restarted(name, changes[0])
    for folder in sorted({change.path.parent for change in changes[1:]}):
        yield from rival_hooks(name, folder)


def own_file(name: str, recorded: list[Path], registration: Registration) -> Path | None:
    """The file that `install --config` was given; None if it registered in the usual file or its drop-in."""
    if name != "docker":
        recorded = [path for path in recorded if path.suffix != ".json"]  # hooks, and containerd's spec
    if len(recorded) != 1:
        return None
    usual = {read(path)[0] for path in engine(name).paths(registration)}
    return None if recorded[0] in usual else recorded[0]


def migrated(name: str, change: FileChange) -> bool:
    if name != "containerd" or change.old is None or change.new is None:
        return False
    old, new = (toml_text.parse(text.decode(), change.path) for text in (change.old, change.new))
    return containerd.is_whole(old, new)


def missing(name: str, change: FileChange) -> str:
    """The difference in words for users, instead of a diff."""
    if change.old is None:
        return "is missing"
    if name == "containerd":
        for handler in containerd.handlers(toml_text.parse(change.old.decode(), change.path)):
            for key, wanted in (("pod_annotations", pod_patterns()), ("container_annotations", annotation_patterns())):
                passed = handler.get(key, [])
                lost = [p for p in wanted if p not in passed]
                if lost:
                    return f"{key} of {NAME} lacks {', '.join(lost)}: containerd does not pass such annotations on"
    return "differs from the lines that this install writes"


def docker_findings(change: FileChange, settings: Settings | None, option: str) -> Iterator[CheckResult]:
    text = (change.old or b"").decode("utf-8", "replace")
    data = json_text.parse(text, change.path) if text.strip() else {}
    yield from nvidia_default("docker", data.get("default-runtime"), change.path)
    major = version("dockerd")
    if major and major < ANNOTATIONS_SINCE and settings is not None and not settings.rules.trust_env:
        message = (
            f"docker {major} passes no annotations: request by `-v /dev/null:/run/gpu-hook/request/memory=4Gi`, or"
            " by -e if the setting `trust_env: true` trusts all images"
        )
        yield CheckResult("docker", NOTE, message)
    for pid, words in running("dockerd"):
        file = flag_value(words, "--config-file")
        if file and os.path.realpath(file) != str(change.path):
            fix = f"gpu-hook install --engine docker --config {file}{option}"
            yield CheckResult("docker", WARN, f"the running dockerd ({pid}) reads {file} instead", "GH-510", fix)
    for pid in daemons.stale("docker", change.path):
        why = daemons.not_to_reload("docker", change.path)
        message = f"the running dockerd ({pid}) has not read {change.path}" + (
            f"; no reload, since {why}" if why else ""
        )
        yield CheckResult("docker", WARN, message, "GH-510", daemons.command("docker", change.path))


def still_offered(registration: Registration) -> Iterator[CheckResult]:
    """A dockerd that was told of us once: a reload does not take the last entry of `runtimes` away."""
    for host in daemons.docker_hosts():
        offered = json.loads(daemons.docker_runtimes(host) or "{}").get(NAME)
        program = (offered or {}).get("path") or registration.program
        if offered is not None and (program == registration.program or not os.path.exists(registration.host(program))):
            where, fix = ("", "systemctl restart docker") if host == daemons.SOCKET else (f" at {host}", "")
            message = f"the running dockerd{where} still offers the runtime {NAME}, until it is restarted"
            yield CheckResult("docker", WARN, message, "GH-510", fix)


def containerd_findings(change: FileChange, settings: Settings | None, option: str) -> Iterator[CheckResult]:
    data = toml_text.parse((change.old or b"").decode("utf-8", "replace"), change.path)
    for plugin in containerd.disabled(data):
        message = f"{change.path}: disabled_plugins has {plugin}, so containerd serves no kubelet"
        fix = f"""sed -i '/^disabled_plugins/s/"{plugin}",\\? *//' {change.path} && systemctl restart containerd"""
        yield CheckResult("containerd", WARN, message, "GH-510", fix)
    for table in containerd.PLUGIN.values():
        default = toml_text.get(data, (*table, "containerd", "default_runtime_name"))
        yield from nvidia_default("containerd", default, change.path)


OF_ENGINE = {"docker": docker_findings, "containerd": containerd_findings}


def not_restarted(name: str, change: FileChange) -> Iterator[CheckResult]:
    """containerd and CRI-O that were started before the last change: they read their files only then."""
    if name == "docker":
        return
    for pid in daemons.stale(name, change.path):
        message = f"process {pid} was started before {change.path} was changed and has not read it"
        yield CheckResult(name, WARN, message, "GH-510", daemons.command(name, change.path))


def rival_hooks(name: str, folder: Path) -> Iterator[CheckResult]:
    for other in sorted(folder.glob("*.json")):
        if any(program in other.read_text(errors="replace") for program in nvidia_hooks.FAMILY):
            message = f"{other} is NVIDIA's own hook: containers that it also matches are refused (GH-409)"
            yield CheckResult(name, NOTE, message, "", f"mv {other} {other}.off")


def nvidia_default(name: str, runtime: Any, path: Path) -> Iterator[CheckResult]:
    if isinstance(runtime, str) and "nvidia" in runtime:
        message = f"the default runtime is {runtime}: an image's own NVIDIA_VISIBLE_DEVICES gives it every GPU"
        yield CheckResult(name, WARN, message, "GH-403", f"{EDIT} {path} && systemctl restart {name}")


def version(program: str) -> int | None:
    try:
        text = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    number = re.search(r"(\d+)\.\d", text)
    return int(number[1]) if number else None
