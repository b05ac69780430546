"""The settings by their keys, each with its reader: it takes the value's text, and raises ValueError with the words to
put after it."""

from posixpath import normpath

from oci_hook.core import dialects, units, value_parsers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from oci_hook.config.flat_yaml import Value

    Reader = Callable[[Value], Any]

UNITS = ("none", "MiB", "GiB")  # of core/dialects/qgpu.py, which few nodes need to load
AUTO = "auto"
MODES = ("standalone", "on-top", "below")
MAX_PATH = 1024  # bytes of a path, the launcher's too


def one_of(*words: str) -> "Reader":
    def read(value: "Value") -> str:
        if value not in words:
            raise ValueError(f"is not one of {', '.join(words)}")
        return str(value)

    return read


def whole(low: int, high: int) -> "Reader":
    def read(value: "Value") -> int:
        try:
            return units.integer(str(value), low, high)
        except ValueError:
            raise ValueError(f"is not a whole number from {low} to {high}") from None

    return read


def memory(low: int) -> "Reader":
    """MiB: a number, or a size as in an annotation."""

    def read(value: "Value") -> int:
        if value == "0" and low == 0:
            return 0
        try:
            return units.size(str(value))
        except ValueError:
            raise ValueError("is not a size from 1Mi to 16Ti; write 4Gi, 512Mi or a number of MiB") from None

    return read


def memory_or_percent(value: "Value") -> "int | tuple[str, int]":
    """MiB, or ("percent", 0 to 99) of each GPU."""
    if isinstance(value, str) and value.endswith("%"):
        return ("percent", whole(0, 99)(value[:-1]))
    return memory(0)(value)  # type: ignore[no-any-return]


def times(value: "Value") -> int:
    """A number from 1.0 to 10.0 with at most two decimals, in per cent."""
    whole_part, point, part = str(value).partition(".")
    try:
        if bool(point) == bool(part) and len(part) <= 2:
            return units.integer(whole_part + part.ljust(2, "0"), 100, 1000)
    except ValueError:
        pass
    raise ValueError("is not from 1.0 to 10.0; write 1.5, or 1.0 to lend no memory")


def default_policy(value: "Value") -> str | None:
    """A policy, by its name or its two letters; None: the profile's."""
    if value == "auto":
        return None
    try:
        return value_parsers.policy(str(value))
    except ValueError as e:
        raise ValueError(f"{e}, and not auto") from None


def linger(value: "Value") -> int:
    """Nanoseconds; 0 for adaptive."""
    if value == "adaptive":
        return 0
    try:
        return units.duration(str(value))
    except ValueError:
        raise ValueError("is not adaptive and no time from 1us to 4s, such as 100ms") from None


def flag(value: "Value") -> bool:
    if value not in ("true", "false"):
        raise ValueError("is not true or false")
    return value == "true"


def path(value: "Value") -> str:
    """Absolute and in its shortest form, so that two spellings never name two places; one line of text."""
    if not isinstance(value, str) or not value.startswith("/") or value.startswith("//"):
        raise ValueError("is not an absolute path")
    if not value.isprintable() or len(value.encode()) >= MAX_PATH:
        raise ValueError("has characters that a path in settings may not have, or is too long")
    if normpath(value) != value:
        raise ValueError(f"is not in its shortest form; write {normpath(value)}")
    return value


def python(value: "Value") -> str:
    """AUTO or a path."""
    try:
        return AUTO if value == AUTO else path(value)
    except ValueError as e:
        raise ValueError(f"{e}, and not {AUTO}") from None


def dialect_names(value: "Value") -> tuple[str, ...]:
    if isinstance(value, str) or any(name not in dialects.NAMES for name in value):
        raise ValueError(f"is not a list of {', '.join(dialects.NAMES)}")
    return tuple(dict.fromkeys(value))


# Fields of Settings.
INSTALL: "dict[str, Reader]" = {
    "mode": one_of(*MODES),
    "runtime": path,
    "python": python,
    "driver_root": path,
    "state_dir": path,
    "cluster": one_of("off", "local", "required", "dra"),
}

# The settings that a profile fixes, whatever else is set, and the default policy that goes with it.
# qgpu: https://cloud.tencent.com/document/product/457/61448.
PROFILES: "dict[str, dict[str, Any]]" = {
    "none": {},
    "qgpu": {"memory_min": 1024, "memory_step": 1024, "compute_step": 5, "memory_per_share": 4096},
}
PROFILE = "profile"
DEFAULT_POLICY = {"none": "burst-share", "qgpu": "best-effort"}

# Fields of Rules.
RULES: "dict[str, Reader]" = {
    "default_policy": default_policy,
    "placement": one_of(*value_parsers.PLACEMENTS, value_parsers.BY_CLASS),
    "whole_gpus": one_of("exclusive", "shared"),
    "memory_reserve": memory_or_percent,
    "memory_step": memory(1),
    "memory_min": memory(1),
    "compute_step": whole(1, 100),
    "max_shares_per_gpu": whole(1, 64),
    "memory_per_share": memory(0),
    "trust_env": flag,
    "dialects": dialect_names,
    "qgpu_memory_unit": one_of(*UNITS),
    "linger": linger,
    "online_compute": one_of("booking", "share"),
    "near_misses": one_of("auto", "refuse", "warn"),
    "boundary": one_of("auto", "driver", "shim"),
    "driver_limit_extra": memory(0),
    "oversubscribe": times,
    "memory_wait": whole(0, 86400),
    "memory_turn": whole(1, 86400),
}

# The settings that a cluster may make for a node (config/cluster.py): how its GPUs are shared, not whom it trusts.
OF_CLUSTER = (
    "default_policy",
    "placement",
    "whole_gpus",
    "memory_reserve",
    "memory_step",
    "memory_min",
    "compute_step",
    "max_shares_per_gpu",
    "memory_per_share",
    "linger",
    "online_compute",
)

# The agent's. Only their names are checked here; their values are read by install/agent_settings.py.
AGENT = (
    "agent.address",
    "agent.token_file",
    "agent.textfile",
    "agent.group",
    "agent.policy",
    "agent.tolerance",
    "agent.compute_tolerance",
    "agent.interval",
    "agent.kubeconfig",
    "agent.node",
    "agent.namespace",
    "agent.controller_token",
    "agent.device_plugins",
)

READERS: "dict[str, Reader]" = {
    **INSTALL,
    PROFILE: one_of(*PROFILES),
    **RULES,
    **dict.fromkeys(AGENT, lambda value: value),
}


def suggest(key: str) -> str:
    """What to do about a key that is not a setting."""
    if key.startswith("rules.") and key[len("rules.") :] in READERS:
        return f"write {key[len('rules.') :]}"
    near = [known for known in READERS if known.rpartition(".")[2] == key or _near(known, key)]
    return f"did you mean {near[0]}?" if near else "`gpu-hook settings show` lists them"


def _near(one: str, other: str) -> bool:
    """At most one character is missing, added or another, or two stand the wrong way round."""
    if abs(len(one) - len(other)) > 1:
        return False
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    a, b = one[same:], other[same:]
    return a[1:] == b[1:] or a == b[1:] or a[1:] == b or (a[1::-1] == b[:2] and a[2:] == b[2:])
