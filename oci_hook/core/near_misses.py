"""Words that ask for a GPU and that this node does not understand, so that nobody waits for a GPU that never comes.

Each miss is sure or not. Sure: somebody asked us and will not get it, as with `gpuhook.io/memory`; where the runtime was
chosen by name, that is refused (the setting `near_misses`). Not sure: the word may be another program's, or what is
asked is understood without it; that is a warning.
"""

from oci_hook.core import dialects, value_parsers
from oci_hook.core.collect import (
    ASKING_VARIABLES,
    CONTAINERS,
    VISIBLE,
    is_name,
    show_key,
    split,
    suspects,
    unread_variables,
)
from oci_hook.core.layout import NO_REQUEST, PREFIX_KEY, PRIVATE, REQUEST_DIR
from oci_hook.core.nearest import distance, fold, nearest
from oci_hook.core.units import show
from oci_hook.core.validate import ASKING
from oci_hook.core.value import Value
from oci_hook.errors import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_hook.core.rules import Rules

CODE = "GH-108"
OURS = fold(PREFIX_KEY[:-1])  # "gpuhookio"
ASKING_KEYS = ("memory", "compute", "gpus", "devices", "exclusive", "request")
# Beginnings of words of sharing systems that no dialect reads, and of those that ask for GPUs of other makers.
OTHER_SYSTEMS = ("volcano.sh/vgpu", "elasticgpu.io/", "aliyun.com/gpu", "run.ai/gpu", "project-hami.io/", "gpushare/")
OTHER_MAKERS = ("amd.com/", "gpu.intel.com/", "huawei.com/", "cambricon.com/", "metax-tech.com/", "mthreads.com/")
OTHER_OWNERS = (
    "cdi.k8s.io/",
    "io.kubernetes.",
    "io.podman.",
    "io.container",
    "org.opencontainers.",
    "kubectl.kubernetes.io/",
)
# Words that say how a GPU is used, and that people write without asking for a share.
VAGUE = (*dialects.HOW_ALONE, "tke.cloud.tencent.com/app-class")
ONLY_HOW = f"says how a share is held, and nothing asks for one; add {PREFIX_KEY}memory or {PREFIX_KEY}compute"
# Parts of the keys that schedulers write into a Pod for themselves; nobody asks with them.
OF_MACHINES = ("assigned", "allocate", "predicate", "bind", "register", "handshake", "node")


class Miss(Value):
    """One word that was not understood. sure: somebody asked gpu-hook with it, and does not get what was asked."""

    problem: Problem
    sure: bool


def in_annotations(
    annotations: dict[str, str], container: str, rules: "Rules", asks: bool, by_mount: bool = False
) -> list[Miss]:
    """The misses in the annotations of the container called `container` ("" without a name).

    asks: whether it asks for a GPU in words that are understood. by_mount: whether mounts say anything of ours.
    """
    keys = [
        key for key in suspects(annotations, container, rules, asks) if key.startswith(PREFIX_KEY) or is_suspect(key)
    ]
    if not keys:
        return []
    found = []
    addressed = CONTAINERS not in annotations or container in (
        item.strip(" ") for item in str(annotations[CONTAINERS]).split(",")
    )
    for key in keys:
        text = str(annotations[key])
        if key.startswith(PREFIX_KEY):
            miss = of_suffix(key, key, text, container, asks)
        elif dialects.is_known(rules.dialects, key):
            continue
        else:
            miss = of_key(key, text, container, rules, asks) if addressed else None
        if miss:
            found.append(miss)
    if not asks and addressed and not found and not by_mount and (how := only_how(annotations, container, rules)):
        found.append(how)
    return found


def is_suspect(key: str) -> bool:
    """True if a key may speak of GPUs. A container of other programs has none, and is done with here."""
    low = key.lower()
    if key.startswith(OTHER_OWNERS) or low.startswith(OTHER_MAKERS):
        return False
    if "gpu" in low or "cuda" in low or "nvidia" in low or dialects.is_known(dialects.NAMES, key):
        return True
    return "hook.io/" in low and meant_as_ours(key) is not None


