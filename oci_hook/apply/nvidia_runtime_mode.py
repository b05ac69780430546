"""gpu-hook together with the NVIDIA runtime, which brings the driver's files (settings mode: below or on-top).

below: the NVIDIA runtime edits the spec before us. on-top: it comes after us and edits, or mounts, on its own. Either
way its part is narrowed to the grant, ours loses the driver's files, and a library that arrives after the spec is
edited gets its shim from our createRuntime hook. Where what lies: oci/nvidia_hooks.py knows the NVIDIA toolkit's hooks,
oci/nvidia_edits.py its edits of a spec, core/nvidia_runtime_mode.py which steps of a plan stay ours, and this file does
the rest: `narrow` to `own_part` for a bundle, `covers` and `check_covered` for a made container.
"""

import os

from oci_hook.apply import to_spec
from oci_hook.core.layout import CONTAINER_DIR, PRIVATE, SHIM_DIR
from oci_hook.core.nvidia_runtime_mode import memory_words, own_steps
from oci_hook.core.plan import DATA, Bind, EnvVar, device_nodes
from oci_hook.errors import refuse
from oci_hook.linux import mount
from oci_hook.linux.walk import Tree
from oci_hook.oci import nvidia_edits
from oci_hook.oci.spec import cgroups_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oci_hook.apply.to_container import LiveContainer
    from oci_hook.config.settings import Settings
    from oci_hook.core.grant import Grant
    from oci_hook.core.inventory import Inventory
    from oci_hook.core.plan import ImageFacts, Step
    from oci_hook.oci.nvidia_edits import Narrowed
    from oci_hook.oci.spec_types import Spec

LIBRARIES = ("libcuda", "libnvidia-ml")


# --- a bundle ---


def narrow(doc: "Spec", grant: "Grant", inventory: "Inventory", settings: "Settings") -> "Narrowed":
    """The spec with the NVIDIA runtime's edits narrowed to the grant, and without anything that asks it for more.

    Raises NodeError GH-302, ApplyError GH-409 where mode on-top finds what another program brought.
    """
    on_top = settings.mode == "on-top"
    if on_top and (what := nvidia_edits.injected(doc)):
        raise refuse(
            "GH-409",
            f"mode is on-top, and {what} is in the container already: another program put the driver there before us; "
            "leave out CDI devices, or set `mode: below`",
        )
    found = nvidia_edits.narrow(doc, grant, inventory, device_nodes(grant, inventory), _same_file)
    spec = nvidia_edits.ask(found.spec, "", shared(grant))
    return found.replace(spec=spec, late=found.late or on_top)


def with_copies(image: "ImageFacts", beside: "Narrowed") -> "ImageFacts":
    """The image's facts with the copies of libcuda and libnvidia-ml that the NVIDIA runtime's edits mount into it."""
    return image.replace(
        cover_cuda=tuple(dict.fromkeys([*image.cover_cuda, *_with_links("libcuda", beside.cuda)])),
        cover_nvml=tuple(dict.fromkeys([*image.cover_nvml, *_with_links("libnvidia-ml", beside.nvml)])),
    )


def _with_links(library: str, places: "tuple[str, ...]") -> list[str]:
    """These paths of a library, and those of the links beside it by which programs look for it."""
    folders = dict.fromkeys(place.rpartition("/")[0] for place in places)
    return [*places, *(f"{folder}/{library}.so{end}" for folder in folders for end in ("", ".1"))]


def own_part(
    doc: "Spec",
    steps: "tuple[Step, ...]",
    grant: "Grant",
    beside: "Narrowed",
    inventory: "Inventory",
    image: "ImageFacts",
    settings: "Settings",
) -> "tuple[Spec, tuple[Step, ...]]":
    """The spec with our createRuntime hook, where it has to act, and the steps less what the NVIDIA runtime brings, with
    the variables that its memory hook reads."""
    if beside.late or beside.files:
        steps = own_steps(steps, inventory, image, settings.prefix, beside.late)
    if beside.late:
        doc = to_spec.with_hook(doc, settings.prefix)
    words = memory_words(grant, inventory, settings.rules, cgroups_path(doc))
    return doc, (*steps, *(EnvVar(name, value) for name, value in words.items()))


