"""Why a container that docker or podman knows has no share, by what its engine says of it."""

import json
import re
from typing import Any

from oci_hook.core import near_misses
from oci_hook.core.request import parse
from oci_hook.core.rules import Rules
from oci_hook.core.value import Value
from oci_hook.engines.edits import NAME
from oci_hook.engines.run_line import ENGINES, Ask, ask
from oci_hook.errors import GhError
from oci_hook.oci import request_mounts

PLAIN = re.compile(r"[\w.-]+", re.ASCII)  # an id or a name; nothing that an engine could take for an option


class Container(Value):
    """An engine's description of a container. runtime: a name or a path. mounts: (destination, source). all_gpus: it was
    started with `--gpus`. state: the engine's word, such as running or exited."""

    engine: str
    id: str
    state: str
    runtime: str
    annotations: dict[str, str]
    labels: dict[str, str]
    env: dict[str, str]
    mounts: tuple[tuple[str, str], ...]
    all_gpus: bool

    @property
    def by_us(self) -> bool:
        return self.runtime.rpartition("/")[2] in (NAME, "gpu-hook-runtime")


def find(name: str, ask: Ask = ask) -> Container | None:
    """The container of this name or id that docker, or else podman, knows."""
    if not PLAIN.fullmatch(name) or name.startswith("-"):
        return None
    for engine in ENGINES:
        status, said = ask((engine, "container", "inspect", name))
        try:
            if status == 0:  # warnings may stand before the JSON array
                return read(engine, json.JSONDecoder().raw_decode(said[said.index("[\n") :])[0][0])
        except (ValueError, LookupError, TypeError, AttributeError):  # another program of that name, or another format
            continue
    return None


def read(engine: str, data: dict[str, Any]) -> Container:
    """Reads an object of `inspect` (docker 20.10 to 28, podman 4 and 5)."""
    host, config = data["HostConfig"], data["Config"]
    wanted = [
        word for request in host.get("DeviceRequests") or () for words in request["Capabilities"] for word in words
    ]
    return Container(
        engine,
        str(data["Id"]),
        str(data["State"]["Status"]),
        str(data.get("OCIRuntime") or host.get("Runtime") or ""),
        {**(config.get("Annotations") or {}), **(host.get("Annotations") or {})},
        config.get("Labels") or {},
        dict(entry.split("=", 1) for entry in config.get("Env") or () if "=" in entry),
        tuple((mount["Destination"], mount["Source"]) for mount in data.get("Mounts") or ()),
        "gpu" in wanted,
    )


def reasons(c: Container, rules: Rules) -> list[str]:
    """Each with what to do about it."""
    found = []
    if c.all_gpus:
        found.append(
            "--gpus asks NVIDIA's toolkit for whole GPUs without limits; ask gpu-hook by an annotation instead"
        )
    asks = False
    try:
        asks = parse(c.annotations, c.env, "", rules, c.mounts, request_mounts.decode) is not None
    except GhError as e:
        found += [str(problem) for problem in e.problems]
    else:
        missed = near_misses.in_annotations(c.annotations, "", rules, asks)
        missed += near_misses.in_mounts(c.mounts)
        missed += near_misses.in_environment(c.env, rules, asks, by_hand=True)
        missed += near_misses.in_labels(c.labels, asks)
        found += [str(miss.problem) for miss in missed]
        if not asks and not missed:
            found.append("no annotation or mount of it asks for a GPU, such as gpu-hook.io/memory=4Gi")
    if not c.by_us:
        hooks = ", or let `gpu-hook install --engine podman` register hooks" if c.engine == "podman" else ""
        ours = f"start it with --runtime={NAME} or by `gpu-hook run`{hooks}"
        found.append(f"its runtime is {c.runtime or 'not known'}, which gives no share; {ours}")
    elif asks:
        found.append("it asks for a share and holds none: it has ended, or was started by another install")
    return found
