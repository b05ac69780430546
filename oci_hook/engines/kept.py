"""Containers and pods that an engine keeps and that name our runtime, running or not: without it, none of them starts again."""

import base64
import json
from collections.abc import Iterator

from oci_hook.engines import cri, daemons, engine
from oci_hook.engines.edits import NAME, Record, Registration
from oci_hook.engines.run_line import Ask, ask
from oci_hook.observe.daemons import running


def by_engine(record: Record, registration: Registration, ask: Ask = ask) -> dict[str, list[str]]:
    """Engine -> names, of the engines that this install is registered with and that answer."""
    found = {
        name: sorted({each[:40] for each in FINDERS[name](registration, ask)})
        for name in record.engines
        if name in FINDERS
    }
    return {name: names for name, names in found.items() if names}


def of_docker(registration: Registration, ask: Ask) -> Iterator[str]:
    for host in daemons.docker_hosts():
        has = daemons.docker_has(host)
        if has is not None and has.runtimes.get(NAME, registration.program) == registration.program:
            yield from of_command(("docker", "--host", host), "{{.HostConfig.Runtime}} {{.Name}}", registration, ask)


def of_podman(registration: Registration, ask: Ask) -> Iterator[str]:
    yield from of_command(("podman",), "{{.OCIRuntime}} {{.Name}}", registration, ask)


def of_command(command: tuple[str, ...], form: str, registration: Registration, ask: Ask) -> Iterator[str]:
    """By docker's or podman's command line, whose names have no white space."""
    status, said = ask((*command, "ps", "--all", "--quiet", "--no-trunc"))
    ids = [] if status else said.split()
    status, said = ask((*command, "container", "inspect", "--format", form, *ids)) if ids else (1, "")
    for runtime, _, name in (line.partition(" ") for line in said.splitlines()):
        if runtime in (NAME, registration.program):
            yield name.removeprefix("/")


def of_kubelet(name: str) -> Iterator[str]:
    """Pods, by each socket at which a daemon of this engine answers."""
    for _, words in running(engine(name).PROGRAMS[0]):
        try:
            pods = list(cri.sandboxes(daemons.address(name, words)))
        except (OSError, ValueError):  # as where the CRI plugin is off
            continue
        yield from (f"pod {pod}" for handler, pod in pods if handler == NAME)


def of_containerd(registration: Registration, ask: Ask) -> Iterator[str]:
    """Pods, and containers of ctr and nerdctl, which have the program in the options of their runtime."""
    yield from of_kubelet("containerd")
    for _, words in running("containerd"):
        ctr = ("ctr", "--address", daemons.address("containerd", words))
        status, spaces = ask((*ctr, "namespaces", "ls", "--quiet"))
        for space in spaces.split() if not status else ():
            status, ids = ask((*ctr, "--namespace", space, "containers", "ls", "--quiet"))
            for id in ids.split() if not status and space != "k8s.io" else ():
                _, said = ask((*ctr, "--namespace", space, "containers", "info", id))
                if runs(said, registration.program):
                    yield f"{space}/{id}"


def of_crio(registration: Registration, ask: Ask) -> Iterator[str]:
    return of_kubelet("crio")


def runs(info: str, program: str) -> bool:
    """True if `ctr containers info` says that this program is the container's runtime."""
    try:
        options = json.loads(info)["Runtime"]["Options"]
        return program.encode() in base64.b64decode(options["value"])
    except (ValueError, LookupError, TypeError):
        return False


FINDERS = {
    "docker": of_docker,
    "podman": of_podman,
    "containerd": of_containerd,
    "crio": of_crio,
}
