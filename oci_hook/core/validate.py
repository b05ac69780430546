"""Checks the wishes of one container together: which of them contradict each other, and which defaults apply.

Each function answers one question and adds what is wrong to `given.problems`; its answer counts only if that list stays
empty. A wish whose value is None could not be parsed: that is among the problems already, and nothing follows from it.
"""

from oci_hook.core import dialects
from oci_hook.core.boundary import weaker
from oci_hook.core.value_parsers import ALL, CAPABILITIES, NONE, VOID, WITH_A_SHARE, ZERO, Bounded
from oci_hook.errors import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from oci_hook.core.collect import Wish
    from oci_hook.core.rules import Rules
    from oci_hook.core.terms import Terms

# The wishes that ask for a GPU; the others only say how.
ASKING = ("memory", "compute", "gpus", "devices", "exclusive", "per_gpu", "memory-request")
ALL_OF_WHOLE = (
    "gpu-manager",
    "qgpu",
)  # systems in which whole GPUs come with all their memory, whatever memory is named
NO_GPU_ASKED = "the second asks for no GPU"
REQUIRED = "require "  # begins the name of each wish that an NVIDIA_REQUIRE_ makes
INSTEAD = ("memory", "compute", "gpus", "devices")  # the annotation `request` (the wish "per_gpu") has these as well


