"""What one container asks for: annotations (and env, which only narrows) -> Request, with all problems at once."""

from oci_hook.core import collect, validate
from oci_hook.core.value import Value
from oci_hook.core.value_parsers import ALL, VOID
from oci_hook.core.value_parsers import CAPABILITIES as CAPABILITIES
from oci_hook.core.value_parsers import CLASSES as CLASSES
from oci_hook.core.value_parsers import PLACEMENTS as PLACEMENTS
from oci_hook.core.value_parsers import POLICIES as POLICIES
from oci_hook.errors import Problem, RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_hook.core.rules import Rules

MAX_PROBLEMS = 20  # lines that a person would read


class GpuRequest(Value):
    """One GPU's worth of wish.

    device: None (any GPU), an index ("0") or a UUID ("GPU-...") of exactly this GPU.
    memory_mib / memory_percent: at most one is set; MiB, or 1..100 per cent of the GPU that is chosen.
    compute: guaranteed per cent 1..100, or None (no guarantee).
    All of memory and compute None: the whole GPU.
    """

    device: str | None = None
    memory_mib: int | None = None
    memory_percent: int | None = None
    compute: int | None = None

    @property
    def whole(self) -> bool:
        return self.memory_mib is None and self.memory_percent is None and self.compute is None


class Request(Value):
    """Everything one container asks for.

    GPUs: one entry per GPU; empty with every_gpu False: driver files but no GPU (NVIDIA_VISIBLE_DEVICES=none).
    every_gpu: GPUs has one entry, meant for each GPU of the node.
    exclusive: the GPUs are whole and nobody else may be on them.
    placement: None means the node's setting. narrow_to: GPUs that the container's own env narrows it to, or None.
    preempt_tolerance: microseconds that a lower class may hold the GPU once this container has work, or None.
    imex_channels: their numbers, with whole GPUs alone.
    """

    gpus: tuple[GpuRequest, ...]
    every_gpu: bool = False
    policy: str = "burst-share"
    compute_limit: int | None = None
    priority_class: str = "default"
    exclusive: bool = False
    placement: str | None = None
    capabilities: tuple[str, ...] = ("compute", "utility")
    narrow_to: tuple[str, ...] | None = None
    preempt_tolerance: int | None = None
    imex_channels: tuple[int, ...] = ()


def parse(
    annotations: dict[str, str],
    env: dict[str, str],
    container: str,
    rules: "Rules",
    mounts: "Iterable[tuple[str, str]]" = (),
    decode: "collect.Decode" = collect.no_json,
) -> Request | None:
    """The request of the container called `container` ("" where the engine names none); None when it asks for nothing.

    mounts: (destination, source) of those that may ask (oci/mount_requests.py). decode: reads the JSON of the `request`
    annotation, or raises ValueError; without one that annotation is refused.
    Raises RequestError with every problem found (GH-101 to GH-106). env narrows a request and never makes one, unless
    rules.trust_env: then it counts like annotations where annotations and mounts ask for no GPU.
    """
    problems: list[Problem] = []
    found = collect.from_annotations(annotations, container, rules, problems, decode)
    found += collect.from_mounts(mounts, container, rules, problems)
    if rules.trust_env and not validate.asks(found):
        said = {wish.name for wish in found}
        found += [wish for wish in collect.from_env(env, rules, problems) if wish.name not in said]
    given = validate.Given(found, problems)
    request = None
    if validate.asks(given.wishes.values()):
        request = build(given, collect.narrowing(env, problems), rules)
    if problems:
        more = len(problems) - MAX_PROBLEMS
        last = (Problem("GH-105", f"and {more} more problems; fix these first"),) if more > 0 else ()
        raise RequestError(*problems[:MAX_PROBLEMS], *last)
    return request


def wanted(device: str | None, memory: tuple[str, int] | None, compute: int | None) -> GpuRequest:
    """One GPU. Compute alone means as much of the memory."""
    kind, amount = memory or ("percent", compute)
    return GpuRequest(device, amount if kind == "mib" else None, amount if kind == "percent" else None, compute)


def build(given: validate.Given, narrow_to: tuple[str, ...] | None, rules: "Rules") -> Request | None:
    """The request that these wishes make; it counts only if given.problems stays empty."""
    policy = validate.policy(given, rules)
    priority_class = given.value("class") or "default"
    placement = given.value("placement")
    capabilities = validate.capabilities(given)
    declined = validate.declined(given)
    if declined == VOID:
        return None
    tolerance = validate.tolerance(given)
    channels = validate.imex_channels(given)
    if declined or narrow_to == ():
        return Request((), False, policy, None, priority_class, False, placement, capabilities, narrow_to)

    validate.check_count(given)
    count, devices = given.value("gpus"), given.value("devices")
    gpu = wanted(None, given.value("memory"), given.value("compute"))
    if given.value("per_gpu") is not None:
        gpus = tuple(wanted(*entry) for entry in given.value("per_gpu"))
    elif isinstance(devices, tuple):
        gpus = tuple(gpu.replace(device=device) for device in devices)
    else:
        gpus = (gpu,) * (count if isinstance(count, int) else 1)
    return Request(
        gpus,
        ALL in (count, devices),
        policy,
        validate.compute_limit(given, policy),
        priority_class,
        validate.exclusive(given, rules),
        placement,
        capabilities,
        narrow_to,
        tolerance,
        channels,
    )
