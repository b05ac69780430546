"""Reads what annotations, mounts and environment of one container ask for, each by itself. core/validate.py judges them
together."""

from oci_hook.core import dialects, value_parsers
from oci_hook.core.layout import ENV_SET, NO_REQUEST, PREFIX_KEY, REQUEST_DIR
from oci_hook.core.units import names, show
from oci_hook.core.value import Value
from oci_hook.errors import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from oci_hook.core.dialects import Row
    from oci_hook.core.rules import Rules

    Decode = Callable[[str], object]  # JSON text -> plain data; ValueError: it is none

MAX_OURS = 64 << 10
MAX_ALL = 1 << 20
MAX_NAME = 253
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
KEY_CHARACTERS = NAME_CHARACTERS | frozenset("/ ")
CONTROL_CHARACTERS = frozenset(map(chr, (*range(0x20), *range(0x7F, 0xA0))))
CONTAINERS = PREFIX_KEY + "containers"
REQUEST = PREFIX_KEY + "request"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
ASKING_VARIABLES = ("GPU_HOOK_", "T9K_GPU_", "NVIDIA_GPU_MEMORY_")  # that people set; every CUDA image has VISIBLE
# Beginnings of variables that may be a misspelt one of those; CUDA images have none of them but VISIBLE.
NEAR_VARIABLES = ("GPU_HOOK", "GPUHOOK", "T9K_GPU", "NVIDIA_VISIBLE_", "NVIDIA_GPU_MEM")
INJECTED = (
    "GPU_HOOK_MEMORY_MIB"  # nobody asks with it: it is among what a container with a share finds, and its copies have
)


class Wish(Value):
    """One thing that is asked for. name: of the wish, the same in all dialects. key: the annotation, mount or variable, as
    the user wrote it. value: the parsed text; None: it could not be parsed, and that is among the problems already.
    own: it names this container, not all containers of the pod. dialect: the name of the table that has the key."""

    name: str
    key: str
    text: str
    value: object
    own: bool
    dialect: str

    def __str__(self) -> str:
        return f"{show_key(self.key)}={show(self.text)}"


def no_json(text: str) -> object:
    raise ValueError("cannot be read here")


def from_annotations(
    annotations: dict[str, str], container: str, rules: "Rules", problems: list[Problem], decode: "Decode"
) -> list[Wish]:
    """The wishes that concern the container called `container` ("" where the engine names none)."""
    tables = [(name, dialects.rows(name, rules, annotations)) for name in dialects.spoken(rules.dialects, annotations)]
    foreign = [(name, rows, key) for name, rows in tables for key in rows if key in annotations]
    ours = [key for key in annotations if key.startswith(PREFIX_KEY) and key not in NO_REQUEST]
    if not ours and not foreign:
        return []
    if too_large(annotations, [*ours, *(key for _, _, key in foreign)], problems):
        return []
    container = container or name_by_podman(ours)
    addressed = is_addressed(annotations, container, problems)
    found: list[Wish] = []
    native = dialects.table(dialects.NATIVE)
    for key in ours:
        if key == CONTAINERS:
            continue
        name, suffix = split(key)
        if name == "request":
            read_request(key, annotations[key], container, addressed, decode, found, problems)
        elif name not in native.KEYS:
            problems.append(unknown(key, native))
        elif suffix is None:
            if addressed:
                read(native.KEYS[name], key, annotations[key], False, dialects.NATIVE, found, problems)
        elif is_suffix(key, suffix, container, problems) and suffix == container:
            read(native.KEYS[name], key, annotations[key], True, dialects.NATIVE, found, problems)
    if addressed and "nvidia" in (name for name, _ in tables):
        requirements(
            {key: text for key, text in annotations.items() if key.startswith("NVIDIA_") and isinstance(text, str)},
            "",
            dialects.table("nvidia"),
            found,
            problems,
        )
    for dialect, rows, key in foreign:
        whom = dialects.whom(dialect, key, annotations)
        if whom and not container:
            problems.append(nameless(key))
        elif whom == container if whom else addressed:
            read(rows[key], key, annotations[key], bool(whom), dialect, found, problems)
    return found


