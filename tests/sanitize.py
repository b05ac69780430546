"""gcc's sanitizers for the tests' C programs: as they are, and with locals that begin as a pattern.

Without the second build, what depends on what the stack held before depends on the compiler and the machine, too.
"""

import shutil
import subprocess

import pytest

PATTERN = "-ftrivial-auto-var-init=pattern"  # gcc 12
ADDRESS = ("-O1", "-fsanitize=address,undefined")
THREAD = ("-O1", "-fsanitize=thread")
BUILDS = (ADDRESS, (*ADDRESS, PATTERN), THREAD)
# One function alone: compiled quickly, and each optimisation lays its locals out in another way.
SMALL = (*BUILDS, ("-O2", "-fsanitize=address,undefined", PATTERN), ("-O2", "-fsanitize=thread", PATTERN))


def name(flags: tuple[str, ...]) -> str:
    """A test's parameter."""
    return "-".join(flag.rpartition("=")[2].lstrip("-") for flag in flags)


def gcc(flags: tuple[str, ...] = ()) -> str:
    """The compiler; skips the test where it is none for x86-64 or does not know these flags."""
    found = shutil.which("gcc")
    machine = found and subprocess.run([found, "-dumpmachine"], capture_output=True, check=True).stdout[:6]
    if not found or machine != b"x86_64":
        pytest.skip("gcc for x86_64 is not here")
    program = "int main(void) { return 0; }"
    tried = [found, *flags, "-x", "c", "-o", "/dev/null", "-"]
    done = subprocess.run(tried, input=program, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"gcc lacks {' '.join(flags)}")
    return found