class Given:
    """One wish per name, and the problems found so far."""

    def __init__(self, found: "list[Wish]", problems: list[Problem]) -> None:
        self.problems = problems
        self.found = tuple(wish for wish in found if not self.zero(wish, found))
        self.wishes: dict[str, Wish] = {}
        self.same_percent: int | None = None  # the memory once more, in per cent, to be compared once the GPU is known
        for wish in sorted(self.found, key=lambda wish: not wish.own):
            self.add(wish)
        self.resolve_per_gpu()
        request = self.wishes.get("memory-request")
        if request is not None and request.dialect == "kai" and "memory" not in self:
            self.wishes["memory"] = request.replace(
                name="memory"
            )  # there the limit is the request where nothing says it
        self.divide()
        if (memory := self.beside_whole()) is not None:
            del self.wishes[memory.name]

    def zero(self, wish: "Wish", found: "list[Wish]") -> bool:
        """True for a number of GPUs that is 0, which is as if it were not written. Beside that system's words for a share it
        contradicts them: there such a container has no GPU, here one GPU is the default."""
        if wish.value != ZERO:
            return False
        for other in found:
            if other.dialect == wish.dialect and other.name in ASKING and other.value not in (None, ZERO, False):
                self.complain("GH-103", f"{other} and {wish} contradict each other: {NO_GPU_ASKED}; drop or change one")
        return True

    def divide(self) -> None:
        """qGPU's memory beside the compute of several GPUs is of all of them together; each has an equal part, rounded down to qGPU's
        unit, and is no whole GPU then (https://cloud.tencent.com/document/product/457/127667)."""
        gpus, memory = self.wishes.get("gpus"), self.wishes.get("memory")
        if gpus is None or memory is None or {gpus.dialect, memory.dialect} != {"qgpu"}:
            return
        count = gpus.value
        if not isinstance(count, int) or count < 2 or not isinstance(memory.value, tuple):
            return
        each = int(memory.text) // count
        if not each:
            self.complain("GH-103", f"{memory} is less than one for each of the {count} GPUs of {gpus}; ask for more")
            return
        self.wishes["memory"] = memory.replace(value=("mib", memory.value[1] // int(memory.text) * each))
        if self.wishes.pop("exclusive", None):
            self.wishes["compute"] = gpus.replace(name="compute", value=100)

    def beside_whole(self) -> "Wish | None":
        """The memory that a system names beside whole GPUs, where that system gives all of their memory whatever is named."""
        whole, memory = self.wishes.get("exclusive"), self.wishes.get("memory")
        if whole is None or memory is None or whole.dialect != memory.dialect or whole.value is not True:
            return None
        return memory if whole.dialect in ALL_OF_WHOLE else None

    def resolve_per_gpu(self) -> None:
        """The annotation `request` replaces the keys in INSTEAD. Given both, the one addressed to this container wins; if both are
        equally specific, they contradict each other, even if they agree."""
        gpus = self.wishes.get("per_gpu")
        if gpus is None:
            return
        rivals = [self.wishes[name] for name in INSTEAD if name in self]
        same = [wish for wish in rivals if wish.dialect == gpus.dialect]
        if not gpus.own and any(wish.own for wish in same):
            del self.wishes["per_gpu"]
            return
        for wish in rivals:
            if wish in same and gpus.own and not wish.own:
                del self.wishes[wish.name]
            elif None not in (wish.value, gpus.value) and wish.value not in (NONE, VOID):  # `declined` reports those
                self.contradict("per_gpu", wish.name, "request says each GPU's share by itself")

    def add(self, wish: "Wish") -> None:
        """A key that names this container wins over the same dialect's key for the pod; else two keys must agree."""
        other = self.wishes.setdefault(wish.name, wish)
        if other.dialect == wish.dialect and other.own != wish.own:
            return
        if None not in (other.value, wish.value) and other.value != wish.value:
            if self.same(other, wish) or self.same(wish, other):
                return
            self.complain(code(other, wish), f"{other} and {wish} disagree about {wish.name}; give one of them")

    def same(self, exact: "Wish", rough: "Wish") -> bool:
        """True if these are two words of one system for one thing (a table's SAME). Then the exact one counts."""
        if exact.dialect != rough.dialect or (exact.key, rough.key) not in dialects.table(exact.dialect).SAME:
            return False
        if self.same_percent is not None and rough.value != ("percent", self.same_percent):
            return False
        self.wishes[exact.name] = exact
        self.same_percent = rough.value[1] if isinstance(rough.value, tuple) else None
        return True

    def __contains__(self, name: str) -> bool:
        return name in self.wishes

    def value(self, name: str) -> "Any":
        return self.wishes[name].value if name in self.wishes else None

    def who_says(self, name: str) -> "Wish | None":
        """The wish from which the memory limit, or the compute, comes. name: memory or compute."""
        if any(getattr(gpu, name) is not None for gpu in self.value("per_gpu") or ()):
            return self.wishes["per_gpu"]
        return self.wishes.get(name)

    @property
    def partial(self) -> bool:
        """True if a part of a GPU is asked for, not the whole."""
        return self.who_says("memory") is not None or self.who_says("compute") is not None

    @property
    def asks_compute(self) -> bool:
        """True if compute is asked for, or may be asked for in a value that could not be parsed."""
        return self.who_says("compute") is not None or ("per_gpu" in self and self.value("per_gpu") is None)

    def complain(self, code: str, message: str) -> None:
        self.problems.append(Problem(code, message))

    def contradict(self, first: str, second: str, why: str) -> None:
        one, two = self.wishes[first], self.wishes[second]
        self.complain(code(one, two), f"{one} and {two} contradict each other: {why}; drop or change one")


def code(one: "Wish", two: "Wish") -> str:
    """The code of a contradiction, by whether one dialect contradicts itself or two contradict each other."""
    return "GH-103" if one.dialect == two.dialect else "GH-104"


def asks(found: "Iterable[Wish]") -> bool:
    """True if any of these asks for a GPU."""
    return any(wish.name in ASKING and wish.value is not False for wish in found)


def declined(given: Given) -> str | None:
    """NONE or VOID if the container asks for no GPU, else None. A container may decline what its pod asks for."""
    off = next((given.wishes[n] for n in ("gpus", "devices") if given.value(n) in (NONE, VOID)), None)
    if off is None:
        return None
    for name in ASKING:
        wish = given.wishes.get(name)
        if wish and wish.value not in (NONE, VOID, False) and (wish.own or not off.own):
            given.contradict(name, off.name, NO_GPU_ASKED)
    return str(off.value)


def check_count(given: Given) -> None:
    """Checks that gpus and devices name the same number of GPUs."""
    count, devices = given.value("gpus"), given.value("devices")
    if count is None or devices is None:
        return
    named = ALL if devices == ALL else len(devices)
    if count != named:
        given.contradict("gpus", "devices", f"the second names {'every GPU' if named == ALL else named}")


def exclusive(given: Given, rules: "Rules") -> bool:
    """True if no other container may be on the GPUs. Without a word, whole GPUs follow the node's whole_gpus."""
    said = given.value("exclusive")
    if said is None:
        return not given.partial and rules.whole_gpus == "exclusive"
    if said and given.partial:
        limit = given.who_says("memory") or given.who_says("compute")
        given.contradict("exclusive", limit.name if limit else "exclusive", "an exclusive GPU has no limits")
    if not said and not given.partial and rules.whole_gpus == "exclusive":
        why = "on this node a GPU without memory or compute is exclusive; ask for memory or compute"
        given.complain("GH-103", f"{given.wishes['exclusive']}: {why}")
    return bool(said)


def policy(given: Given, rules: "Rules") -> str:
    """best-effort if only memory is asked for, because that guarantees no compute; else the container's policy, or the node's."""
    said = given.value("policy")
    memory = given.who_says("memory")
    if memory is not None and not given.asks_compute:
        if said not in (None, "best-effort"):
            given.contradict("policy", memory.name, "that policy divides compute, and no compute is asked")
        return "best-effort"
    return str(said or rules.default_policy)


def compute_limit(given: Given, terms: "Terms", rules: "Rules") -> int | None:
    """The ceiling, which is not below the guarantee; None: no ceiling. Only burst-share has one, and a container of class
    online whose compute is only booked."""
    policy = terms.policy
    has_one = policy == "burst-share" or (policy == "fixed-share" and rules.competes(terms.priority_class))
    limit, asked = given.value("compute-limit"), given.who_says("compute")
    if not isinstance(limit, int):
        return None
    wish = given.wishes["compute-limit"]
    if not given.asks_compute:
        given.complain("GH-103", f"{wish} is a ceiling above a guarantee, and no compute is asked; add compute")
    elif not has_one:
        if "policy" not in given or given.value("policy"):
            given.complain("GH-103", f"{wish} is for the policy burst-share, here it is {policy}; drop or change one")
    elif asked is not None and limit < guarantee(given):
        given.contradict("compute-limit", asked.name, "the ceiling is below the guarantee")
    return limit


def preempt_tolerance(given: Given, rules: "Rules") -> int | None:
    """The longest tolerated preemption delay in microseconds, which only the highest class may state; None: not stated."""
    said = given.value("preempt-tolerance")
    if (
        said is not None
        and given.value("class") != "online"
        and not ("class" in given and given.value("class") is None)
    ):
        why = "only class online goes before others; set class to online, or drop it"
        given.complain("GH-103", f"{given.wishes['preempt-tolerance']}: {why}")
    return said if isinstance(said, int) else None


def guarantee(given: Given) -> int:
    """The highest compute that is asked of any GPU, in per cent; 0 if it could not be parsed."""
    each = [gpu.compute for gpu in given.value("per_gpu") or ()]
    return max((n for n in (*each, given.value("compute")) if n is not None), default=0)


def capabilities(given: Given, rules: "Rules") -> tuple[str, ...]:
    """The driver capabilities. A container without whole GPUs may only have those that the shims govern; `all` means all that
    it may have."""
    said = given.value("capabilities")
    if said is None:
        return ("compute", "utility")
    if isinstance(said, Bounded):
        allowed = tuple(name for name in said if name in WITH_A_SHARE or not given.partial)
        if not allowed:
            why = f"a share has none of them, but {', '.join(WITH_A_SHARE)}; drop it, or ask for a whole GPU"
            given.complain("GH-106", f"{given.wishes['capabilities']}: {why}")
        return allowed
    if said == ALL:
        return WITH_A_SHARE if given.partial else CAPABILITIES
    past = [name for name in said if name not in WITH_A_SHARE]
    if past and given.partial:
        why = f"{', '.join(past)} would reach the GPU past the limits; drop it, or ask for a whole GPU"
        given.complain("GH-106", f"{given.wishes['capabilities']}: {why}")
    return tuple(said)


def imex_channels(given: Given, rules: "Rules") -> tuple[int, ...]:
    """The IMEX channels. They give access to memory that no limit counts, so they are only for whole GPUs."""
    said = given.value("imex-channels") or ()
    if said and given.partial:
        why = "an IMEX channel would reach memory past the limits; drop it, or ask for a whole GPU"
        given.complain("GH-106", f"{given.wishes['imex-channels']}: {why}")
    return tuple(said)


def memory_request(given: Given) -> None:
    """A request stands beside its limit, and is at most the limit. NVIDIA's toolkit wants both."""
    asked, limit = given.wishes.get("memory-request"), given.wishes.get("memory")
    if asked is None:
        if limit is not None and limit.key.endswith(("NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_LIMITS")):
            given.complain("GH-103", f"{limit} stands alone; NVIDIA_GPU_MEMORY_REQUEST belongs beside it")
        return
    if limit is None:
        beside = "NVIDIA_GPU_MEMORY_LIMIT" if asked.dialect == "nvidia" else "gpu-hook.io/memory, its limit,"
        given.complain("GH-103", f"{asked} stands alone; {beside} belongs beside it")
        return
    one, two = asked.value, limit.value
    if isinstance(one, tuple) and isinstance(two, tuple) and one[0] == two[0] and one[1] > two[1]:
        given.contradict("memory-request", "memory", "the request is above the limit")


def required(given: Given) -> tuple[str, ...]:
    """The container's requirements of driver and GPU, as KEY=EXPRESSION."""
    wishes = sorted(
        (w for name, w in given.wishes.items() if name.startswith(REQUIRED) and w.value), key=lambda w: w.key
    )
    return tuple(f"{wish.key.removeprefix('env ')}={wish.text}" for wish in wishes)


def visible(given: Given, rules: "Rules") -> str:
    """The names of GPUs in NVIDIA_VISIBLE_DEVICES: as the container asks for them, or as T9k prints them for its words, which
    may stand beside another system's for the same, but not beside our own."""
    if given.value("visible"):
        return str(given.value("visible"))
    names = {"memory", "gpus"} - {wish.name for wish in given.found if wish.dialect == dialects.NATIVE}
    said = {wish.key for wish in given.found if wish.dialect == "t9k" and wish.name in names}
    if any(key.removeprefix("env ").startswith(("T9K_GPU_", "tensorstack.dev/nvidia-gpu-percent")) for key in said):
        return "index"
    return "all" if "tensorstack.dev/nvidia-gpu-node" in said else "uuid"


def boundary(given: Given, rules: "Rules") -> str:
    """The required holder of the memory limit. A container may ask for a stronger boundary than the node's, not for a weaker one."""
    said = given.value("boundary")
    if said is not None and weaker(said, rules.boundary):
        why = f"weaker than this node's setting, boundary: {rules.boundary}; drop it, or ask for driver"
        given.complain("GH-103", f"{given.wishes['boundary']}: {why}")
    return str(said or rules.boundary)


# The terms of a container that have a check or a default of their own, by their field in core/terms.py.
TERMS: "dict[str, Callable[[Given, Rules], object]]" = {
    "policy": policy,
    "preempt_tolerance_us": preempt_tolerance,
    "capabilities": capabilities,
    "imex_channels": imex_channels,
    "visible": visible,
    "boundary": boundary,
}
