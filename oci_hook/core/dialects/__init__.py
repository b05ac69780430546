"""The dialects: annotation keys of other systems that are understood, one table file each. `native` has our own keys and is
always on.

A table module has
  KEYS  annotation key (native: without our prefix) -> (wish, parser, implied wishes); if the value decides which wish a
        key means, the parser returns value_parsers.Several
  ENV   environment variable -> key, for nodes that trust the environment
  SAME  (exact key, rough key) for one thing: if both are said, the exact one counts; of annotations, the rough one must
        agree with it
If the node's rules decide what a key means, the module has a function `rows(rules)`, which is used instead of KEYS. If its
keys name containers, it has NAMED (how such keys begin), `split(key)` -> (the key as KEYS has it, the container) and
`whom(key, annotations)`.
To add a dialect, write its file and put its name into NAMES and what its keys begin with into BEGIN. The launcher,
which decides without Python whether a container asks for anything, is compiled with the words of BEGIN (`triggers`):
run scripts/build after a change. A dialect that asks by mounts needs its words in ASK_BY_MOUNT.
"""

from oci_hook.core.layout import PREFIX_KEY, VISIBLE_DIR

NATIVE = "native"
NAMES = ("t9k", "qgpu", "gpu-manager", "hami", "kai", "nvidia-volumes", "nvidia")

# Words that say how, and never what, so that no container without other words needs a look.
HOW_ALONE = ("NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_", "NVIDIA_DISABLE_REQUIRE")
# Beginnings of a dialect's keys. A table is imported only for a container that has such a key.
BEGIN = {
    "t9k": ("NVIDIA_VISIBLE_DEVICES", "T9K_GPU_", "tensorstack.dev/"),
    "qgpu": ("tke.cloud.tencent.com/",),
    "gpu-manager": ("tencent.com/vcuda-", "nvidia.com/vcuda-"),
    "hami": ("nvidia.com/gpu", "nvidia.com/priority"),
    "kai": ("gpu-fraction", "gpu-memory", "runai/gpu-", "nvidia.com/container."),
    "nvidia-volumes": (),  # has no keys: core/collect.py reads its mounts
    "nvidia": ("NVIDIA_GPU_MEMORY_", "CUDA_VERSION", *HOW_ALONE),
}
# Beginnings of all variables of ours and of near misses, for nodes that trust the environment (core/collect.py: NEAR_VARIABLES).
OUR_WORDS = (PREFIX_KEY, "GPU_HOOK", "GPUHOOK", "T9K_GPU", "NVIDIA_VISIBLE_", "NVIDIA_GPU_MEM", "NVIDIA_IMEX_CHANNELS")
ASK_BY_MOUNT = (VISIBLE_DIR.rpartition("/")[2],)  # the launcher looks for our own mounts by itself: asks_by_mount()

# Marks of a request in words that nobody understands (core/near_misses.py): parts of annotation keys, and of mounts' paths. The
# launcher looks for them, and engines hand the annotations of NEAR_PATTERNS (Go's path.Match) on to the runtime.
NEAR_KEYS = ("gpu", "cuda", "nvidia", "hook.io/")  # in whatever letters
NEAR_MOUNTS = ("/run/gpu", "gpu-hook/request")
NEAR_PATTERNS = ("gpu*/*", "gpu*", "T9K_*", "NVIDIA_*")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import ModuleType

    from oci_hook.core.rules import Rules

    Row = tuple[str, Callable[[str], object], dict[str, object]]


def table(name: str) -> "ModuleType":
    """The table module of a dialect, imported only where it is needed. KeyError for an unknown name."""
    if name != NATIVE and name not in NAMES:
        raise KeyError(name)
    module: ModuleType = __import__(f"{__name__}.{name.replace('-', '_')}", fromlist=["KEYS"])
    return module


def rows(name: str, rules: "Rules", keys: "Iterable[str]" = ()) -> "dict[str, Row]":
    """The keys of a dialect, and what they mean on a node with these rules. keys: of annotations; those that name containers
    are among the result, too."""
    module = table(name)
    by_rules = getattr(module, "rows", None)
    found: dict[str, Row] = by_rules(rules) if by_rules else module.KEYS
    named = [key for key in keys if key.startswith(module.NAMED)] if hasattr(module, "NAMED") else []
    return {**found, **{key: found[known] for key in named if (known := known_key(name, key))}} if named else found


def known_key(name: str, key: str) -> str:
    """A key as the dialect's table has it; "" for one that it does not have."""
    module = table(name)
    known: str = module.split(key)[0] if hasattr(module, "split") else key
    return known if known in module.KEYS else ""


def whom(name: str, key: str, annotations: "Mapping[str, str]") -> str:
    """The container for which a dialect's key is; "" where nothing says it."""
    module = table(name)
    return str(module.whom(key, annotations)) if hasattr(module, "whom") else ""


def spoken(names: "Iterable[str]", keys: "Iterable[str]") -> list[str]:
    """The names of those dialects that some of these keys may belong to."""
    keys = tuple(keys)
    return [name for name in names if BEGIN[name] and any(key.startswith(BEGIN[name]) for key in keys)]


def is_known(names: "Iterable[str]", key: str) -> bool:
    """True if one of these dialects reads an annotation of this key."""
    return ("nvidia" in names and key.startswith(HOW_ALONE)) or any(
        known_key(name, key) for name in spoken(names, [key])
    )


def wish(key: str) -> str:
    """The subject of a dialect's key: "memory", "class"; "" for none of them."""
    return next((table(name).KEYS[known][0] for name in NAMES if (known := known_key(name, key))), "")


def triggers() -> tuple[str, ...]:
    """A config.json that has none of these words asks for nothing: the launcher passes it on to the real runtime. It finds
    keys that begin with gpu by NEAR_KEYS: programs have arguments of such names."""
    words = (word for name in NAMES for word in BEGIN[name] if word not in HOW_ALONE and not word.startswith("gpu-"))
    return (*OUR_WORDS, *ASK_BY_MOUNT, *words)
