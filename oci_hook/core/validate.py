"""The wishes of one container judged together: what contradicts what, and what is meant where nothing is said.

Each function answers one question and adds to `given.problems` what is wrong; its answer counts only if that stays
empty. A wish whose value is None could not be read: that was said already, and nothing follows from it.
"""

from oci_hook.core.value_parsers import ALL, CAPABILITIES, NONE, VOID, WITH_A_SHARE
from oci_hook.errors import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from oci_hook.core.collect import Wish
    from oci_hook.core.rules import Rules

# Wishes that ask for a GPU; the others only say how.
ASKING = ("memory", "compute", "gpus", "devices", "exclusive", "per_gpu")
INSTEAD = ("memory", "compute", "gpus", "devices")  # what `request` (the wish "per_gpu") says as well


class Given:
    """One wish per name, and the problems found so far."""

    def __init__(self, found: "list[Wish]", problems: list[Problem]) -> None:
        self.problems = problems
        self.wishes: dict[str, Wish] = {}
        for wish in sorted(found, key=lambda wish: not wish.own):
            self.add(wish)
        self.settle()

    def settle(self) -> None:
        """`request` says all of INSTEAD: what is said of this container by name wins over what is said of its pod, and
        side by side they contradict each other, even where they agree."""
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
            elif None not in (wish.value, gpus.value) and wish.value not in (NONE, VOID):  # `declined` says those
                self.contradict("per_gpu", wish.name, "request says each GPU's share by itself")

    def add(self, wish: "Wish") -> None:
        """A key for this container wins over the same dialect's key for the pod; else two must say the same."""
        other = self.wishes.setdefault(wish.name, wish)
        if other.dialect == wish.dialect and other.own != wish.own:
            return
        if None not in (other.value, wish.value) and other.value != wish.value:
            self.complain(code(other, wish), f"{other} and {wish} disagree about {wish.name}; give one of them")

    def __contains__(self, name: str) -> bool:
        return name in self.wishes

    def value(self, name: str) -> "Any":
        return self.wishes[name].value if name in self.wishes else None

    def who_says(self, name: str) -> "Wish | None":
        """The wish that limits memory, or that asks for compute."""
        if any(getattr(gpu, name) is not None for gpu in self.value("per_gpu") or ()):
            return self.wishes["per_gpu"]
        return self.wishes.get(name)

    @property
    def share(self) -> bool:
        """Whether a part of a GPU is asked for, not the whole."""
        return self.who_says("memory") is not None or self.who_says("compute") is not None

    @property
    def shares_compute(self) -> bool:
        """Whether compute is asked for, or may be, in what could not be read."""
        return self.who_says("compute") is not None or ("per_gpu" in self and self.value("per_gpu") is None)

    def complain(self, code: str, message: str) -> None:
        self.problems.append(Problem(code, message))

    def contradict(self, first: str, second: str, why: str) -> None:
        one, two = self.wishes[first], self.wishes[second]
        self.complain(code(one, two), f"{one} and {two} contradict each other: {why}; drop or change one")


def code(one: "Wish", two: "Wish") -> str:
    """Of a contradiction, by whose words it is in."""
    return "GH-103" if one.dialect == two.dialect else "GH-104"


def asks(found: "Iterable[Wish]") -> bool:
    """Whether any of these asks for a GPU."""
    return any(wish.name in ASKING and wish.value is not False for wish in found)


def declined(given: Given) -> str | None:
    """NONE or VOID where the container asks for no GPU. It may decline what its pod asks for all containers."""
    off = next((given.wishes[n] for n in ("gpus", "devices") if given.value(n) in (NONE, VOID)), None)
    if off is None:
        return None
    for name in ASKING:
        wish = given.wishes.get(name)
        if wish and wish.value not in (NONE, VOID, False) and (wish.own or not off.own):
            given.contradict(name, off.name, "the second asks for no GPU")
    return str(off.value)


