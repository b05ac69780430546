"""The parsers of annotation values that the dialect tables name: each turns text into one plain value.

A parser returns None if the key counts as absent, and raises ValueError with the words to put after the value in a
message.
"""

from oci_hook.core.rules import BY_CLASS as BY_CLASS
from oci_hook.core.rules import ORDERS
from oci_hook.core.terms import BOUNDARIES
from oci_hook.core.terms import CLASSES as CLASSES
from oci_hook.core.terms import POLICIES as POLICIES
from oci_hook.core.units import DIGITS, MAX_MEMORY_MIB, SIZE_HELP, duration, integer, memory, names, percent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PLACEMENTS = tuple(ORDERS)
CAPABILITIES = ("compute", "utility", "video", "graphics", "display", "ngx", "compat32")
WITH_A_SHARE = ("compute", "utility", "video")  # the others reach the GPU without libcuda, so no limit would hold

ALL = "all"
NONE = "none"  # driver files, but no GPU
VOID = "void"  # not a GPU container at all
ZERO = "zero"  # no GPU of this system

MAX_GPUS = 16  # the policy page's table (core/policy_page.py)
MAX_INDEX = 255
MAX_CHANNEL = 2047  # the last IMEX channel that NVIDIA's module makes by default
MAX_UUID = 47  # the policy page's field, less its NUL
UUID_CHARACTERS = DIGITS | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-")
MAX_WORD = 63  # as long as a label of Kubernetes
WORD_CHARACTERS = UUID_CHARACTERS | frozenset("._")
SHORT_POLICIES = {"be": "best-effort", "fs": "fixed-share", "bs": "burst-share"}


class Amount:
    """The parser of an amount that a container has as a resource in its system. There 0 asks for nothing, as in Kubernetes: the key
    counts as absent, or a number of GPUs is ZERO (core/validate.py: zero). unit: what may stand behind the number."""

    def __init__(self, reader: "Callable[[str], object]", zero: object = None, unit: str = "") -> None:
        self.reader = reader
        self.zero = zero
        self.unit = unit

    def __call__(self, text: str) -> object:
        return self.zero if text.removesuffix(self.unit) == "0" else self.reader(text)


class Several(dict[str, object]):
    """A parser's result if the value decides which wish the key means: wish -> value."""


def devices(text: str) -> str | tuple[str, ...] | None:
    """The grammar of NVIDIA_VISIBLE_DEVICES: indices and UUIDs, or `all`, `none`, `void`; an empty text counts as absent.

    https://docs.nvidia.com/datacenter/cloud-native/container-toolkit (`void` counts even inside a list).
    """
    if not text.strip(" "):
        return None
    items = names(text)
    items = tuple(cdi_name(item) for item in items)
    if VOID in items:
        return VOID
    if items in ((ALL,), (NONE,)):
        return items[0]
    if len(items) > MAX_GPUS:
        raise ValueError(f"names more than {MAX_GPUS} GPUs")
    return tuple(dict.fromkeys(device(item) for item in items))


def cdi_name(item: str) -> str:
    """Strips vendor and class from a CDI name of the NVIDIA runtime: runtime.nvidia.com/gpu=0 becomes 0."""
    kind, equals, name = item.partition("=")
    return name if equals and kind in ("runtime.nvidia.com/gpu", "nvidia.com/gpu") else item


def device(item: str) -> str:
    """A GPU by index or UUID, or a MIG device as GPU:DEVICE, by UUID or by its old name."""
    if item.startswith(("GPU-", "MIG-")):
        uuid, _, instance = item.partition("/")
        if (
            len(uuid) > MAX_UUID
            or not UUID_CHARACTERS.issuperset(uuid)
            or (instance and not uuid.startswith("MIG-GPU-"))
        ):
            raise ValueError("has a GPU UUID that is not well-formed")
        if instance:  # MIG-GPU-UUID/GI/CI, the name of a MIG device before driver 470
            gi, _, ci = instance.partition("/")
            return f"{uuid}/{integer(gi, 0, MAX_INDEX)}/{integer(ci, 0, MAX_INDEX)}"
        return item
    gpu, colon, instance = item.partition(":")
    if item[:1] not in DIGITS:
        for name in ("cuda:", "gpu:", "nvidia", "/dev/nvidia", "gpu", "GPU"):
            rest = item.removeprefix(name)
            if rest != item and rest and DIGITS.issuperset(rest):
                raise ValueError(f"is not a GPU; did you mean {rest[:9]}?")
    if colon:
        return f"{integer(gpu, 0, MAX_INDEX)}:{integer(instance, 0, MAX_INDEX)}"
    if not DIGITS.issuperset(item):
        raise ValueError(
            "is not a list of GPU indices (0,2), MIG devices (0:1) or UUIDs (GPU-..., MIG-...), nor all or none"
        )
    return str(integer(item, 0, MAX_INDEX))