def read_request(
    key: str,
    text: object,
    container: str,
    addressed: bool,
    decode: "Decode",
    found: list[Wish],
    problems: list[Problem],
) -> None:
    """Reads the annotation `request`; adds nothing if it is about other containers only."""
    from oci_hook.core import per_gpu_request  # imported here because few containers need it

    suffix = split(key)[1]
    if suffix is not None and not (is_suffix(key, suffix, container, problems) and suffix == container):
        return
    if isinstance(text, str):
        text = text.replace("\n", " ").replace("\t", " ")  # people write JSON in several lines
    seen = len(problems)
    plain: list[Wish] = []
    read(("per_gpu", decode, {}), key, text, suffix is not None, dialects.NATIVE, plain, problems)
    if not plain:  # the JSON word null
        problems.append(Problem("GH-101", f"{show_key(key)}={show(text)} is no list of GPUs"))
        return
    wish = plain[0]
    if len(problems) > seen:
        found.append(wish)
        return
    gpus = wish.value
    if isinstance(gpus, dict) and suffix is None:
        for name in gpus:
            if not is_name(name):
                problems.append(Problem("GH-102", f"{key}: {show(name)} is not a container name"))
        if gpus and not container:
            problems.append(nameless(key))
        if container not in gpus:
            return
        wish = wish.replace(own=True)
        gpus = gpus[container]
    elif not addressed and suffix is None:
        return
    try:
        found.append(wish.replace(value=per_gpu_request.gpus(gpus)))
    except ValueError as e:
        problems.append(Problem("GH-101", f"{show_key(key)}={show(text)} {e}"))
        found.append(wish.replace(value=None))


def from_mounts(
    mounts: "Iterable[tuple[str, str]]", container: str, rules: "Rules", problems: list[Problem]
) -> list[Wish]:
    """The wishes that are written as mounts: (destination, source), where the source is /dev/null.

    A mount belongs to one container, so if the container has a name, the wish counts as naming it.
    """
    found: list[Wish] = []
    native = dialects.table(dialects.NATIVE)
    gpus: list[str] = []
    channels: list[str] = []
    for destination, source in mounts:
        entry = below(REQUEST_DIR, destination)
        if entry is not None:
            name, equals, text = entry.partition("=")
            where = f"mount {REQUEST_DIR}/{name}"
            if source != "/dev/null":
                why = f"what is mounted there asks for a GPU and must be /dev/null, not {show(source)}"
                problems.append(Problem("GH-102", f"{show_key('mount ' + destination)}: {why}"))
            elif not equals or name not in native.KEYS:
                guess = guessed(name, native.KEYS) if equals else ""
                why = (
                    f"is not a key; did you mean {guess}?"
                    if guess
                    else f"is not KEY=VALUE with a key of {', '.join(native.KEYS)}"
                )
                problems.append(Problem("GH-102", f"{show_key(where)} {why}"))
            else:
                read(native.KEYS[name], where, text, bool(container), dialects.NATIVE, found, problems)
        elif "nvidia-volumes" in rules.dialects and source == "/dev/null":
            volumes = dialects.table("nvidia-volumes")
            if (channel := below(volumes.FOLDER + "/imex", destination)) is not None:
                channels.append(channel)
            elif (gpu := below(volumes.FOLDER, destination)) is not None:
                gpus.append(gpu)
    if gpus:
        key, text = f"mount {volumes.FOLDER}", ",".join(gpus)
        read(volumes.ROW, key, text, bool(container), "nvidia-volumes", found, problems)
    if channels:
        key, text = f"mount {volumes.FOLDER}/imex", ",".join(channels)
        read(volumes.IMEX, key, text, bool(container), "nvidia-volumes", found, problems)
    return found


def below(folder: str, path: str) -> str | None:
    """The path relative to the folder; "" for the folder itself; None for a path outside it."""
    if path != folder and not path.startswith(folder + "/"):
        return None
    return path[len(folder) + 1 :]


def from_env(env: dict[str, str], rules: "Rules", problems: list[Problem]) -> list[Wish]:
    """The wishes in environment variables; only nodes with rules.trust_env use them."""
    found: list[Wish] = []
    for dialect in (dialects.NATIVE, *dialects.spoken(rules.dialects, env)):
        module = dialects.table(dialect)
        present = {key: variable for variable, key in module.ENV.items() if variable in env}
        for exact, rough in module.SAME:
            if exact in present:
                present.pop(rough, None)
        for key, variable in present.items():
            if variable == "GPU_HOOK_COMPUTE" and INJECTED in env and not env[variable].strip("0,"):
                continue  # set without a guarantee; a copy of the container brings it back
            read(module.KEYS[key], f"env {variable}", env[variable], False, dialect, found, problems)
        if dialect == "nvidia":
            found += of_old_image(env, module)
            requirements(env, "env ", module, found, problems)
    return found


def of_old_image(env: dict[str, str], nvidia: "ModuleType") -> list[Wish]:
    """The request of an image that has CUDA_VERSION alone, from before NVIDIA_REQUIRE_CUDA: every GPU and all capabilities."""
    if not nvidia.is_old(env):
        return []
    key, text = f"env {nvidia.CUDA}", env[nvidia.CUDA]
    asked: dict[str, object] = {}
    if VISIBLE not in env:
        asked["devices"] = value_parsers.ALL
    if "NVIDIA_DRIVER_CAPABILITIES" not in env:
        asked["capabilities"] = value_parsers.bounded_capabilities(value_parsers.ALL)
    return [Wish(name, key, text, value, False, "nvidia") for name, value in asked.items()]


