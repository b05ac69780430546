"""scripts/package: builds a package and prints its path."""

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

import chart
import controller_image
import deb
import image
import rpm
import simulator_packages
from payload import ROOT, VERSION, epoch


def wheel(out: Path, arch: str, source: Path = ROOT, name: str = "gpu_hook") -> Path:
    """OUT/NAME-VERSION-py3-none-TAG.whl by pip, like `pip install SOURCE`, with a tag that package indexes accept."""
    tag = f"manylinux2014_{arch}"  # the libraries need glibc 2.17, or none
    option = f"--config-settings=--build-option=--plat-name={tag}"
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps", option]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch())}
    subprocess.run([*command, "-w", str(out), str(source)], check=True, env=environment)
    return out / f"{name}-{VERSION}-py3-none-{tag}.whl"


def simulator_wheel(out: Path, arch: str) -> Path:
    return wheel(out, arch, ROOT / "simulator", "gpu_hook_simulator")


KINDS = {
    "deb": deb.build,
    "rpm": rpm.build,
    "image": image.build,
    "controller-image": controller_image.build,
    "chart": chart.build,
    "wheel": wheel,
    "simulator-deb": simulator_packages.deb_package,
    "simulator-rpm": simulator_packages.rpm_package,
    "simulator-wheel": simulator_wheel,
}
ANY_ARCHITECTURE = tuple(kind for kind in KINDS if not kind.endswith("wheel"))
NAMES = {debian: arch for arch, debian in deb.ARCHITECTURES.items()}  # amd64, arm64


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/package", description="build a package")
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: dist")
    parser.add_argument(
        "--arch",
        default=platform.machine(),
        type=lambda name: NAMES.get(name, name),
        choices=list(deb.ARCHITECTURES),
        help="or amd64, arm64; of wheels, this machine's only; default: this machine's",
    )
    args = parser.parse_args()
    if args.kind not in ANY_ARCHITECTURE and args.arch != platform.machine():
        parser.error(f"{args.kind}: --arch {args.arch} is not this machine's architecture; build it on such a machine")
    os.umask(0o022)
    args.out.mkdir(parents=True, exist_ok=True)
    print(KINDS[args.kind](args.out.resolve(), args.arch))


if __name__ == "__main__":
    main()
