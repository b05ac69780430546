"""usage: lowest.py DIR: a virtual environment with the lowest versions that pyproject.toml admits of what the product imports,
and the usual ones (scripts/constraints.txt) of what only tests do."""

import subprocess
import sys
from pathlib import Path

import tomlkit

ROOT = Path(__file__).resolve().parent.parent


def lowest() -> list[str]:
    """NAME==VERSION of each package that the product or its controller names."""
    project = tomlkit.parse((ROOT / "pyproject.toml").read_text()).unwrap()["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["cluster"]]
    return [requirement.replace(">=", "==") for requirement in named]


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder, pins = Path(sys.argv[1]), lowest()
    print(f"lowest: {' '.join(pins)}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    project = ["-e", f"{ROOT}[test,build,sim,cluster]", "-e", str(ROOT / "simulator")]
    subprocess.run([*pip, "-c", str(ROOT / "scripts/constraints.txt"), *project], check=True)
    # Test programs that want a newer one of these have it no more, and are not started by the quick tests.
    subprocess.run([*pip, "--no-deps", *pins], check=True)


if __name__ == "__main__":
    main()