def of_key(key: str, text: str, container: str, rules: "Rules", asks: bool) -> Miss | None:
    """A key without our prefix that no dialect in use knows."""
    said = f"{show_key(key)}={show(text)}"
    if (word := meant_as_ours(key)) is not None:
        name, _, suffix = word.partition(".")
        if suffix and suffix != container and container and is_name(suffix):
            return of_suffix(f"{PREFIX_KEY}{nearest_key(name)}.{suffix}", key, text, container, asks)
        guess = f"did you mean {PREFIX_KEY}{nearest_key(name)}{'.' + suffix if suffix and container else ''}?"
        return Miss(Problem(CODE, f"{said} is not a key of gpu-hook; {guess}"), True)
    for name in dialects.NAMES:
        if known := dialects.known_key(name, key):
            ours = dialects.table(name).KEYS[known][0].removesuffix("-request")
            why = f"a word of {name}, which this node does not read; add {name} to `dialects` in settings.yaml"
            if key.startswith(VAGUE):
                return None if asks else Miss(Problem(CODE, f"{said} is {why}"), False)
            return Miss(Problem(CODE, f"{said} is {why}, or write {PREFIX_KEY}{ours}"), not asks)
    if key.startswith(VAGUE):
        return None if asks else Miss(Problem(CODE, f"{said} {ONLY_HOW}"), False)
    if any(part in key for part in OF_MACHINES):
        why = "is what a scheduler wrote, and the node sees no resources; rewrite the manifest (`gpu-hook translate`)"
        return None if asks else Miss(Problem(CODE, f"{said} {why}"), False)
    near = nearest_of_others(key)
    if near or key.startswith(tuple(begin for begins in dialects.BEGIN.values() for begin in begins)):
        near = near or f"{PREFIX_KEY}{nearest_key(key.rpartition('/')[2])}"
        return Miss(Problem(CODE, f"{said} is not a word that gpu-hook knows; did you mean {near}?"), not asks)
    if "/" in key and not key.startswith(OTHER_SYSTEMS):
        why = "speaks of a GPU, and gpu-hook does not know the word"
        return None if asks else Miss(Problem(CODE, f"{said} {why}; {HOW_TO_ASK}"), False)
    if not asks:
        guess = f"did you mean {PREFIX_KEY}{nearest_key(key.rpartition('/')[2])}?"
        return Miss(Problem(CODE, f"{said} is not a word that gpu-hook knows; {guess}"), True)
    return None


HOW_TO_ASK = f"a share is asked for with {PREFIX_KEY}memory and {PREFIX_KEY}compute"


def nearest_of_others(key: str) -> str:
    """The word of a dialect, on or off, that a key of the same domain means; "" for none."""
    domain, slash, _ = key.rpartition("/")
    if not slash and not key.upper().startswith(("T9K", "NVIDIA", "CUDA")):
        return ""
    words = [word for name in dialects.NAMES for word in dialects.table(name).KEYS]
    if slash and (same := in_near_domain(key, words)):
        return same
    words = [word for word in words if word.rpartition("/")[:2] == (domain, slash)]
    begun = max((word for word in words if key.startswith(word)), key=len, default="")
    names: dict[str, str] = {word.rpartition("/")[2]: word for word in words}
    close = names.get(nearest(key.rpartition("/")[2], names), "")
    if begun and (not close or distance(fold(key), fold(close)) > 2):
        return begun
    return close


def in_near_domain(key: str, words: "Iterable[str]") -> str:
    """The one of these words that differs by a slip in its domain; "" for none. gpu-manager's page has vidia.com/vcuda-memory."""
    domain, _, name = key.partition("/")
    same = [word for word in words if name and word.endswith(f"/{name}")]
    return next((word for word in same if 0 < distance(domain, word.partition("/")[0]) <= 2), "")


def meant_as_ours(key: str) -> str | None:
    """The part behind a prefix that is nearly ours, None for another key. `gpuhook.io/memory`: "memory"."""
    domain, slash, rest = key.partition("/")
    near = fold(domain)
    known = (*dialects.table(dialects.NATIVE).KEYS, "containers", "request")
    if near == OURS[3:] and rest.partition(".")[0] in known:
        return rest  # hook.io is somebody's
    if slash and (
        near in (OURS, OURS[:-2], "io" + OURS[:-2]) or near.startswith(OURS[:-2]) or distance(near, OURS) <= 2
    ):
        return rest
    folded = fold(key)
    for start in (OURS, "io" + OURS[:-2], OURS[:-2]):
        if folded.startswith(start) and not slash:
            return folded[len(start) :]
    return None


