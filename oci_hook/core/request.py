"""What one container asks for: annotations (and env, which only narrows) -> Request, with all problems at once."""

from oci_hook.core.value import Value

POLICIES = ("best-effort", "fixed-share", "burst-share")
CLASSES = ("online", "default", "offline")
PLACEMENTS = ("binpack", "spread")
CAPABILITIES = ("compute", "utility", "video", "graphics", "display", "ngx", "compat32")


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
