"""gcc's sanitizers for the tests' C programs; their locals begin as a pattern where gcc can do that.

Otherwise, what depends on what the stack held before depends on the compiler and the machine, too.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from oci_hook.shim import build
from testbed.compiled import compiled

SHIM = Path(build.__file__).parent
COMPILER = shutil.which("gcc")


def _knows(*flags: str) -> bool:
    """True if gcc makes programs with these flags."""
    tried = [str(COMPILER), *flags, "-x", "c", "-o", "/dev/null", "-"]
    done = subprocess.run(tried, input="int main(void) { return 0; }", capture_output=True, text=True, check=False)
    return done.returncode == 0


PATTERN = "-ftrivial-auto-var-init=pattern"  # gcc 12
PLAIN = ("-O1", "-fsanitize=address,undefined")
ADDRESS = (*PLAIN, PATTERN) if COMPILER and _knows(PATTERN) else PLAIN
THREAD = ("-O1", "-fsanitize=thread")
BUILDS = (ADDRESS, THREAD)
# One function alone: compiled quickly, and each optimisation lays its locals out in another way.
SMALL = (PLAIN, *BUILDS, ("-O2", "-fsanitize=address,undefined", PATTERN), ("-O2", "-fsanitize=thread", PATTERN))


def name(flags: tuple[str, ...]) -> str:
    """A test's parameter."""
    return "-".join(flag.rpartition("=")[2].lstrip("-") for flag in flags)


def gcc(flags: tuple[str, ...] = ()) -> str:
    """The compiler; skips the test where it is none for x86-64 or does not know these flags."""
    machine = COMPILER and subprocess.run([COMPILER, "-dumpmachine"], capture_output=True, check=True).stdout[:6]
    if not COMPILER or machine != b"x86_64":
        pytest.skip("gcc for x86_64 is not here")
    if not _knows(*flags):
        pytest.skip(f"gcc lacks {' '.join(flags)}")
    return COMPILER


def shim_library(flags: tuple[str, ...], native: Path) -> tuple[Path, list[str]]:
    """(libcuda.so.1, the command that compiles beside it): the shim with a sanitizer; the jump stubs and the table of
    names are those of the build `native`. Compiled without optimisation, in half of the time.
    """
    command = [gcc(flags), "-std=c11", "-g", *flags, "-O0", "-fno-sanitize-recover=undefined", "-w"]
    made = native / "shim" / "libcuda"
    shared = ["-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1", f"-I{made}", f"-I{SHIM}"]
    needed = [str(made / "stubs.S"), "-Wl,--no-as-needed", str(made / "needed.so"), "-ldl", "-lpthread"]
    return compiled("libcuda.so.1", [*command, *shared, *build.LIBRARIES[0].files(), *needed]), command


def shim_program(flags: tuple[str, ...]) -> Callable[..., Path]:
    """make(name, *sources): a program of sources that include the shim's, with a sanitizer."""
    command = [gcc(flags), "-std=c11", "-g", *flags, "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
    command += ["-fno-sanitize-recover=all", f"-I{SHIM}"]

    def make(program: str, *sources: Path) -> Path:
        return compiled(program, [*command, *map(str, sources)])

    return make
