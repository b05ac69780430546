"""The RPM package, by rpmbuild alone."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import deb
from payload import ROOT, VERSION, Files, epoch, lay, read

HERE = ROOT / "packaging/rpm"
OWN = ("usr/lib/gpu-hook", "usr/share/doc/gpu-hook")  # folders that the package owns
PLACES = {  # Debian's path -> that of RPM distributions
    "etc/default/gpu-hook": "etc/sysconfig/gpu-hook",
    "usr/share/zsh/vendor-completions/_gpu-hook": "usr/share/zsh/site-functions/_gpu-hook",
}


def build(out: Path, arch: str) -> Path:
    """OUT/gpu-hook-VERSION-1.ARCH.rpm; the same bytes for the same sources and SOURCE_DATE_EPOCH."""
    return pack(out, arch, "gpu-hook", HERE, contents(arch))


def pack(out: Path, arch: str, package: str, source: Path, files: Files) -> Path:
    """The package with these files, by the spec and the scripts in the folder `source`."""
    if not shutil.which("rpmbuild"):
        raise SystemExit("scripts/package: an RPM needs rpmbuild (apt install rpm, dnf install rpm-build)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay(folder / "tree", files)
        spec = folder / f"{package}.spec"
        spec.write_text(described(source, files, folder / "tree"))
        command = ["rpmbuild", "-bb", "--quiet", f"--target={arch}-linux", f"--define=_topdir {folder}/top", str(spec)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch()), "HOME": name, "LC_ALL": "C.UTF-8"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise SystemExit(f"scripts/package: rpmbuild: {done.stderr.strip()[-2000:]}")
        (built,) = (folder / "top/RPMS").rglob("*.rpm")
        target = out / f"{package}-{VERSION}-1.{arch}.rpm"
        target.write_bytes(built.read_bytes())
    return target


def contents(arch: str) -> Files:
    files = deb.contents(arch)
    files = {PLACES.get(name, name): file for name, file in files.items()}
    text, mode = files["etc/sysconfig/gpu-hook"]
    files["etc/sysconfig/gpu-hook"] = (text.replace(b"dpkg-reconfigure gpu-hook", b"dnf reinstall gpu-hook"), mode)
    del files["usr/share/doc/gpu-hook/copyright"]
    files["usr/share/doc/gpu-hook/LICENSE"] = read(ROOT / "LICENSE")
    return files


def described(source: Path, files: Files, tree: Path) -> str:
    folders = {str(path) for name in files for path in Path(name).parents if str(path).startswith(OWN)}
    lines = [f"%dir /{folder}" for folder in sorted(folders)]
    for name in sorted(files):
        lines.append(("%config(noreplace) " if name.startswith("etc/") else "") + f'"/{name}"')
    text = (source / "package.spec").read_text()
    values = {"VERSION": VERSION, "TREE": str(tree), "FILES": "\n".join(lines)}
    for part in ("post", "posttrans", "preun", "postun"):
        if (source / part).exists():
            values[part.upper()] = (source / part).read_text().replace("%", "%%")
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text
