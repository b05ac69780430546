"""One container's request: annotations (and its environment, which only narrows) -> Request, or all problems at once."""

from oci_hook.core import collect, validate
from oci_hook.core.terms import GpuRequest, Terms
from oci_hook.core.terms import key as key_of
from oci_hook.core.value import Value
from oci_hook.core.value_parsers import ALL, VOID
from oci_hook.errors import Problem, RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from oci_hook.core.rules import Rules

MAX_PROBLEMS = 20  # as many lines as a person would read


class Request(Value):
    """Everything that one container asks for.

    gpus: one entry per GPU. It is empty, and every_gpu False, for a container that gets driver files but no GPU
    (NVIDIA_VISIBLE_DEVICES=none). every_gpu: gpus has one entry, which holds for each GPU of the node.
    exclusive: the GPUs are whole and no other container may be on them. placement: None means the node's setting.
    compute_limit: the ceiling of its compute in per cent, or None. narrow_to: the GPUs to which the container's own
    environment narrows it, or None. same_percent: the memory, which gpus has in MiB, once more in per cent of a GPU, which
    must agree with it; None: not said. required: what driver and GPU must meet, as NVIDIA_REQUIRE_X=EXPRESSION.
    """

    gpus: tuple[GpuRequest, ...]
    terms: Terms = Terms()
    every_gpu: bool = False
    compute_limit: int | None = None
    exclusive: bool = False
    placement: str | None = None
    narrow_to: tuple[str, ...] | None = None
    same_percent: int | None = None
    required: tuple[str, ...] = ()


class Named(str):
    """The name of a GPU that remembers, for messages, the key by which the user named it."""

    key = ""

    def __new__(cls, name: str, key: str) -> "Named":
        made = super().__new__(cls, name)
        made.key = key
        return made


def parse(
    annotations: dict[str, str],
    env: dict[str, str],
    container: str,
    rules: "Rules",
    mounts: "Iterable[tuple[str, str]]" = (),
    decode: "collect.Decode" = collect.no_json,
) -> Request | None:
    """The request of the container called `container` ("" where the engine names none); None when it asks for nothing.

    mounts: (destination, source) of the mounts that may ask (oci/request_mounts.py). decode: reads the JSON of the
    `request` annotation, or raises ValueError; without one that annotation is refused.
    Raises RequestError with every problem found (GH-101 to GH-106). env narrows a request and never makes one, unless
    rules.trust_env: then it counts like annotations where annotations and mounts ask for no GPU.
    """
    problems: list[Problem] = []
    found = collect.from_annotations(annotations, container, rules, problems, decode)
    found += collect.from_mounts(mounts, container, rules, problems)
    if rules.trust_env:
        asks, said = validate.asks(found), {wish.name for wish in found}
        for wish in collect.from_env(env, rules, problems if not asks else []):
            # Beside annotations that ask, the environment still says what NVIDIA's images require and use.
            beside = wish.dialect == "nvidia" and wish.name not in validate.ASKING and wish.value is not None
            if wish.name not in said and (beside or not asks):
                found.append(wish)
    given = validate.Given(found, problems)
    request = None
    if validate.asks(given.wishes.values()):
        request = build(given, collect.narrowing(env, problems), rules)
    if problems:
        more = len(problems) - MAX_PROBLEMS
        last = (Problem("GH-105", f"and {more} more problems; fix these first"),) if more > 0 else ()
        raise RequestError(*problems[:MAX_PROBLEMS], *last)
    return request


def build(given: validate.Given, narrow_to: tuple[str, ...] | None, rules: "Rules") -> Request | None:
    """The request that these wishes make; it counts only if given.problems stays empty."""
    placement = given.value("placement")
    terms = terms_of(given, rules)
    declined = validate.declined(given)
    if declined == VOID:
        return None
    if declined or narrow_to == ():
        return without_gpu(terms, placement, narrow_to)

    validate.check_count(given)
    validate.memory_request(given)
    count, devices = given.value("gpus"), given.value("devices")
    memory, request = given.value("memory"), given.value("memory-request")
    gpu = GpuRequest(None, memory, given.value("compute"), request if request != memory else None)
    if given.value("per_gpu") is not None:
        key = f"{collect.show_key(given.wishes['per_gpu'].key)}: device "
        gpus = tuple(c if c.device is None else c.replace(device=Named(c.device, key)) for c in given.value("per_gpu"))
    elif isinstance(devices, tuple):
        key = f"{collect.show_key(given.wishes['devices'].key)}="
        gpus = tuple(gpu.replace(device=Named(device, key)) for device in devices)
    else:
        gpus = (gpu,) * (count if isinstance(count, int) else 1)
    return Request(
        tuple(map(with_memory, gpus)),
        terms,
        ALL in (count, devices),
        validate.compute_limit(given, terms, rules),
        validate.exclusive(given, rules),
        placement,
        narrow_to,
        given.same_percent,
        validate.required(given),
    )


def without_gpu(terms: Terms, placement: str | None = None, narrow_to: tuple[str, ...] | None = None) -> Request:
    """The request of a container that gets driver files but no GPU."""
    return Request(
        (), terms.replace(preempt_tolerance_us=None, imex_channels=()), placement=placement, narrow_to=narrow_to
    )


def terms_of(given: validate.Given, rules: "Rules") -> Terms:
    """Each term: what its check in validate.TERMS returns, or what the container asks for if no check exists. A term
    without such a value has its default."""
    said: dict[str, Any] = {}
    for field in Terms.FIELDS:
        check = validate.TERMS.get(field)
        value = check(given, rules) if check else given.value(key_of(field))
        if value is not None:
            said[field] = value
    return Terms(**said)


def with_memory(gpu: GpuRequest) -> GpuRequest:
    """If only compute is asked for, the request asks for the same percentage of the memory, too."""
    return gpu.replace(memory=("percent", gpu.compute)) if gpu.compute and not gpu.memory else gpu
