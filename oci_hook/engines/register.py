"""Registers an install with container engines, and unregisters it. All changes are planned before the first is made."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from oci_hook.engines import NAMES, containerd_spec, daemons, detect, engine
from oci_hook.engines.edits import (
    NAME,
    FileChange,
    Record,
    Registration,
    carry_out,
    lock,
    plan,
    put_in_place,
    read,
    reverted,
    takes_lines,
    text_of,
    writable,
)
from oci_hook.engines.effective import Has
from oci_hook.errors import GhError, refuse


@dataclass
class Result:
    """The changes made, or with dry_run planned, to one engine's files.

    command: makes the running engine read them; "" if it has read them. why: it is not a reload. restarted: this was done, and
    it has read them. unused: why the engine was left alone. doubts: what a person should know. found: which of several such
    engines it is. by_hand: (what to do with it, text) where only a person can register us.
    """

    engine: str
    changes: list[FileChange]
    command: str = ""
    why: str = ""
    restarted: bool = False
    unused: str = ""
    doubts: list[str] = field(default_factory=list)
    found: str = ""
    by_hand: Sequence[tuple[str, str]] = ()

    @property
    def changed(self) -> bool:
        return any(change.old != change.new for change in self.changes)


def register(
    names: Sequence[str], registration: Registration, dry_run: bool = False, restart: bool = False
) -> list[Result]:
    """Register with these engines, or with every engine that is found and used. Raises SettingsError GH-504 to GH-509."""
    if not dry_run:
        detect.check_prefix(registration.prefix)
    if registration.config and len(names) != 1:
        raise refuse("GH-506", "--config is the file of one engine; name exactly one by --engine")
    if registration.way == "hook":
        check_hooks(names)
    for name in names:
        detect.require(name, registration)
    with lock():
        record = Record(registration.prefix)
        results = []
        for name in names or detect.found(registration):
            if not names and (why := unused(name, record, registration)):
                results.append(Result(name, [], unused=why))
                continue
            changes = planned(name, registration, record)
            result = Result(name, changes, doubts=doubts(name, changes, registration, record) if changes else [])
            if hasattr(module := engine(name), "found"):
                result.found, result.by_hand = module.found(registration), module.by_hand(registration)
            results.append(result)
        _finish(results, record, dry_run, restart, remove=False)
    return results


def planned(name: str, registration: Registration, record: Record) -> list[FileChange]:
    """The changes that would register with this engine as it is now: those of the files that take our lines, then of those that had them
    and are not among these any more. Raises SettingsError GH-506 to GH-508."""
    module = engine(name)
    registration = replace(registration, default=registration.default or is_default(name, record, registration))
    changes = [plan(module.target(path, registration), record, name) for path in module.paths(registration)]
    if registration.config:
        for change in changes:
            change.notes["config"] = os.path.abspath(registration.config)
    for path in map(Path, record.engines.get(name, {})):
        gone = not path.exists() or hasattr(module, "moved") and module.moved(path, registration)
        if gone and path not in [change.path for change in changes]:
            change = plan(module.target(path, registration), record, name, (name,))
            changes.append(replace(change, former=True))
    return changes


def is_default(name: str, record: Record, registration: Registration) -> bool:
    """True if gpu-hook was made the engine's default runtime, by the record."""
    files = record.engines.get(name, {})
    if not hasattr(engine(name), "moved"):  # each file is another daemon's
        files = {str(path): record.entry(name, path) for path, _ in map(read, engine(name).paths(registration))}
    return any("default" in entry.get("notes", ()) for entry in files.values())


def doubts(name: str, changes: list[FileChange], registration: Registration, record: Record) -> list[str]:
    """Sentences for a person: reasons why the engine would not have us after these changes, and more to know of them."""
    module = engine(name)
    if not hasattr(module, "has"):
        return []
    texts = {change.path: None if change.new is None else text_of(change.path, change.new) for change in changes}
    has: Has = module.has(registration, texts)
    found: list[str] = module.doubts(registration) if hasattr(module, "doubts") else []
    main = changes[0].path
    for pid, file in daemons.elsewhere(name, main):
        helps = f"--config {file}" if takes_lines(Path(file)) else "which cannot be changed: see --print"
        found.append(f"no running {name} reads {main}: process {pid} reads {file} ({helps})")
    return [*lacks(has, registration, registration.default or is_default(name, record, registration)), *found]


def lacks(has: Has, registration: Registration, default: bool) -> list[str]:
    """The differences between an engine and this install, in words."""
    found = []
    if not has.program:
        found.append(f"{NAME} is not among its runtimes")
    elif has.program not in (registration.program, str(containerd_spec.path(registration))):
        found.append(f"its runtime {NAME} is {has.program}" + (f" by {has.program_by}" if has.program_by else ""))
    if default and has.default != NAME:
        found.append(f"its default runtime is {has.default}" + (f" by {has.default_by}" if has.default_by else ""))
    return found


def unused(name: str, record: Record, registration: Registration) -> str:
    """Why to leave alone an engine that nobody named; "" if it is used, or was registered before."""
    module = engine(name)
    return str(module.unused(registration)) if hasattr(module, "unused") and name not in record.engines else ""