def requirements(
    variables: dict[str, str], where: str, nvidia: "ModuleType", found: list[Wish], problems: list[Problem]
) -> None:
    """The wishes of NVIDIA_REQUIRE_*. where: stands before the variable in messages."""
    from oci_hook.core.requirements import alternatives  # few containers have any that count

    for key, text in nvidia.required(variables).items():
        row: Row = (f"require {key}", alternatives, {})
        read(row, f"{where}{key}", text, False, "nvidia", found, problems)


def narrowing(env: dict[str, str], problems: list[Problem]) -> tuple[str, ...] | None:
    """The GPUs to which the container's own environment narrows it; None: it does not; (): no GPU at all."""
    found: list[Wish] = []
    if VISIBLE in env:
        read(
            ("devices", value_parsers.devices, {}),
            f"env {VISIBLE}",
            env[VISIBLE],
            False,
            "environment",
            found,
            problems,
        )
    value = found[0].value if found else None
    if value in (value_parsers.NONE, value_parsers.VOID):
        return ()
    return value if isinstance(value, tuple) else None


def container_names(annotations: dict[str, str], decode: "Decode" = no_json) -> dict[str, tuple[str, ...]]:
    """The container names in our annotations, each with the keys that have it. It is only shown, so nothing raises."""
    spoken: dict[str, tuple[str, ...]] = {}
    for key, text in annotations.items():
        named: list[str] = []
        if key == CONTAINERS and isinstance(text, str):
            named = [item.strip(" ") for item in text.split(",")]
        elif key == REQUEST:
            try:
                gpus = decode(text)
            except (ValueError, AttributeError, RecursionError):
                gpus = None
            named = [str(name) for name in gpus] if isinstance(gpus, dict) else []
        elif key.startswith(PREFIX_KEY):
            named = [split(key)[1] or ""]
        else:
            continue
        for name in filter(None, named):
            spoken[name] = (*spoken.get(name, ()), key)
    return spoken


def split(key: str) -> tuple[str, str | None]:
    """Splits KEY.CONTAINER, without our prefix, into (KEY, CONTAINER); CONTAINER is None without a dot. No KEY has a dot.
    `podman generate kube` writes KEY/CONTAINER."""
    name = key[len(PREFIX_KEY) :]
    mark = "/" if "/" in name else "."
    name, found, suffix = name.partition(mark)
    return name, suffix if found else None


def name_by_podman(ours: list[str]) -> str:
    """The container that `podman play kube` means by KEY/CONTAINER, since it tells the runtime no name: the only one that
    has such keys; else ""."""
    named = {split(key)[1] or "" for key in ours if "/" in key[len(PREFIX_KEY) :]}
    return named.pop() if len(named) == 1 else ""


def read(
    row: "Row", key: str, text: object, own: bool, dialect: str, found: list[Wish], problems: list[Problem]
) -> None:
    """Adds the wishes of one key to `found`. If its text cannot be parsed, adds a wish without a value, and a problem."""
    name, reader, implied = row
    value = None
    if not isinstance(text, str):
        problems.append(
            Problem("GH-101", f"{show_key(key)} is {show(text)}; annotations are strings: put it in quotes")
        )
        text = ""
    elif len(text) > MAX_OURS:
        problems.append(Problem("GH-105", f"{show_key(key)}={show(text)} is longer than {MAX_OURS} characters"))
    elif not CONTROL_CHARACTERS.isdisjoint(text):
        problems.append(Problem("GH-105", f"{show_key(key)}={show(text)} has control characters"))
    else:
        try:
            value = reader(text)
        except (ValueError, RecursionError) as e:
            why = "is nested too deep" if isinstance(e, RecursionError) else str(e)
            problems.append(Problem("GH-101", f"{show_key(key)}={show(text)} {why}{remedy(name, reader, why)}"))
        else:
            if value is None:
                return
    said = value if isinstance(value, value_parsers.Several) else {name: value}
    if value not in (None, value_parsers.ZERO):
        said = {**said, **implied}
    found.extend(Wish(wish, key, text, meant, own, dialect) for wish, meant in said.items())


