"""Where honest programs of an image find a driver library that lies in no usual place: in prefixes such as a conda
environment's, whose programs look beside themselves (RPATH $ORIGIN/../lib), and in the run path of the container's own
program. Which of these an image has is not known without running it, so the places are guessed from its configuration.

Only a few names are looked up in each place; none is listed, since an environment's lib has thousands of files.
"""

import os
from stat import S_IMODE, S_ISDIR, S_ISREG

from oci_hook.apply.image_tree import mode_of
from oci_hook.core.value import Value
from oci_hook.linux import elf
from oci_hook.linux.walk import MAX_PATH, Tree
from oci_hook.oci.spec import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from oci_hook.oci.spec_types import Spec

MAX_FOLDERS = 64  # of PATH, and of a program's run path
MAX_WORDS = 8  # of the container's command: tini -g -- python train.py
MAX_ENVIRONMENTS = 128  # of one conda
MAX_VARIABLE = 1 << 17  # execve(2), MAX_ARG_STRLEN: no program starts with a longer one
PREFIX_VARIABLES = ("CONDA_PREFIX", "CONDA_DIR", "MAMBA_ROOT_PREFIX", "VIRTUAL_ENV", "CUDA_HOME", "CUDA_PATH")
# Folders of a newer driver, in NVIDIA's images and for vLLM; files that are loaded by these paths.
COMPAT_VARIABLES = ("_CUDA_COMPAT_PATH", "VLLM_CUDA_COMPATIBILITY_PATH")
FILE_VARIABLES = ("LD_PRELOAD", "NUMBA_CUDA_DRIVER")
TOKENS = (
    ("LIB", ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")),
    ("PLATFORM", ("x86_64", "haswell", "xeon_phi", "aarch64")),
)
CONDAS = ("conda", "miniconda3", "miniforge3", "mambaforge", "anaconda3", "micromamba")
CONDA_PLACES = ("/opt", "/root")
USUAL = ("", "/", "/usr", "/usr/local")  # whose folders are looked at in any case
# cuda-compat: where conda-forge's package of that name has its libcuda
BELOW = ("lib", "lib64", "cuda-compat", "compat")
NAMES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so")
# Linkers need the stub under its plain name; what has a number is for programs that run.
STUBS = ("lib/stubs", "lib64/stubs")
STUB_NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")


class Command(Value):
    """What the container runs first, by its configuration."""

    args: "Sequence[str]" = ()
    cwd: str = "/"
    env: "Mapping[str, str]" = {}


def command(spec: "Spec") -> Command:
    """The command of config.json; what is not of the runtime spec's type is left out."""
    process = spec.get("process") or {}
    args, cwd = process.get("args"), process.get("cwd")
    words = args[:MAX_WORDS] if isinstance(args, list) else ()
    return Command(
        tuple(word for word in words if isinstance(word, str)),
        cwd if isinstance(cwd, str) and cwd.startswith("/") else "/",
        environment(spec),
    )


def folders(value: str) -> list[str]:
    """The absolute folders of a search path, less those with a longer name than any path can have."""
    places = value[:MAX_VARIABLE].replace(";", ":").split(":", MAX_FOLDERS)[:MAX_FOLDERS]
    return [
        one for place in places if place.startswith("/") and len(place) <= MAX_PATH for one in _without_tokens(place)
    ]


def _without_tokens(place: str) -> list[str]:
    """The folders that glibc's loader may make of $LIB and $PLATFORM there (ld.so(8), dynamic string tokens)."""
    found = [place]
    for token, values in TOKENS if "$" in place else ():
        if token in place:
            found = [
                one.replace(f"${{{token}}}", value).replace(f"${token}", value) for one in found for value in values
            ]
    return list(dict.fromkeys(found))


def compat_folders(command: Command) -> list[str]:
    """Those that variables name as such."""
    return [place for name in COMPAT_VARIABLES for place in folders(command.env.get(name, ""))]


def files(command: Command) -> list[str]:
    """The paths of driver libraries that variables name."""
    values = ":".join(command.env.get(name, "")[:MAX_VARIABLE] for name in FILE_VARIABLES)
    found = folders(values.replace(" ", ":"))
    return [path for path in found if path.rpartition("/")[2].startswith(("libcuda.so", "libnvidia-ml.so"))]


def paths(tree: Tree, command: Command) -> list[str]:
    """The paths at which a driver library would be found, in folders that are there; whether it is, is not looked at."""
    search = folders(command.env.get("PATH", ""))
    programs = list(_programs(tree, command, search))
    places: list[tuple[str, tuple[str, ...]]] = [(place, NAMES) for path in programs for place in _run_path(tree, path)]
    for prefix in _prefixes(tree, command, search, programs):
        places += [(f"{prefix}/{folder}", NAMES) for folder in BELOW]
        places += [(f"{prefix}/{folder}", STUB_NAMES) for folder in STUBS]
    found: dict[str, None] = {}
    for place, names in places:
        if there := _folder(tree, place):
            found.update(dict.fromkeys(f"{there}/{name}" for name in names))
    return list(found)


def _folder(tree: Tree, path: str) -> str:
    """The canonical path of a folder; "" where there is none."""
    try:
        there, mode = tree.resolve(path)
    except OSError:
        return ""
    return there if S_ISDIR(mode) else ""


def _prefixes(tree: Tree, command: Command, search: "Sequence[str]", programs: "Sequence[str]") -> list[str]:
    """/X for programs in /X/bin, and conda's environments."""
    named = [command.env.get(name, "")[: MAX_PATH + 1] for name in PREFIX_VARIABLES]
    wanted = [name for name in named if name.startswith("/") and len(name) <= MAX_PATH]
    for path in (*search, *(program.rpartition("/")[0] for program in programs)):
        real = _real(tree, path)
        if real.endswith(("/bin", "/sbin", "/condabin")):
            wanted.append(real.rpartition("/")[0])
    wanted += [f"{place}/{name}" for place in CONDA_PLACES if _folder(tree, place) for name in CONDAS]
    found = [_folder(tree, path) for path in dict.fromkeys(wanted)]
    found = [prefix for prefix in dict.fromkeys(found) if prefix not in USUAL]
    for prefix in list(found):
        found += _environments(tree, f"{prefix}/envs")
    return list(dict.fromkeys(found))


def _environments(tree: Tree, place: str) -> list[str]:
    if not S_ISDIR(mode_of(tree, place)):
        return []
    try:
        return [f"{place}/{name}" for name in sorted(tree.names(_real(tree, place)))[:MAX_ENVIRONMENTS]]
    except OSError:
        return []


def _programs(tree: Tree, command: Command, search: "Sequence[str]") -> "Iterable[str]":
    """The canonical paths of the programs that the command's words name, and of their interpreters."""
    for word in command.args[:MAX_WORDS]:
        if word.startswith("-") or not 0 < len(word) <= MAX_PATH or "\n" in word:
            continue
        path = _which(tree, word, command.cwd, search)
        if path:
            yield path
            for name in _interpreter(_head(tree, path, 256)):
                if other := _which(tree, name, command.cwd, search):
                    yield other


def _which(tree: Tree, word: str, cwd: str, search: "Sequence[str]") -> str:
    """The canonical path of the program that a shell would start for this word, or ""."""
    for folder in ("" if word.startswith("/") else cwd,) if "/" in word else search:
        path = f"{folder}/{word}"
        try:
            found, mode = tree.resolve(path)
        except OSError:
            continue
        if S_ISREG(mode) and S_IMODE(mode) & 0o111:
            return found
    return ""


def _run_path(tree: Tree, path: str) -> list[str]:
    """The folders in which the loader looks for this program's libraries, by the program's own word."""
    try:
        fd = tree.open(path)
    except OSError:
        return []
    try:
        facts = elf.read(fd, elf.RPATH, elf.RUNPATH, spend=tree.work.spend)
    except OSError:
        return []
    finally:
        os.close(fd)
    text = ":".join(facts.texts.values()) if facts else ""  # the loader ignores the first where there is the second
    origin = path.rpartition("/")[0]
    places = text.split(":", MAX_FOLDERS)[:MAX_FOLDERS]
    for name in ("$ORIGIN", "${ORIGIN}"):
        places = [place.replace(name, origin, 1) for place in places]
    return [place for place in places if place.startswith("/") and "$" not in place and len(place) <= MAX_PATH]


def _interpreter(head: bytes) -> list[str]:
    """The program that runs the script which begins so, as PATH or a path has it; with `env` also what that starts."""
    if not head.startswith(b"#!"):
        return []
    words = os.fsdecode(head[2:].partition(b"\n")[0]).split()
    found = words[:1]
    if found and found[0].rpartition("/")[2] == "env":
        found += [word for word in words[1:] if not word.startswith("-") and "=" not in word][:1]
    return found


def _head(tree: Tree, path: str, size: int) -> bytes:
    try:
        return tree.read(path, size)
    except OSError:
        return b""


def _real(tree: Tree, path: str) -> str:
    """The path after all links; "" where it cannot be one."""
    try:
        return tree.resolve(path)[0]
    except OSError:
        return ""
