"""Error codes and the exceptions that carry them. The lowest layer: everything may import it, it imports nothing.

GhError                one or more problems; the program ends, and nothing was granted or changed
  RequestError  GH-1xx the container's request is not valid
  NoRoomError   GH-2xx the request is valid, but the node's GPUs cannot serve it
  NodeError     GH-3xx the node is not ready: driver, inventory, ledger, shim
  ApplyError    GH-4xx the container cannot be changed as planned
  SettingsError GH-5xx settings, install, or registration with an engine
  ClusterError  GH-6xx the cluster: decisions of its controller, its API server

A message names the act, the object, the value and the next step, on one line of at most 300 characters with its code.
"""

CODES = {
    "GH-101": "a value cannot be parsed or is out of bounds",
    "GH-102": "an unknown or misplaced key that begins with gpu-hook.io/, or word of a claim's configuration",
    "GH-103": "two keys contradict each other",
    "GH-104": "two dialects disagree about one container",
    "GH-105": "the input is too large or has forbidden characters",
    "GH-106": "a driver capability or an IMEX channel that containers with a share cannot have",
    "GH-107": "a manifest cannot be read or rewritten",
    "GH-108": "a word that seems to ask for a GPU is not understood (refused or a warning, by the setting near_misses)",
    "GH-201": "no GPU has room for the request",
    "GH-202": "the request names a GPU or an IMEX channel that this node does not have",
    "GH-203": "the request is for more GPUs than the node has",
    "GH-204": "the request needs the driver's memory limit, which no fitting GPU can have",
    "GH-205": "the driver or the GPUs do not meet what the image requires (NVIDIA_REQUIRE_*)",
    "GH-301": "the inventory is missing or stale",
    "GH-302": "driver files are missing or of another version",
    "GH-303": "the ledger cannot be read or written",
    "GH-304": "another gpu-hook install on this machine has the GPU",
    "GH-305": "the shim library is missing or not safe to use",
    "GH-306": "the simulated driver is missing or damaged",
    "GH-307": "a container's policy page is missing or damaged (reported by the shim)",
    "GH-308": "a container's account page is full or cannot be used (reported by the shim)",
    "GH-309": "a program uses a GPU that its container's policy page does not name (reported by the shim)",
    "GH-310": "a GPU was not probed because containers use it (a warning)",
    "GH-320": "another agent already runs for this state directory",
    "GH-321": "the agent's address cannot be used",
    "GH-322": "the agent does not let go of the driver",
    "GH-401": "config.json cannot be read, parsed or written",
    "GH-402": "paths in the image or its mounts collide with the plan",
    "GH-403": "the container would reach a GPU that it was not granted",
    "GH-404": "the kernel lacks an interface that gpu-hook needs",
    "GH-405": "changing the container failed or took too long",
    "GH-406": "the container state on standard input is not valid",
    "GH-407": "a living container already holds the grant of this id",
    "GH-408": "the image cannot use what the container is given (a warning)",
    "GH-409": "another program would mount the driver into the same container",
    "GH-410": "no living container has this name, or more than one has it",
    "GH-411": "the container's share cannot be changed in this way",
    "GH-412": "the container's config.json or image needs more memory than gpu-hook may use",
    "GH-413": "a container with a share cannot be restored from a checkpoint",
    "GH-414": "the driver's memory limit could not be set",
    "GH-415": "the container's memory cannot be moved off its GPUs, or back",
    "GH-416": "there is too little host memory to suspend the container",
    "GH-417": "the driver cannot be asked to move the container's memory",
    "GH-501": "settings are missing or not valid",
    "GH-503": "the real runtime is missing or is gpu-hook itself",
    "GH-504": "the install prefix or its state directory is not usable",
    "GH-505": "an engine is not installed on this machine",
    "GH-506": "an engine's configuration is not valid or cannot be changed safely",
    "GH-507": "an engine's configuration cannot be read or written",
    "GH-508": "an engine's configuration already uses the name gpu-hook, or contradicts its entry",
    "GH-509": "an engine did not accept its new configuration",
    "GH-510": "an engine is registered incompletely (reported by doctor)",
    "GH-511": "containers that an engine keeps would not start again without gpu-hook",
    "GH-601": "the pod has no decision of the cluster's controller, and this node requires one",
    "GH-602": "the decision about the pod is not valid, or its signature is not, or it would be too long",
    "GH-603": "the decision was made for another pod or another node",
    "GH-604": "the decision and what the container asks for do not agree",
    "GH-605": "a pod has an annotation that only the cluster's controller may write",
    "GH-606": "the node's part of the cluster is not set up: its name, keys or inventory are missing",
    "GH-607": "no node of the cluster has room for the pod",
    "GH-608": "the cluster's API server or controller cannot be reached, or refuses",
    "GH-609": "the pod needs a node of its own, or the node is another pod's own",
    "GH-610": "a ResourceClaim is not what the kubelet named, is not allocated to this node, or is not prepared here",
    "GH-611": "a container has the claim's share already, or the container has a share already",
    "GH-612": "a container asks by annotations or mounts on a node that gives its GPUs to ResourceClaims",
}

MAX_LINE = 300


class Problem:
    """A coded message; `str()` is the line that users see."""

    __slots__ = ("code", "message")

    def __init__(self, code: str, message: str) -> None:
        if code not in CODES:
            raise KeyError(code)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        # A message may quote hostile input: keep it on one line, printable and bounded.
        text = "".join(c if c.isprintable() else "?" for c in f"{self.code}: {self.message}")
        return text if len(text) < MAX_LINE else text[: MAX_LINE - 4] + " ..."

    def __repr__(self) -> str:
        return f"Problem({self.code!r}, {self.message!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and (self.code, self.message) == (other.code, other.message)

    def __hash__(self) -> int:
        return hash((self.code, self.message))


class GhError(Exception):
    """A refusal with all its problems, one line each."""

    exit_status = 1

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(p) for p in self.problems)


class RequestError(GhError):
    """GH-1xx"""


class NoRoomError(GhError):
    """GH-2xx"""


class NodeError(GhError):
    """GH-3xx"""


class ApplyError(GhError):
    """GH-4xx"""


class SettingsError(GhError):
    """GH-5xx"""


class ClusterError(GhError):
    """GH-6xx"""


_BY_HUNDRED: "dict[str, type[GhError]]" = {
    "1": RequestError,
    "2": NoRoomError,
    "3": NodeError,
    "4": ApplyError,
    "5": SettingsError,
    "6": ClusterError,
}


def refuse(code: str, message: str) -> GhError:
    """The exception for one problem, of the class that belongs to its code. The caller raises it."""
    return _BY_HUNDRED[code[3]](Problem(code, message))
