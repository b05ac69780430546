"""An image's requirements of the driver and the GPU: NVIDIA_REQUIRE_* in the grammar of the NVIDIA runtime.

A blank is "or", a comma "and": `cuda>=12.4 brand=tesla,driver>=470,driver<471`. The properties are `cuda` (the newest CUDA that
the driver supports), `driver` (its version), `arch` (the GPU's compute capability) and `brand`. A term about what the node
does not know counts as met.
https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html#constraints
"""

from oci_hook.core.units import DIGITS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.core.inventory import Gpu, Inventory

    Term = tuple[str, str, str]  # property, operator, value

PROPERTIES = ("cuda", "driver", "arch", "brand")
OPERATORS = ("!=", "<=", ">=", "=", "<", ">")  # those that begin like another one before it
MAX_LENGTH = 4096  # of one variable; those of NVIDIA's images have up to 2000 characters
MAX_PARTS = 8  # of a version


def alternatives(text: str) -> "tuple[tuple[Term, ...], ...]":
    """The alternatives, each with the terms that must all hold; () for an empty text. Raises ValueError with the words to
    put after the value."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"has more than {MAX_LENGTH} characters")
    return tuple(tuple(map(term, each.split(","))) for each in text.split())


def term(text: str) -> "Term":
    for operator in OPERATORS:
        name, found, value = text.partition(operator)
        if not found:
            continue
        if name not in PROPERTIES:
            break
        if name == "brand":
            if operator not in ("=", "!=") or not value:
                break
        else:
            version(value)
        return name, operator, value.lower()
    raise ValueError("is not a list of terms such as cuda>=12.4, driver<471, arch>=8.0 or brand=tesla")


def version(text: str) -> tuple[int, ...]:
    parts = text.split(".")
    if len(parts) > MAX_PARTS or not all(part and len(part) <= 9 and DIGITS.issuperset(part) for part in parts):
        raise ValueError(f"has {text[:20]!r}, which is no version such as 12.4")
    return tuple(map(int, parts))


def facts(inventory: "Inventory", gpu: "Gpu") -> dict[str, str]:
    """Known properties of the driver and this GPU."""
    known = {"cuda": inventory.cuda_version, "driver": inventory.driver_version, "arch": gpu.arch, "brand": gpu.brand}
    return {name: value for name, value in known.items() if value and (name == "brand" or _is_version(value))}


def _is_version(text: str) -> bool:
    try:
        return bool(version(text))
    except ValueError:
        return False


def unmet(text: str, known: dict[str, str]) -> str:
    """The first term that does not hold, with what the node has; "" if the requirement is met."""
    failing = ""
    for terms in alternatives(text):
        wrong = next((term for term in terms if not holds(term, known)), None)
        if wrong is None:
            return ""
        failing = failing or f"{''.join(wrong)} is required, here is {wrong[0]} {known[wrong[0]]}"
    return failing


def holds(term: "Term", known: dict[str, str]) -> bool:
    name, operator, value = term
    if name not in known:
        return True
    if name == "brand":
        return (known[name].lower() == value) == (operator == "=")
    have, want = _padded(version(known[name]), version(value))
    return {
        "=": have == want,
        "!=": have != want,
        "<": have < want,
        "<=": have <= want,
        ">": have > want,
        ">=": have >= want,
    }[operator]


def _padded(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Both with as many parts: 12 is 12.0, and a driver `=470` is any 470.x only if written out as >=470,<471."""
    size = max(len(one), len(other))
    return (*one, *(0,) * (size - len(one))), (*other, *(0,) * (size - len(other)))
