"""The NVIDIA toolkit's hooks in a config.json, by which another program would put the driver into the same container.

They run after the runtime has made our mounts. They mount the real driver libraries over the shims, and every GPU that
the container's NVIDIA_VISIBLE_DEVICES names, whatever was granted. docker --gpus, hooks.d of podman and CRI-O, the
NVIDIA runtime and CDI all add one of these. In mode standalone such a container is refused; in the other modes
oci/nvidia_edits.py narrows the hooks.
"""

from oci_hook.errors import refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oci_hook.oci.spec_types import Spec

LEGACY = (
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",  # the older name of nvidia-container-runtime-hook
    "nvidia-container-cli",
)
PROGRAMS = (*LEGACY, "nvidia-cdi-hook", "nvidia-ctk")


def check(spec: "Spec") -> None:
    """Raises ApplyError GH-409 when a hook of the NVIDIA toolkit will serve this container too."""
    if path := hook(spec):
        raise refuse(
            "GH-409",
            f"the container has the hook {path[:90]}, which would mount the driver over the share; leave out --gpus, "
            "CDI devices and NVIDIA's hooks.d file, or set `mode` in settings.yaml to on-top or below",
        )


def hook(spec: "Spec") -> str:
    """The first such hook's path, or ""."""
    hooks = spec.get("hooks") or {}
    for stage in hooks.values() if isinstance(hooks, dict) else ():
        for entry in stage if isinstance(stage, list) else ():
            if program(entry):
                return str(entry.get("path"))
    return ""


def program(entry: "Any") -> str:
    """Which of PROGRAMS this entry of a spec's hooks runs, itself or through another program; "" for none."""
    if not isinstance(entry, dict):
        return ""
    args = entry.get("args")
    words = [str(entry.get("path")), *(args if isinstance(args, list) else ())]
    for word in words:
        name = word.rpartition("/")[2].partition(".")[0] if isinstance(word, str) else ""
        if name in PROGRAMS:
            return name
    return ""
