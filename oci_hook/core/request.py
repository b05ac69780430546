"""What one container asks for: annotations (and env, which only narrows) -> Request, with all problems at once."""

from oci_hook.core import collect
from oci_hook.core.value import Value
from oci_hook.core.wishes import ALL, NONE, VOID, WITH_A_SHARE
from oci_hook.core.wishes import CAPABILITIES as CAPABILITIES
from oci_hook.core.wishes import CLASSES as CLASSES
from oci_hook.core.wishes import PLACEMENTS as PLACEMENTS
from oci_hook.core.wishes import POLICIES as POLICIES
from oci_hook.errors import Problem, RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oci_hook.core.collect import Wish
    from oci_hook.core.rules import Rules

# Wishes that ask for a card; the others only say how.
ASKING = ("memory", "compute", "gpus", "devices", "exclusive")
MAX_PROBLEMS = 20  # lines a person would read


class CardRequest(Value):
    """One card's worth of wish.

    device: None (any card), an index ("0") or a UUID ("GPU-...") of exactly this card.
    memory_mib / memory_percent: at most one is set; MiB, or 1..100 per cent of the card that is chosen.
    compute: guaranteed per cent 1..100, or None (no guarantee).
    All of memory and compute None: the whole card.
    """

    __slots__ = ("device", "memory_mib", "memory_percent", "compute")

    def __init__(
        self,
        device: str | None = None,
        memory_mib: int | None = None,
        memory_percent: int | None = None,
        compute: int | None = None,
    ) -> None:
        self.device = device
        self.memory_mib = memory_mib
        self.memory_percent = memory_percent
        self.compute = compute

    @property
    def whole(self) -> bool:
        return self.memory_mib is None and self.memory_percent is None and self.compute is None


class Request(Value):
    """Everything one container asks for.

    cards: one entry per card; empty with every_card False: driver files but no card (NVIDIA_VISIBLE_DEVICES=none).
    every_card: cards has one entry, meant for each card of the node.
    exclusive: the cards are whole and nobody else may be on them.
    placement: None means the node's setting. narrow_to: cards that the container's own env narrows it to, or None.
    """

    __slots__ = (
        "cards",
        "every_card",
        "policy",
        "compute_limit",
        "priority_class",
        "exclusive",
        "placement",
        "capabilities",
        "narrow_to",
    )

    def __init__(
        self,
        cards: tuple[CardRequest, ...],
        every_card: bool = False,
        policy: str = "burst-share",
        compute_limit: int | None = None,
        priority_class: str = "default",
        exclusive: bool = False,
        placement: str | None = None,
        capabilities: tuple[str, ...] = ("compute", "utility"),
        narrow_to: tuple[str, ...] | None = None,
    ) -> None:
        self.cards = cards
        self.every_card = every_card
        self.policy = policy
        self.compute_limit = compute_limit
        self.priority_class = priority_class
        self.exclusive = exclusive
        self.placement = placement
        self.capabilities = capabilities
        self.narrow_to = narrow_to


def parse(annotations: dict[str, str], env: dict[str, str], container: str, rules: "Rules") -> Request | None:
    """The request of the container called `container` ("" where the engine names none); None when it asks for nothing.

    Raises RequestError with every problem found (GH-101 to GH-106). env narrows a request and never makes one, unless
    rules.trust_env: then it counts like annotations where the annotations ask for no card.
    """
    problems: list[Problem] = []
    found = collect.from_annotations(annotations, container, rules, problems)
    if rules.trust_env and not asks(found):
        said = {wish.name for wish in found}
        found += [wish for wish in collect.from_env(env, rules, problems) if wish.name not in said]
    given = agree(found, problems)
    request = None
    if asks(given.values()):
        narrow_to = collect.narrowing(env, problems)
        request = build(given, narrow_to, rules, problems)
    if problems:
        more = len(problems) - MAX_PROBLEMS
        last = (Problem("GH-105", f"and {more} more problems; mend these first"),) if more > 0 else ()
        raise RequestError(*problems[:MAX_PROBLEMS], *last)
    return request


def asks(found: "Any") -> bool:
    return any(wish.name in ASKING and wish.value is not False for wish in found)