def remedy(name: str, reader: "Callable[[str], object]", why: str) -> str:
    """What to write instead of a wish's value, where `why` does not say so itself."""
    words = value_parsers.REMEDIES.get(reader.reader if isinstance(reader, value_parsers.Amount) else reader, "")
    if name == "per_gpu":
        words = 'write JSON such as [{"memory": "4Gi"}]'
    elif not words and "is not one of" in why:
        words = "write one of them"
    elif not words and ("whole number" in why or "within" in why):
        words = "write a number within these bounds"
    return f"; {words}" if words and ";" not in why else ""


def too_large(annotations: dict[str, str], ours: list[str], problems: list[Problem]) -> bool:
    for what, limit, keys in (("gpu-hook's annotations", MAX_OURS, ours), ("all annotations", MAX_ALL, annotations)):
        total = sum(len(key) + len(str(annotations[key])) for key in keys)
        if total > limit:
            message = f"{what} have {total} characters, {limit} are allowed; shorten the longest"
            problems.append(Problem("GH-105", message))
            return True
    return False


def suspects(annotations: dict[str, str], container: str, rules: "Rules", asks: bool) -> list[str]:
    """The keys that may ask for a GPU in words which are not understood; core/near_misses.py judges them. asks: whether
    something is asked for that is understood; then our own keys without a suffix, and those of dialects, are no suspects."""
    found = []
    for key in annotations:
        if key.startswith(PREFIX_KEY):
            suspect = key not in NO_REQUEST and (not asks or split(key)[1] not in (None, container))
        else:
            low = key.lower()
            suspect = "gpu" in low or "cuda" in low or "nvidia" in low or "hook.io/" in low
            suspect = suspect or dialects.is_known(dialects.NAMES, key)
            suspect = suspect and not (asks and dialects.is_known(rules.dialects, key))
        if suspect:
            found.append(key)
    return found


def unread_variables(env: dict[str, str], rules: "Rules", asks: bool) -> list[str]:
    """The variables that seem to ask for a share on a node that trusts them, and do not. asks: whether something is asked
    for that is understood; then our variables which only say how belong to it."""
    if not rules.trust_env:
        return []
    found = []
    for name in env:
        if not name.startswith(NEAR_VARIABLES) or "_SERVICE_" in name or "_PORT" in name:
            continue  # Kubernetes sets GPU_HOOK_SERVICE_HOST and such for a Service called gpu-hook
        if name in dialects.table(dialects.NATIVE).ENV:
            unread = not asks and INJECTED not in env
        elif name == VISIBLE or (name in ENV_SET and name.startswith("GPU_HOOK_")):
            unread = False
        else:
            unread = not any(name in dialects.table(word).ENV for word in dialects.spoken(rules.dialects, [name]))
        if unread:
            found.append(name)
    return found


def is_addressed(annotations: dict[str, str], container: str, problems: list[Problem]) -> bool:
    """True if keys without a suffix apply to this container."""
    if CONTAINERS not in annotations:
        return True
    text = annotations[CONTAINERS]
    try:
        listed = names(text)
        for name in listed:
            if not is_name(name):
                raise ValueError("is not a list of container names")
    except (ValueError, AttributeError):
        problems.append(Problem("GH-101", f"{CONTAINERS}={show(text)} is not a list of container names, like a,b"))
        return False
    if not container:
        problems.append(nameless(CONTAINERS))
    return container in listed


def is_suffix(key: str, suffix: str, container: str, problems: list[Problem]) -> bool:
    if not is_name(suffix):
        problems.append(Problem("GH-102", f"{show_key(key)}: what follows the key is not a container name"))
        return False
    if not container:
        problems.append(nameless(key))
        return False
    return True


def is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME and NAME_CHARACTERS.issuperset(text)


def nameless(key: str) -> Problem:
    why = "speaks of a container by name, and this one has none (docker and runc give none)"
    return Problem("GH-102", f"{show_key(key)} {why}; use the key without a name, or `explain --container NAME`")


def unknown(key: str, native: "ModuleType") -> Problem:
    if split(key)[0] == "containers":
        return Problem("GH-102", f"{show_key(key)}: containers takes no container name after it")
    keys = (*native.KEYS, "containers", "request")
    near = guessed(split(key)[0], keys)
    guess = f"did you mean {PREFIX_KEY}{near}?" if near else f"the keys are {', '.join(keys)}"
    return Problem("GH-102", f"{show_key(key)} is not a key; {guess}")


def guessed(word: str, keys: "Iterable[str]") -> str:
    """The key that a word which is none most likely means; "" if nobody can tell."""
    from oci_hook.core.near_misses import other_word  # only for what is refused
    from oci_hook.core.nearest import nearest

    return nearest(word, keys) or other_word(word.lower())


def show_key(key: str) -> str:
    """A key as it stands in a message: quoted and cut if it is not an ordinary one."""
    return key if len(key) <= 80 and KEY_CHARACTERS.issuperset(key) else show(key)