def nearest_key(word: str) -> str:
    """Our key that is nearest to a word of another system, with a guess for those that are spelt in their own way."""
    word = fold(word)
    known = (*dialects.table(dialects.NATIVE).KEYS, "containers", "request")
    return nearest(word, known) or other_word(word) or ("gpus" if word.startswith("gpu") else "memory")


def other_word(word: str) -> str:
    """Our key for what other systems call differently, such as cores or vram; "" if none of their words is in it."""
    parts = {
        "mem": "memory",
        "ram": "memory",
        "core": "compute",
        "percent": "memory",
        "device": "devices",
        "uuid": "devices",
        "num": "gpus",
    }
    return next((key for part, key in parts.items() if part in word), "")


def of_suffix(meant: str, key: str, text: str, container: str, asks: bool) -> Miss | None:
    """A key for a container whose name is nearly this one's. The Pod may well have a container of that name, so only a
    slip of the keys inside the name is sure: `trianer`, not `leader` beside `reader`, nor `app` beside `app-1`.

    meant: the key with our prefix."""
    suffix = split(meant)[1]
    if not suffix or not container or suffix == container:
        return None
    slip = is_slip(suffix, container)
    if slip is None and (asks or not is_numbered(*sorted((suffix, container), key=len))):
        return None
    guess = f"did you mean {meant.removesuffix(suffix)}{container}?"
    why = f"is for container {show(suffix)}, and this one is {show(container)}; {guess}"
    return Miss(Problem(CODE, f"{show_key(key)}={show(text)} {why}"), bool(slip) and not asks)


def is_slip(suffix: str, container: str) -> bool | None:
    """True if one name is the other with a slip of the keys; None: they are simply different."""
    if len(container) < 4 or distance(suffix, container) > 1:
        return None
    if any(a != b and (a.isdigit() or b.isdigit()) for a, b in zip(suffix, container, strict=False)):
        return None
    return sorted(suffix) == sorted(container) or (
        len(suffix) != len(container) and suffix[0] == container[0] and suffix[-1] == container[-1]
    )


def is_numbered(short: str, long: str) -> bool:
    """True if one name is the other with a number, as docker compose and replicas have them: app, app-1."""
    rest = long.removeprefix(short)
    return bool(short) and long.startswith(short) and rest[:1] in ("-", "_") and rest[1:].isdigit()


def only_how(annotations: dict[str, str], container: str, rules: "Rules") -> Miss | None:
    """Keys that say how a share is held, where none asks for one, for whatever container of the Pod."""
    native = dialects.table(dialects.NATIVE).KEYS
    hows = []
    for key in annotations:
        if key in NO_REQUEST:
            continue
        if not key.startswith(PREFIX_KEY):
            if dialects.is_known(rules.dialects, key):
                if dialects.wish(key) in ASKING:
                    return None
                hows.append(key)
            continue
        name, suffix = split(key)
        if name in ASKING_KEYS:
            return None
        if suffix in (None, container) and (name == "containers" or (name in native and native[name][0] not in ASKING)):
            hows.append(key)
    if not hows:
        return None
    key = min(hows, key=lambda how: (how.startswith(VAGUE), how == CONTAINERS))
    return Miss(
        Problem(CODE, f"{show_key(key)}={show(annotations[key])} {ONLY_HOW}"),
        not key.startswith(VAGUE),
    )


def in_mounts(mounts: "Iterable[tuple[str, str]]") -> list[Miss]:
    """Mounts of /dev/null that look like a request and are none. mounts: (plain destination, source)."""
    found = []
    for destination, source in mounts:
        folder, _, entry = destination.rpartition("/")
        if source != "/dev/null" or folder == REQUEST_DIR or destination == REQUEST_DIR:
            continue
        if "gpuhook" in fold(folder) or folder == PRIVATE:
            name = nearest_key(entry.partition("=")[0])
            guess = f"did you mean {REQUEST_DIR}/{name}={entry.partition('=')[2] or '…'}?"
            found.append(Miss(Problem(CODE, f"{show_key('mount ' + destination)} asks for nothing; {guess}"), True))
    return found


