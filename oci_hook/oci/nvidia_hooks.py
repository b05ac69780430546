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

    from oci_hook.oci.spec_types import Object, Spec

LEGACY = (
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",  # the older name of nvidia-container-runtime-hook
    "nvidia-container-cli",
)
FAMILY = ("nvidia-ctk", "nvidia-cdi", "nvidia-container")  # the toolkit's programs begin so, later ones too
FLAGS = ("--debug", "-d", "--quiet")  # that may stand before a subcommand, and change nothing but what is logged


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
    """The program of the NVIDIA toolkit that this entry of a spec's hooks runs, itself or through another program; "" for none."""
    if not isinstance(entry, dict):
        return ""
    args = entry.get("args")
    for word in (entry.get("path"), *(args if isinstance(args, list) else ())):
        for part in word.split() if isinstance(word, str) else ():  # sh -c has its words in one
            if _name(part).startswith(FAMILY):
                return _name(part)
    return ""


def subcommand(entry: "Object") -> tuple[str, list[str]]:
    """Which of the toolkit's hooks this entry is, such as update-ldcache, and the words after it.

    ("", []) where it is none for sure: another program calls it, its environment may have it load something, or a word
    before the subcommand may change what it does.
    """
    name, args, env = _name(str(entry.get("path"))), entry.get("args"), entry.get("env") or []
    if not isinstance(args, list) or not isinstance(env, list):
        return "", []
    words = args[1:]
    if not all(isinstance(word, str) for word in [*words, *env]):
        return "", []
    if any(not word.startswith(("NVIDIA_", "PATH=")) for word in env):
        return "", []
    if name == "nvidia-ctk":
        words = _past_flags(words)
        words = words[1:] if words[:1] == ["hook"] else []
    elif name != "nvidia-cdi-hook":
        words = []
    words = _past_flags(words)
    return (words[0], words[1:]) if words else ("", [])


def _past_flags(words: list[str]) -> list[str]:
    return words[next((i for i, word in enumerate(words) if word not in FLAGS), len(words)) :]


def _name(path: str) -> str:
    """The program of a path: nvidia-cdi-hook of /opt/nvidia-cdi-hook.real."""
    return path.rpartition("/")[2].partition(".")[0]
