"""scripts/package: builds a package and prints its path."""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import chart
import controller_image
import deb
import image
import rpm
import simulator_packages
import tarball
from payload import REGISTRY, ROOT, VERSION, epoch


def wheel(out: Path, arch: str, source: Path = ROOT, name: str = "gpu_hook") -> Path:
    """OUT/NAME-VERSION-py3-none-TAG.whl by pip and the setuptools that is here, with a tag that package indexes accept."""
    tag = f"manylinux2014_{arch}"  # the libraries need glibc 2.17, or none
    option = f"--config-settings=--build-option=--plat-name={tag}"
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps", option]
    command.append("--no-build-isolation")  # else pip fetches the newest setuptools, which may give other bytes
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch())}
    subprocess.run([*command, "-w", str(out), str(source)], check=True, env=environment)
    return out / f"{name}-{VERSION}-py3-none-{tag}.whl"


def simulator_wheel(out: Path, arch: str) -> Path:
    return wheel(out, arch, ROOT / "simulator", "gpu_hook_simulator")


def push(out: Path, arch: str, registry: str, plain_http: bool) -> str:
    """Build both images and push them by skopeo. Returns the kustomization's `images:` for them."""
    skopeo = shutil.which("skopeo")
    if not skopeo:
        raise SystemExit("scripts/package: push needs skopeo (apt install skopeo, dnf install skopeo)")
    lines = ["images:"]
    for module in (image, controller_image):
        name = module.NAME.removeprefix(f"{REGISTRY}/")
        archive = module.build(out, arch)
        flags = ["--dest-tls-verify=false"] if plain_http else []
        copy = [skopeo, "copy", "--quiet", *flags, f"oci-archive:{archive}", f"docker://{registry}/{name}"]
        if subprocess.run(copy, stdout=subprocess.DEVNULL).returncode:
            raise SystemExit(f"scripts/package: {registry}/{name} was not pushed; `skopeo login {registry}`?")
        here, _, tag = module.NAME.rpartition(":")
        new = f"{registry}/{name}".rpartition(":")[0]
        lines.append(f"  - {{name: {here}, newName: {new}, newTag: {tag}}}")
    return "\n".join(lines)


KINDS = {
    "deb": deb.build,
    "rpm": rpm.build,
    "tarball": tarball.build,
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


def folder(text: str) -> Path:
    """Raises argparse.ArgumentTypeError for an empty name, which would mean the checkout."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; name a folder, such as dist")
    return Path(text)


def registry(text: str) -> str:
    """HOST[:PORT][/PATH] as image names have it. Raises argparse.ArgumentTypeError."""
    if not re.fullmatch(r"[a-zA-Z0-9.-]+(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)*", text) or not re.search(
        "[.:]|^localhost", text
    ):
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not a registry such as registry.example:5000/team")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/package", description="build a package, or push the two images")
    parser.add_argument("kind", choices=[*KINDS, "push"], metavar="KIND", help=", ".join([*KINDS, "push"]))
    parser.add_argument(
        "registry", nargs="?", type=registry, metavar="REGISTRY", help="of push: such as HOST:PORT/team"
    )
    parser.add_argument("--plain-http", action="store_true", help="of push: the registry has no TLS")
    parser.add_argument("--out", type=folder, default=ROOT / "dist", help="default: dist")
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
    if (args.kind == "push") != bool(args.registry):
        parser.error("push needs a REGISTRY, and nothing else takes one")
    os.umask(0o022)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=args.out).close()
    except OSError as e:
        raise SystemExit(
            f"scripts/package: {args.out}: {e.strerror}; name a folder that can be written by --out"
        ) from None
    if args.kind == "push":
        print(push(args.out.resolve(), args.arch, args.registry, args.plain_http))
        return
    print(KINDS[args.kind](args.out.resolve(), args.arch))


if __name__ == "__main__":
    main()
