"""docker: `runtimes`, and if requested `default-runtime`, in daemon.json. dockerd reads no drop-in files."""

import os
from pathlib import Path
from typing import Any

from oci_hook.engines import json_text
from oci_hook.engines.edits import NAME, Notes, Registration, Target, Texts, text_at
from oci_hook.engines.effective import Has
from oci_hook.errors import GhError, refuse
from oci_hook.observe.daemons import flag_value, flag_values, running

PROGRAMS = ("dockerd",)
FILE = "/etc/docker/daemon.json"
# Keys of daemon.json whose flag is not only `--KEY` (dockerd --help). Runtimes are merged at a start.
OTHER_FLAGS = {
    "debug": ("-D",),
    "log-level": ("-l",),
    "hosts": ("--host", "-H"),
    "labels": ("--label",),
    "log-opts": ("--log-opt",),
    "storage-opts": ("--storage-opt",),
    "exec-opts": ("--exec-opt",),
    "dns-opts": ("--dns-opt",),
    "registry-mirrors": ("--registry-mirror",),
    "insecure-registries": ("--insecure-registry",),
    "default-ulimits": ("--default-ulimit",),
    "default-address-pools": ("--default-address-pool",),
    "node-generic-resources": ("--node-generic-resource",),
    "authorization-plugins": ("--authorization-plugin",),
}
BOM = "\ufeff"
NULL = "null"  # of notes["runtimes"]: it was there, and was null
RELOAD = ("docker", "reload")  # dockerd reads both keys again on SIGHUP; containers keep running


def paths(registration: Registration) -> list[Path]:
    return [registration.main(FILE)]


def target(path: Path, registration: Registration) -> Target:
    return Target(
        path,
        lambda text, notes: add(text, notes, registration, path),
        lambda text, notes: strip(text, notes, registration, path),
        parse,
    )


def has(registration: Registration, instead: Texts) -> Has:
    path = registration.main(FILE)
    text = text_at(path, instead) or ""
    data = parse(text, path) if text.strip() else {}
    ours = (data.get("runtimes") or {}).get(NAME)
    default = data.get("default-runtime")
    return Has((ours or {}).get("path") or "", default or "runc", ours and path, default and path)


def place(registration: Registration) -> str:
    return "merge into /etc/docker/daemon.json"


def parse(text: str, path: Path) -> dict[str, Any]:
    """As dockerd reads it: from docker 23 on also with a byte order mark."""
    return json_text.parse(text.removeprefix(BOM), path, json_text.as_go)


def add(text: str | None, notes: Notes, registration: Registration, path: Path) -> str:
    if text is None or not text.strip():
        text = "{}\n"
    data = parse(text, path)
    bom, text = BOM * text.startswith(BOM), text.removeprefix(BOM)
    runtimes = {} if data.get("runtimes") is None else data["runtimes"]
    if not isinstance(runtimes, dict):
        raise refuse("GH-506", f'{path}: "runtimes" is not a JSON object; correct it first')
    there = runtimes.get(NAME)
    if there is not None:
        whose = there.get("path") if isinstance(there, dict) else there
        raise refuse("GH-508", f'{path}: "runtimes" already has {NAME}, which is {whose!r:.100}; remove it first')
    notes["runtimes"] = NULL if data.get("runtimes", {}) is None else "runtimes" in data
    ours = {"path": registration.program}
    text = json_text.put(
        text, *((("runtimes",), {NAME: ours}) if notes["runtimes"] == NULL else (("runtimes", NAME), ours))
    )
    if registration.default or "default" in notes:
        refuse_flag(path)
        former = data.get("default-runtime")
        notes["default"] = former if former != NAME else None
        text = json_text.put(text, ("default-runtime",), NAME)
    return bom + text


def refuse_flag(path: Path) -> None:
    """Raises SettingsError GH-508 if a running dockerd that reads this file has its default runtime from a flag: it would
    not start with both."""
    for pid, words in running("dockerd"):
        file = flag_value(words, "--config-file") or FILE
        flag = flag_value(words, "--default-runtime")
        if flag and os.path.realpath(file) == os.path.realpath(path):
            raise refuse(
                "GH-508",
                f"{path}: the running dockerd ({pid}) has the flag --default-runtime {flag:.60} and would not start with"
                " default-runtime in this file too; remove the flag first",
            )


def not_to_reload(words: list[str], path: Path) -> str:
    """Why the dockerd with this command line must not be told to read the file again; "" if it may.

    A reload takes the runtimes of the file in place of those of the flags; where the default is among these, docker 20.10 panics
    and 26.1 refuses. A start has both. A key that flags and file have is refused at a start as well.
    """
    named = [value.partition("=")[0] for value in flag_values(words, "--add-runtime")]
    if named:
        return f"its flags name the runtime {', '.join(named):.60}, which a reload would drop: move it to {path}"
    try:
        data = parse(path.read_text(), path)
    except (OSError, UnicodeDecodeError, GhError):
        return ""
    flags = {word.partition("=")[0] if word.startswith("--") else word[:2] for word in words}
    both = [key for key in data if flags.intersection((f"--{key}", *OTHER_FLAGS.get(key, ())))]
    return f"{path} and its flags both have {both[0]:.40}, so that it would not start: remove one" if both else ""


def strip(text: str, notes: Notes, registration: Registration, path: Path) -> str | None:
    """Works without notes too: a runtime of our name with our program is ours."""
    if not text.strip():
        return text
    data = parse(text, path)
    runtimes = data.get("runtimes")
    if not isinstance(runtimes, dict) or not isinstance(runtimes.get(NAME), dict):
        return text
    if runtimes[NAME].get("path") != registration.program:
        return text
    bom, text = BOM * text.startswith(BOM), text.removeprefix(BOM)
    if data.get("default-runtime") == NAME:
        former = notes.get("default")
        text = (
            json_text.take(text, ("default-runtime",))
            if former is None
            else json_text.put(text, ("default-runtime",), former)
        )
    alone = len(runtimes) == 1 and notes.get("runtimes") in (None, False, NULL)
    if alone and notes.get("runtimes") == NULL:
        text = json_text.put(text, ("runtimes",), None)
    else:
        text = json_text.take(text, ("runtimes",) if alone else ("runtimes", NAME))
    return bom + text if parse(text, path) or notes.get("file") else None
