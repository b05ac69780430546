"""One pod on one node: `allocate`, which also grants GPUs on the node, gives them to its containers in turn."""

import functools

from oci_hook.core import decision as decisions
from oci_hook.core.allocate import NOBODY, Refusal, allocate
from oci_hook.core.decision import DecidedShare, DecidedTerms, Decision
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import Inventory
from oci_hook.core.request import Request
from oci_hook.core.rules import Rules
from oci_hook.core.terms import OFFLINE, GpuRequest, Terms
from oci_hook.core.value import Value
from oci_hook.errors import Problem
from oci_hook.kube.pod.asked import INIT, SIDECAR, Asked
from oci_hook.kube.pod.peaks import Row, together

NO_LIFE = Life("")
OF_OFFLINE, OF_OTHERS = Terms(priority_class=OFFLINE), Terms()


TOO_LONG = "the decision about the pod would be too long; have fewer containers ask, or for fewer GPUs each"
MANY_SHARES = 128  # a decision with fewer is never too long
HEAD = 1024  # characters of a decision besides its shares: the pod's UID, the node's name, the signature


class Fit(Value):
    """The pod has room. shares, terms: of its decision (core/decision.py). rows: the pod's use of GPUs."""

    shares: tuple[tuple[str, tuple[DecidedShare, ...]], ...]
    terms: tuple[tuple[str, DecidedTerms], ...]
    rows: tuple[Row, ...]


class NoFit(Value):
    """The pod has no room: this container has none. notes: (GPU's UUID, reason), from `allocate`; or ()."""

    container: str
    problems: tuple[Problem, ...]
    notes: tuple[tuple[str, str], ...] = ()


def fit(asked: Asked, inventory: Inventory, grants: tuple[Grant, ...], rules: Rules) -> Fit | NoFit:
    """Gives GPUs to the containers that keep running; then to init containers, on the same GPUs if these have room."""
    parts: dict[str, tuple[str, tuple[Row, ...]]] = {}
    given: dict[str, tuple[DecidedShare, ...]] = {}

    def give(name: str, kind: str, request: Request, beside: tuple[Grant, ...]) -> NoFit | None:
        word = request.terms.apart_from
        found = allocate(request, inventory, beside, rules)
        if isinstance(found, Refusal):
            return NoFit(name, found.problems, found.notes)
        offline = request.terms.priority_class == OFFLINE
        parts[name] = (
            kind,
            tuple(Row(s.uuid, s.memory_mib, s.compute, s.whole, found.exclusive, offline, word) for s in found.shares),
        )
        given[name] = tuple(map(decided, found.shares))
        return None

    beside = grants
    for name, kind, request in asked:
        if kind == INIT:
            continue
        if problem := give(name, kind, request, beside):
            return problem
        beside = (*beside, *of_same_pod(name, parts[name][1]))
    used = tuple(dict.fromkeys(row.uuid for _, rows in parts.values() for row in rows))
    beside = grants
    for name, kind, request in asked:
        if kind == SIDECAR:
            beside = (*beside, *of_same_pod(name, parts[name][1]))
        elif kind == INIT:
            near = near_to(request, used)
            if (near is None or give(name, kind, near, beside)) and (problem := give(name, kind, request, beside)):
                return problem
    order = [parts[name] for name, _, _ in asked]
    names = sorted(given)
    terms = {name: DecidedTerms(r.terms.policy, r.terms.priority_class) for name, _, r in asked}
    found = Fit(
        tuple((name, given[name]) for name in names), tuple((name, terms[name]) for name in names), together(order)
    )
    if is_too_long(found):  # no Binding could carry it, so it must not reserve room or preempt others
        return NoFit(asked[-1][0], (Problem("GH-602", TOO_LONG),))
    return found


def is_too_long(found: Fit) -> bool:
    """True if the decision would exceed its annotation's bound."""
    if sum(len(shares) for _, shares in found.shares) < MANY_SHARES:
        return False
    return len(decisions.text(Decision("", "", 0, found.shares, found.terms))) + HEAD > decisions.MAX_TEXT


def near_to(request: Request, uuids: tuple[str, ...]) -> Request | None:
    """The request, narrowed to these GPUs; None if it already names GPUs."""
    if not uuids or request.every_gpu or request.narrow_to is not None or any(g.device for g in request.gpus):
        return None
    return request.replace(narrow_to=uuids)


def pinned(asked: Asked, shares: tuple[tuple[str, tuple[DecidedShare, ...]], ...]) -> Asked | None:
    """These requests narrowed to the chosen GPUs; None if the numbers of GPUs differ."""
    chosen = dict(shares)
    found = []
    for name, kind, request in asked:
        uuids = [share.uuid for share in chosen.get(name, ())]
        wishes = [request.gpus[0]] * len(uuids) if request.every_gpu and request.gpus else list(request.gpus)
        if len(wishes) != len(uuids):
            return None
        gpus = tuple(GpuRequest(u, w.memory, w.compute) for w, u in zip(wishes, uuids, strict=True))
        found.append((name, kind, request.replace(gpus=gpus, every_gpu=False)))
    return tuple(found)


def decided(share: Share) -> DecidedShare:
    if share.whole:
        return DecidedShare(share.uuid, 0)
    return DecidedShare(share.uuid, share.memory_mib, share.compute, share.compute_limit)


def of_same_pod(name: str, rows: tuple[Row, ...]) -> tuple[Grant, ...]:
    """The grants of one of the pod's containers, for its others, which need not be apart from it."""
    return as_grants(name, tuple(row._replace(apart="") if row.apart else row for row in rows))


@functools.lru_cache(2048)  # one pod's answer looks at a node several times
def as_grants(key: str, rows: tuple[Row, ...], who: Identity = NOBODY) -> tuple[Grant, ...]:
    """The rows as grants for `allocate`: one for each kind (alone or not, offline or not, the word of apart-from)."""
    kinds: dict[tuple[bool, bool, str], list[Share]] = {}
    for r in rows:
        share = Share(r.uuid, r.memory_mib, r.compute, 100, r.whole, int(r.whole))  # `alone` says what no slot would
        kinds.setdefault((r.alone, r.offline, r.apart), []).append(share)
    return tuple(
        Grant(key, who, NO_LIFE, tuple(shares), terms.replace(apart_from=word) if word else terms, alone)
        for (alone, offline, word), shares in kinds.items()
        for terms in (OF_OFFLINE if offline else OF_OTHERS,)
    )
