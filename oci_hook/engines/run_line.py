"""The command line by which docker or podman runs a container that asks for a share, as its version can."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from oci_hook.core.dialects import native
from oci_hook.core.layout import PREFIX_KEY, REQUEST_DIR
from oci_hook.engines.edits import NAME
from oci_hook.errors import refuse

ENGINES = ("docker", "podman")
ANNOTATIONS_SINCE = 24  # docker; `--annotation` came with its API 1.43
SECONDS = 20  # for an answer of the engine


@dataclass(frozen=True)
class Engine:
    """program: what to call. podman: whether it speaks podman's language. annotations: whether it passes them on. instead: why
    docker, which comes first, was not taken; "" where it was, is not there, or another was named."""

    program: str
    podman: bool
    annotations: bool
    version: str = ""
    instead: str = ""


# (exit status, standard output; after a failure also standard error) of a command
Ask = Callable[[Sequence[str]], tuple[int, str]]


def ask(command: Sequence[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return 1, str(e)
    return done.returncode, done.stdout + (done.stderr if done.returncode else "")  # docker warns there


def choose(name: str | None = None, ask: Ask = ask, which: Callable[[str], str | None] = shutil.which) -> Engine:
    """The engine of that name; without a name docker, if it is there and its daemon answers, else podman.

    Raises SettingsError GH-505 where there is none or this user may not use docker's socket, GH-510 where the engine does
    not know our runtime.
    """
    instead = ""
    problem = "neither docker nor podman is on this machine; with plain runc, see docs/guide/runc.md"
    if name in (None, "docker") and which("docker"):
        status, said = ask(("docker", "--version"))
        if status == 0 and "podman" in said:  # the package podman-docker
            return Engine("docker", True, True)
        found = _docker(ask)
        if isinstance(found, Engine):
            return found
        problem = instead = found
    elif name:
        problem = f"{name} is not on this machine"
    if name in (None, "podman") and which("podman"):
        status, said = ask(("podman", "--runtime", NAME, "info", "--format", "{{.Host.OCIRuntime.Name}}"))
        if status and "not found" in said:
            raise refuse("GH-510", "podman does not know the runtime gpu-hook; `gpu-hook install --engine podman`")
        return Engine("podman", True, True, instead=instead)
    raise refuse("GH-505", problem)


def _docker(ask: Ask) -> "Engine | str":
    """docker, or why it cannot be used."""
    status, said = ask(("docker", "version", "--format", "{{.Client.Version}} {{.Server.Version}}"))
    words = said.split()
    if status or len(words) != 2:
        if len(words) > 1 and words[0][0].isdigit():  # the client's version, which comes first also without a daemon
            words = words[1:]
        why = " ".join(words)
        if "permission denied" in why:
            # Such a user's podman is rootless, which cannot give a share.
            why = "this user may not use docker's socket; use sudo, or have root add this user to the group docker"
            raise refuse("GH-505", why)
        return f"docker does not answer: {'…' * (len(why) > 160)}{why[-160:]}"
    status, runtimes = ask(("docker", "info", "--format", "{{json .Runtimes}}"))
    try:
        known = status == 0 and NAME in json.loads(runtimes)
    except (ValueError, TypeError):
        known = False
    if not known:
        raise refuse(
            "GH-510", "docker does not know the runtime gpu-hook; `gpu-hook install --engine docker --restart`"
        )
    return Engine("docker", False, all(_major(word) >= ANNOTATIONS_SINCE for word in words), words[1])


def _major(version: str) -> int:
    number = version.partition(".")[0]
    return int(number) if number.isdecimal() else 0


SWITCHES = {  # options of `docker run` and `podman run` that take no value
    *("--detach", "--disable-content-trust", "--env-host", "--help", "--http-proxy", "--init", "--interactive"),
    *(
        "--no-healthcheck",
        "--no-hostname",
        "--no-hosts",
        "--oom-kill-disable",
        "--passwd",
        "--privileged",
        "--publish-all",
    ),
    *("--quiet", "--read-only", "--read-only-tmpfs", "--replace", "--rm", "--rmi", "--rootfs"),
    *("--sig-proxy", "--tls-verify", "--tty", "--unsetenv-all", "--use-api-socket"),
}
SHORT_SWITCHES = "ditPq"


def check_words(annotations: Mapping[str, str], words: Sequence[str]) -> None:
    """Raises SettingsError GH-505 where the engine's own options would undo what is asked: another runtime, or another
    value for one of these annotations, of which the engine takes the last."""
    for name, value in options(words):
        key = value.partition("=")[0]
        if name == "--runtime" and value != NAME:
            raise refuse("GH-505", f"--runtime {value[:40]} would start the container without its share; leave it out")
        if name == "--annotation" and key in annotations:
            raise refuse("GH-505", f"{key[:80]} is asked for twice; leave out the engine's --annotation")


def options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The engine's options before the image, each with its value; "" for a switch."""
    rest = iter(words)
    for word in rest:
        if word == "--" or not word.startswith("-") or word == "-":
            return
        name, equals, value = word.partition("=")
        if equals or name in SWITCHES:
            yield name, value
        elif name.startswith("--"):
            yield name, next(rest, "")
        elif name[1:].strip(SHORT_SWITCHES) and len(name[1:].lstrip(SHORT_SWITCHES)) == 1:  # -itv VALUE
            yield f"-{name[-1]}", next(rest, "")


def line(engine: Engine, annotations: Mapping[str, str], words: Sequence[str]) -> list[str]:
    """The engine's command line. words: its own options, the image, and the command. Raises SettingsError GH-505 for an
    annotation that this engine has no way to pass on."""
    if engine.annotations:
        flags = [part for key, value in annotations.items() for part in ("--annotation", f"{key}={value}")]
    else:
        flags = [part for key, value in annotations.items() for part in _mount(engine, key, value)]
    if engine.podman:
        return [engine.program, "--runtime", NAME, "run", *flags, *words]
    return [engine.program, "run", f"--runtime={NAME}", *flags, *words]


def _mount(engine: Engine, key: str, value: str) -> tuple[str, str]:
    name = key.removeprefix(PREFIX_KEY)
    if name == key or name not in native.KEYS:
        raise refuse(
            "GH-505", f"docker {engine.version} passes no annotations, and {key} has no form as a mount; use docker 24"
        )
    target = f"{REQUEST_DIR}/{name}={value}"
    if (
        ":" in value
    ):  # which -v would take for the end of the path; --mount reads CSV, where quotes keep commas together
        return "--mount", f'type=bind,source=/dev/null,"target={target}"'
    return "-v", f"/dev/null:{target}"