def gpus(text: str) -> int | str:
    """A number of GPUs, `all` or `none`."""
    if text in (ALL, NONE):
        return text
    try:
        return integer(text, 1, MAX_GPUS)
    except ValueError:
        why = f"is not a number of GPUs from 1 to {MAX_GPUS}, and not all or none"
        hint = ""
        if text.startswith("0."):
            hint = "; for a part of a GPU write memory and compute, such as 50% and 50"
        elif "," in text or text.lower().startswith(("gpu", "mig-", "cuda", "nvidia", "/dev/")):
            hint = "; the key devices names GPUs, such as 0,2"
        raise ValueError(why + hint) from None


def channels(text: str) -> tuple[int, ...]:
    """The numbers of IMEX channels, in rising order."""
    items = names(text)
    if len(items) > MAX_GPUS:
        raise ValueError(f"names more than {MAX_GPUS} IMEX channels")
    return tuple(sorted({integer(item, 0, MAX_CHANNEL) for item in items}))


def gpu_count(text: str) -> int:
    """A number of GPUs, in systems that have no `all`."""
    return integer(text, 1, MAX_GPUS)


def cores(text: str) -> Several:
    """Below 100, a share of one GPU in per cent; 100, 200, ... are whole GPUs."""
    number = integer(text, 1, 100 * MAX_GPUS)
    if number < 100:
        return Several(compute=number)
    if number % 100:
        raise ValueError("is above 100 and no multiple of it; below 100 is a share, 200 are two GPUs")
    return Several(gpus=number // 100, exclusive=True)


def memory_mb(text: str) -> tuple[str, int]:
    """A number that other systems call MB, by which they mean MiB."""
    return ("mib", integer(text, 1, MAX_MEMORY_MIB))


def memory_percent(text: str) -> tuple[str, int]:
    return ("percent", percent(text))


def one_of(words: tuple[str, ...]) -> "Callable[[str], str]":
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"is not one of {', '.join(words)}")
        return text

    return read


priority_class = one_of(CLASSES[::-1])
placement = one_of(PLACEMENTS)
boundary = one_of(BOUNDARIES[::-1])


def preempt_tolerance(text: str) -> int:
    """A time, in microseconds."""
    return duration(text) // 1000


def policy(text: str) -> str:
    """A policy's name or its two letters."""
    text = SHORT_POLICIES.get(text, text)
    if text not in POLICIES:
        raise ValueError("is not one of best-effort (be), fixed-share (fs), burst-share (bs)")
    return text


class Bounded(tuple[str, ...]):
    """Capabilities as an upper bound: the container gets the allowed ones among them."""


def bounded_capabilities(text: str) -> Bounded | None:
    """NVIDIA_DRIVER_CAPABILITIES: CUDA images say `all`, and mean what there is. Empty: the default."""
    if not text.strip(" "):
        return None
    found = capabilities(text)
    return Bounded(CAPABILITIES if found == ALL else found)


def word(text: str) -> str:
    """A name of the user's choice."""
    if not 0 < len(text) <= MAX_WORD or not WORD_CHARACTERS.issuperset(text):
        raise ValueError(f"is not a word of letters, digits, - . and _, of {MAX_WORD} characters at most")
    return text


def flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("is not true or false")
    return text == "true"


def capabilities(text: str) -> str | tuple[str, ...]:
    """Driver capabilities, in the order of CAPABILITIES; or `all`: all that this kind of request may have."""
    items = names(text)
    if items == (ALL,):
        return ALL
    for item in items:
        if item not in CAPABILITIES:
            raise ValueError(f"is not all and not a list of {', '.join(CAPABILITIES)}")
    return tuple(c for c in CAPABILITIES if c in items)


NO_GPU = Several(gpus=ZERO)  # for what is compute below 100, and a number of GPUs above

# What to write instead of a value that a parser refuses without saying so itself.
REMEDIES: "dict[Callable[[str], object], str]" = {
    memory: SIZE_HELP,
    percent: "write 30 or 30%",
    gpus: "write 2, all or none",
    devices: "`gpu-hook gpus` lists this node's",
    policy: "write one of them",
    priority_class: "write one of them",
    placement: "write one of them",
    flag: "write one of them",
    word: "write one such as web",
    preempt_tolerance: "write 300us, 100ms or 2s",
    capabilities: "write compute,utility or all",
    bounded_capabilities: "write compute,utility or all",
    channels: "write 0 or 0,7",
    gpu_count: "write 1, 2, ... up to 16",
    cores: "write 30 for a share, or 100, 200, ... for whole GPUs",
    memory_mb: "write a number of MiB, such as 4096",
    memory_percent: "write 30 or 30%",
}