def in_labels(labels: dict[str, str], asks: bool) -> list[Miss]:
    """The near misses among labels. Engines never hand labels to the runtime, so these ask for nothing."""
    for key, text in labels.items():
        if key.startswith(PREFIX_KEY) or meant_as_ours(key) is not None:
            name = nearest_key(meant_as_ours(key) or split(key)[0])
            value = text if len(text) < 20 else "…"
            why = "is a label, and labels ask for nothing; use --annotation (docker 24 or newer), or"
            mount = f"-v /dev/null:{REQUEST_DIR}/{name}={value}"
            return [Miss(Problem(CODE, f"{show_key(key)}={show(text)} {why} {mount}"), not asks)]
    return []


def in_environment(env: dict[str, str], rules: "Rules", asks: bool, by_hand: bool = False) -> list[Miss]:
    """Variables that would ask if they were spelt rightly, or if the node trusted the environment. An image can bring the
    latter, so none of them is sure.

    by_hand: a person asks what would happen; then NVIDIA_VISIBLE_DEVICES, which every CUDA image has, is worth a word.
    """
    if rules.trust_env:
        return [
            of_variable(name, env[name], asks)
            for name in unread_variables(env, rules, asks)
            if not is_answer(name, env)
        ]
    if asks:
        return []
    native = dialects.table(dialects.NATIVE).ENV
    names = [
        name for name in env if name.startswith(ASKING_VARIABLES[1:]) or name in native and name.startswith("GPU_HOOK_")
    ]
    if by_hand and env.get(VISIBLE) not in (None, "", value_parsers.VOID, value_parsers.NONE):
        names.append(VISIBLE)
    if not names:
        return []
    key = "devices" if names[0] == VISIBLE else native.get(names[0], "memory")
    why = f"asks for nothing, since an image can set it; use the annotation {PREFIX_KEY}{key}"
    why += f" (docker before 24: -v /dev/null:{REQUEST_DIR}/{key}=…), or `trust_env`"
    return [Miss(Problem(CODE, f"env {show_key(names[0])}={show(env[names[0]])} {why}"), False)]


def is_answer(name: str, env: dict[str, str]) -> bool:
    """True if a variable of ours is no miss where nothing is asked for, since it asks itself (gpus=0), or beside one that does,
    or NVIDIA_VISIBLE_DEVICES wants no GPU."""
    native = dialects.table(dialects.NATIVE)
    asking = [variable for variable, key in native.ENV.items() if native.KEYS[key][0] in ASKING]
    declined = env.get(VISIBLE) in (value_parsers.VOID, value_parsers.NONE)
    return name in native.ENV and (declined or any(variable in env for variable in asking))


def of_variable(name: str, text: str, asks: bool) -> Miss:
    """A variable that a node which trusts the environment does not read, or that only says how."""
    said = f"env {show_key(name)}={show(text)}"
    native = dialects.table(dialects.NATIVE).ENV
    if name in native:
        why = "says how a share is held, and nothing asks for one; add GPU_HOOK_MEMORY or GPU_HOOK_COMPUTE"
        return Miss(Problem(CODE, f"{said} {why}"), not asks)
    for dialect in dialects.NAMES:
        if name in dialects.table(dialect).ENV:
            why = f"is a word of {dialect}, which this node does not read; add {dialect} to `dialects` in settings.yaml"
            return Miss(Problem(CODE, f"{said} {why}"), False)
    ours = fold(name).startswith("gpuhook")
    near = nearest(name, native if ours else (word for other in dialects.NAMES for word in dialects.table(other).ENV))
    guess = f"; did you mean {near}?" if near else "; a share is asked for with GPU_HOOK_MEMORY and GPU_HOOK_COMPUTE"
    return Miss(Problem(CODE, f"{said} is not a variable that gpu-hook knows{guess}"), bool(ours and near and not asks))
