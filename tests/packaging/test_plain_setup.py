"""The scripts of README and guides, with no other packages than those that plain `scripts/setup` brings: whoever never ran a test
has these alone."""

import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from testbed import REPO

PAGES = [REPO / "README.md", *sorted((REPO / "docs/guide").glob("*.md"))]
TESTS = {"test", "bench"}  # they bring the tests' packages themselves
HELP = "import runpy, sys; sys.argv[1:] = ['--help']; runpy.run_module('testbed.{}', run_name='__main__')"
# What each of the others imports.
IMPORTS = {
    "setup": "import pkgutil, importlib, gpu_hook_simulator, oci_hook.agent, oci_hook.cli, oci_hook.kube\n"
    "for part in (oci_hook.agent, oci_hook.cli, oci_hook.kube):\n"
    "    for module in pkgutil.walk_packages(part.__path__, part.__name__ + '.'): importlib.import_module(module.name)",
    "build": "import build_c.native_build, ziglang",
    "demo": "import sys; sys.path.insert(0, 'scripts'); import demo_story",
    "package": "import sys; sys.path.insert(0, 'packaging'); import build, setuptools\n"
    "from payload import MODULES, vendored; vendored(*MODULES)",
    "cluster": HELP.format("cluster"),
    "machine": HELP.format("machine"),
}


def brought() -> Iterator[str]:
    """The distributions that plain setup installs, by what it hands to pip."""
    (extras,) = re.findall(r"^extras=([a-z,]+) ", (REPO / "scripts/setup").read_text(), re.M)
    waiting, seen = [Requirement(f"gpu-hook[{extras}]"), Requirement("gpu-hook-simulator"), Requirement("pip")], set()
    while waiting:
        asked = waiting.pop()
        if (asked.name, frozenset(asked.extras)) in seen:
            continue
        seen.add((asked.name, frozenset(asked.extras)))
        try:
            requires = distribution(asked.name).requires or ()
        except PackageNotFoundError:
            continue  # of another system or Python
        yield asked.name
        for found in map(Requirement, requires):
            if not found.marker or any(found.marker.evaluate({"extra": extra}) for extra in (*asked.extras, "")):
                waiting.append(found)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with these packages, and none else."""
    folder = tmp_path_factory.mktemp("plain") / "venv"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in brought():
        for path in distribution(name).files or ():
            first = path.parts[0]
            if first not in ("..", "__pycache__") and not (site / first).exists():
                (site / first).symlink_to(Path(str(distribution(name).locate_file(first))))
    (site / "checkout.pth").write_text(f"{REPO}\n{REPO / 'simulator'}\n")
    return folder / "bin/python"


def test_every_script_of_the_guides_is_tried() -> None:
    named = {name for page in PAGES for name in re.findall(r"\bscripts/([a-z-]+)", page.read_text())}
    assert named <= TESTS | IMPORTS.keys()
    for name in sorted(named & TESTS):
        assert re.search(r'^scripts/setup (--tests|"\$needs")$', (REPO / "scripts" / name).read_text(), re.M)


@pytest.mark.parametrize("name", IMPORTS)
def test_what_plain_setup_brings_is_enough(name: str, python: Path) -> None:
    done = subprocess.run([python, "-B", "-I", "-c", IMPORTS[name]], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_it_has_nothing_of_the_tests(python: Path) -> None:
    done = subprocess.run([python, "-B", "-I", "-c", "import pytest"], capture_output=True, text=True)
    assert "ModuleNotFoundError" in done.stderr and sys.modules["pytest"]