def shared(grant: "Grant") -> bool:
    """Whether the container may have only what a shim governs: false where it is given GPUs, all of them whole."""
    return not grant.shares or not all(share.whole for share in grant.shares)


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


# --- a made container ---


def covers(
    container: "LiveContainer", image: "ImageFacts", inventory: "Inventory", past: "Iterable[str]", settings: "Settings"
) -> tuple[Bind, ...]:
    """What to mount over every copy of libcuda and libnvidia-ml that is in the container now, and over `past`, the
    driver's other libraries that would reach a GPU past the shims.

    A copy is found by its name, or by being the host's file: a link in the image may have led its mount elsewhere. No
    path is created. Raises ApplyError GH-402 where two libraries are one file, GH-409 where no copy is there.
    """
    wanted = [("libcuda", path) for path in image.cover_cuda] + [("libnvidia-ml", path) for path in image.cover_nvml]
    wanted += _mounted(container, inventory)
    wanted += [("", path) for path in past]
    shims = f"{settings.prefix}/{SHIM_DIR}"
    nothing = f"{settings.prefix}/{CONTAINER_DIR}/policy"  # an empty file, over what is not to be loaded at all
    out: dict[str, Bind] = {}
    with Tree(container.path()) as tree:
        for library, path in wanted:
            try:
                place, mode = tree.resolve(path)
            except OSError:
                continue
            if not mode or place.startswith(PRIVATE + "/"):
                continue
            step = Bind(f"{shims}/{library}.so.1", place) if library else Bind(nothing, place, DATA)
            if out.setdefault(place, step).source != step.source:
                raise refuse("GH-402", f"{path} in the container is {place}, where another library is; fix the image")
    if not any(step.source != nothing for step in out.values()):
        raise refuse(
            "GH-409",
            f"mode is {settings.mode}, and {settings.runtime[:80]} has put no driver into the container; set "
            "`runtime` to the NVIDIA runtime, or `mode: standalone`",
        )
    return tuple(out.values())


def check_covered(container: "LiveContainer", inventory: "Inventory") -> None:
    """Raises ApplyError GH-405 when a program could still open one of the real libraries."""
    real = _identities(inventory)
    for _, path in _mounted(container, inventory):
        if _identity(container, path) in real:
            raise refuse("GH-405", f"{path} is still the driver's own library; the image or a mount is in the way")


def _mounted(container: "LiveContainer", inventory: "Inventory") -> "Iterator[tuple[str, str]]":
    """(library, path in the container) of each mount that is one, by name or because it is the host's file."""
    real = _identities(inventory)
    top = os.path.realpath(container.rootfs)
    for entry in mount.mountinfo(str(container.pid)):
        if not entry.point.startswith(top + "/"):
            continue
        path = entry.point[len(top) :]
        if path == PRIVATE or path.startswith(PRIVATE + "/"):
            continue
        library = real.get(_identity(container, path)) or _named(path) or _named(entry.root)
        if library:
            yield library, path


def _named(path: str) -> str:
    """Which of LIBRARIES a file with this path is by its name; "" for none."""
    name = path.rpartition("/")[2]
    return next((library for library in LIBRARIES if name.startswith(library + ".so")), "")


def _identities(inventory: "Inventory") -> dict[tuple[int, int], str]:
    """The driver's own two libraries by (device, inode)."""
    found = {}
    for library, path in zip(LIBRARIES, (inventory.libcuda, inventory.libnvml), strict=True):
        st = os.stat(path)
        found[st.st_dev, st.st_ino] = library
    return found


def _identity(container: "LiveContainer", path: str) -> tuple[int, int]:
    """(device, inode) of what is at this canonical path; (0, 0) where another mount hides it."""
    try:
        fd = os.open(container.path(), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in path.split("/")[1:]:
            below = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = below
        st = os.fstat(fd)
        os.close(fd)
        return st.st_dev, st.st_ino
    except OSError:
        return 0, 0