def check_count(given: Given) -> None:
    """gpus and devices name the same number of GPUs."""
    count, devices = given.value("gpus"), given.value("devices")
    if count is None or devices is None:
        return
    named = ALL if devices == ALL else len(devices)
    if count != named:
        given.contradict("gpus", "devices", f"the second names {'every GPU' if named == ALL else named}")


def exclusive(given: Given, rules: "Rules") -> bool:
    """Whether nobody else may be on the GPUs; whole GPUs follow the node's whole_gpus where nothing is said."""
    said = given.value("exclusive")
    if said is None:
        return not given.share and rules.whole_gpus == "exclusive"
    if said and given.share:
        limit = given.who_says("memory") or given.who_says("compute")
        given.contradict("exclusive", limit.name if limit else "exclusive", "an exclusive GPU has no limits")
    if not said and not given.share and rules.whole_gpus == "exclusive":
        why = "on this node a GPU without memory or compute is exclusive; ask for memory or compute"
        given.complain("GH-103", f"{given.wishes['exclusive']}: {why}")
    return bool(said)


def policy(given: Given, rules: "Rules") -> str:
    """Memory alone guarantees no compute, which is best-effort; else the container's word, else the node's."""
    said = given.value("policy")
    memory = given.who_says("memory")
    if memory is not None and not given.shares_compute:
        if said not in (None, "best-effort"):
            given.contradict("policy", memory.name, "that policy divides compute, and no compute is asked")
        return "best-effort"
    return str(said or rules.default_policy)


def compute_limit(given: Given, policy: str) -> int | None:
    """The ceiling of burst-share, not below the guarantee."""
    limit, asked = given.value("compute-limit"), given.who_says("compute")
    if not isinstance(limit, int):
        return None
    wish = given.wishes["compute-limit"]
    if not given.shares_compute:
        given.complain("GH-103", f"{wish} is a ceiling above a guarantee, and no compute is asked; add compute")
    elif policy != "burst-share":
        if "policy" not in given or given.value("policy"):
            given.complain("GH-103", f"{wish} is for the policy burst-share, here it is {policy}; drop or change one")
    elif asked is not None and limit < guarantee(given):
        given.contradict("compute-limit", asked.name, "the ceiling is below the guarantee")
    return limit


def preempt_tolerance(given: Given, rules: "Rules") -> int | None:
    """How long a lower class may hold the GPU once this container has work; only the highest class may say."""
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
    """The highest per cent that is asked of any GPU; 0 where it could not be read."""
    each = [gpu.compute for gpu in given.value("per_gpu") or ()]
    return max((n for n in (*each, given.value("compute")) if n is not None), default=0)


def capabilities(given: Given, rules: "Rules") -> tuple[str, ...]:
    """With a share only what the shim libraries govern; `all` is whatever is offered."""
    said = given.value("capabilities")
    if said is None:
        return ("compute", "utility")
    if said == ALL:
        return WITH_A_SHARE if given.share else CAPABILITIES
    past = [name for name in said if name not in WITH_A_SHARE]
    if past and given.share:
        why = f"{', '.join(past)} would reach the GPU past the limits; drop it, or ask for a whole GPU"
        given.complain("GH-106", f"{given.wishes['capabilities']}: {why}")
    return tuple(said)


def imex_channels(given: Given, rules: "Rules") -> tuple[int, ...]:
    """What comes through a channel is memory of other GPUs' that no limit counts: for whole GPUs alone."""
    said = given.value("imex-channels") or ()
    if said and given.share:
        why = "an IMEX channel would reach memory past the limits; drop it, or ask for a whole GPU"
        given.complain("GH-106", f"{given.wishes['imex-channels']}: {why}")
    return tuple(said)


# The terms of a container that have a check or a default of their own, by their field in core/terms.py.
TERMS: "dict[str, Callable[[Given, Rules], object]]" = {
    "policy": policy,
    "preempt_tolerance_us": preempt_tolerance,
    "capabilities": capabilities,
    "imex_channels": imex_channels,
}
