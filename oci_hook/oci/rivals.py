"""Other programs that would put a driver into the same container: the NVIDIA toolkit's hooks in a config.json.

They run after the runtime has made our mounts, and mount the real driver libraries and every card that the container's
NVIDIA_VISIBLE_DEVICES names: on top of the stand-ins, past the share. docker --gpus, hooks.d of podman and CRI-O,
the NVIDIA runtime and CDI all leave one of these.
"""

from oci_hook.errors import refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PROGRAMS = (
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",  # its older name
    "nvidia-container-cli",
    "nvidia-cdi-hook",
    "nvidia-ctk",
)


def check(spec: "dict[str, Any]") -> None:
    """Raises ApplyError GH-409 when the NVIDIA toolkit will serve this container too."""
    if path := hook(spec):
        raise refuse(
            "GH-409",
            f"the container has the hook {path[:120]}, which would mount the driver over the share; "
            "leave out --gpus, CDI devices and NVIDIA's hooks.d file where gpu-hook gives the share",
        )


def hook(spec: "dict[str, Any]") -> str:
    """The first such hook's path, or ""."""
    hooks = spec.get("hooks") or {}
    for stage in hooks.values() if isinstance(hooks, dict) else ():
        for entry in stage if isinstance(stage, list) else ():
            path = str(entry.get("path")) if isinstance(entry, dict) else ""
            words = entry.get("args") or () if isinstance(entry, dict) else ()
            named = [path, *(word for word in words if isinstance(word, str))] if isinstance(words, list) else [path]
            if any(word.rpartition("/")[2].partition(".")[0] in PROGRAMS for word in named):
                return path
    return ""