NO_HOOKS = {
    "docker": "docker adds no OCI hooks to containers; register the runtime instead",
    "podman": "podman gets hooks and the runtime by a plain `gpu-hook install --engine podman`",
    "crio": "CRI-O gets hooks and the runtime by a plain `gpu-hook install --engine crio`",
    "runc": "runc has no configuration; `gpu-hook bundle DIR` adds hooks to a bundle",
}


def check_hooks(names: Sequence[str]) -> None:
    """Raises SettingsError GH-506 for engines that are not registered by `--as hook`."""
    if not names:
        raise refuse("GH-506", "--as hook is for one engine; name it: --engine containerd")
    for name in names:
        if name in NO_HOOKS:
            raise refuse("GH-506", NO_HOOKS[name])


def unregister(
    names: Sequence[str], registration: Registration, dry_run: bool = False, restart: bool = False
) -> list[Result]:
    """Unregister from these engines, or from all. Files without any line of ours are left alone. Raises as register."""
    with lock():
        record = Record(registration.prefix)
        results = []
        leaving = names or NAMES
        for name in leaving:
            recorded = [Path(path) for path in record.engines.get(name, {})]
            try:
                changes = _removal(name, recorded, registration, record, leaving)
            except GhError:
                if names or recorded:
                    raise
                continue  # we never registered with this engine, so its errors are not ours to report
            if changes:
                results.append(Result(name, changes))
        _finish(results, record, dry_run, restart, remove=True)
    return results


def _removal(
    name: str, recorded: list[Path], registration: Registration, record: Record, leaving: Sequence[str]
) -> list[FileChange]:
    """The changes that unregister from one engine, which is one of `leaving`: in the recorded files and in those that it
    reads now."""
    module = engine(name)
    try:
        usual = module.paths(registration)
    except GhError:
        if not recorded:
            raise
        usual = []  # the engine's main file is broken, but the record still names the files that we wrote
    paths = dict.fromkeys([*recorded, *(path.resolve() for path in usual)])
    changes = [plan(module.target(path, registration), record, name, leaving) for path in paths]
    return [c for c in changes if c.old != c.new or c.path in recorded]


def _finish(results: list[Result], record: Record, dry_run: bool, restart: bool, remove: bool) -> None:
    """Make the planned changes unless this is a dry run, and let the engines read them if `restart` says so."""
    for result in results:
        if not result.changes:
            continue
        path = result.changes[0].path
        if result.changed or not remove and daemons.stale(result.engine, path):
            result.command = daemons.command(result.engine, path)
            result.why = daemons.not_to_reload(result.engine, path)
    if dry_run:
        return
    for result in results:
        for change in result.changes:
            if change.old != change.new:
                writable(change.path)
    done = ""
    for result in results:
        try:
            _make(result, record, restart, remove)
        except GhError as e:
            raise refuse(e.problems[0].code, e.problems[0].message + done) from None
        if result.changed:
            done += f"; before that, {result.engine} was {'un' if remove else ''}registered"
            done += f" ({result.command})" if result.command and not result.restarted else ""


def _make(result: Result, record: Record, restart: bool, remove: bool) -> None:
    """Make the changes of one engine. Raises SettingsError GH-507, GH-509."""
    former = record.engines.get(result.engine, {}).copy()
    backups = record.backups(result.engine)
    carry_out(result.changes, record, result.engine, remove)
    if restart and result.command:
        _restart(result, record, former, backups)
        if not remove:
            result.restarted = result.restarted and daemons.have_read(result.engine, result.changes[0].path)


def _restart(result: Result, record: Record, former: dict[str, dict[str, Any]], backups: dict[Path, bytes]) -> None:
    """Let the engine read its files. If it fails, the files and their record (former, backups) are put back and the
    engine is restarted with them. Raises SettingsError GH-509."""
    path = result.changes[0].path
    try:
        result.restarted = daemons.take_effect(result.engine, path)
    except OSError as e:
        for change in result.changes:
            if change.old != change.new:
                put_in_place(reverted(change))
        for new in [name for name in record.engines.get(result.engine, {}) if name not in former]:
            record.forget(result.engine, Path(new))
        record.restore(result.engine, former, backups)
        try:
            now = "it runs again" if daemons.take_effect(result.engine, path) else "it does not run: start it"
        except OSError as again:
            now = f"it still fails: {again}"
        raise refuse("GH-509", f"{result.command}: {e}; its files were put back, and {now}; see its log") from None


def printed(names: Sequence[str], registration: Registration) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """(engine, where the text belongs, [(file, text)]), as for a machine on which the engine has no configuration."""
    empty = replace(registration, host_root="/nonexistent", config=None)
    pages = []
    for name in names or NAMES:
        module = engine(name)
        files = []
        for path in module.paths(empty):
            text = module.target(path, empty).add(None, {})
            files.append((str(path).removeprefix("/nonexistent"), text))
        files += module.templates(registration) if hasattr(module, "templates") else []
        pages.append((name, module.place(registration), files))
    return pages