def agree(found: "list[Wish]", problems: list[Problem]) -> "dict[str, Wish]":
    """One wish per name: a key for this container wins over the pod's; two that say different things are a problem."""
    given: dict[str, Wish] = {}
    for wish in sorted(found, key=lambda wish: not wish.own):
        other = given.get(wish.name)
        if other is None:
            given[wish.name] = wish
        elif other.dialect == wish.dialect and other.own and not wish.own:
            continue
        elif None not in (other.value, wish.value) and other.value != wish.value:
            code = "GH-103" if other.dialect == wish.dialect else "GH-104"
            problems.append(Problem(code, f"{other} and {wish} disagree about {wish.name}; give one of them"))
    return given


def build(
    given: "dict[str, Wish]", narrow_to: tuple[str, ...] | None, rules: "Rules", problems: list[Problem]
) -> Request | None:
    """Judge the wishes together. What comes back counts only if `problems` stayed empty."""

    def contradict(first: str, second: str, advice: str) -> None:
        problems.append(Problem("GH-103", f"{given[first]} and {given[second]} contradict each other: {advice}"))

    def value(name: str) -> "Any":
        return given[name].value if name in given else None

    off = next((w for n in ("gpus", "devices") if (w := given.get(n)) and w.value in (NONE, VOID)), None)
    if off:
        for name in ASKING:
            wish = given.get(name)
            # What the pod asks for all its containers, one of them may decline.
            if wish and wish.value not in (NONE, VOID, False) and (wish.own or not off.own):
                contradict(name, off.name, "the second asks for no card")
        if off.value == VOID:
            return None
    count, devices = value("gpus"), value("devices")
    if isinstance(devices, tuple) and count is not None and count != len(devices) and not off:
        contradict("gpus", "devices", f"the second names {len(devices)}")
    if devices == ALL and count not in (None, ALL) and not off:
        contradict("gpus", "devices", "the second names every card")

    share = "memory" in given or "compute" in given
    exclusive = value("exclusive")
    if exclusive and share:
        contradict("exclusive", "memory" if "memory" in given else "compute", "an exclusive card has no limits")
    if exclusive is None:
        exclusive = not share and rules.whole_cards == "exclusive"
    elif exclusive is False and not share and not off and rules.whole_cards == "exclusive":
        message = f"{given['exclusive']}: a card without memory or compute is exclusive on this node; ask for a share"
        problems.append(Problem("GH-103", message))

    memory, compute = value("memory"), value("compute")
    if memory is None and "memory" not in given and compute is not None:
        memory = ("percent", compute)
    policy = value("policy") or rules.default_policy
    if share and "compute" not in given:
        if value("policy") not in (None, "best-effort"):
            contradict("policy", "memory", "that policy divides compute; add compute")
        policy = "best-effort"

    limit = value("compute-limit")
    if limit is not None and not off:
        wish = given["compute-limit"]
        if policy != "burst-share" and ("policy" not in given or value("policy")):
            message = f"{wish} needs compute with the policy burst-share; here the policy is {policy}"
            problems.append(Problem("GH-103", message))
        elif "compute" not in given:
            problems.append(Problem("GH-103", f"{wish} is a ceiling above a guarantee; add compute"))
        elif compute is not None and limit < compute:
            contradict("compute-limit", "compute", "the ceiling is below the guarantee")

    capabilities = value("capabilities") or ("compute", "utility")
    if capabilities == ALL:
        capabilities = WITH_A_SHARE if share else CAPABILITIES
    elif share:
        for name in capabilities:
            if name not in WITH_A_SHARE:
                message = (
                    f"{given['capabilities']}: {name} reaches the card past the limits, so it is not offered with a "
                    "share; drop it, or ask for a whole card"
                )
                problems.append(Problem("GH-106", message))

    common = {
        "policy": policy,
        "priority_class": value("class") or "default",
        "placement": value("placement"),
        "capabilities": capabilities,
        "narrow_to": narrow_to,
    }
    if off or narrow_to == ():
        return Request((), **common)
    percent = {"memory_mib": None, "memory_percent": None}
    if memory is not None:
        percent["memory_" + memory[0]] = memory[1]
    wanted = devices if isinstance(devices, tuple) else (None,) * (count if isinstance(count, int) else 1)
    return Request(
        tuple(CardRequest(device, compute=compute, **percent) for device in wanted),
        every_card=ALL in (count, devices),
        compute_limit=limit,
        exclusive=exclusive,
        **common,
    )
