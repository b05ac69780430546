"""The Debian package, by dpkg-deb alone: files, man pages, completions, systemd unit and maintainer scripts."""

import gzip
import os
import subprocess
import tempfile
from pathlib import Path

import man
import tarball
from interpreter import ARCHITECTURES
from payload import ROOT, VERSION, Files, below, epoch, lay, link, pages, read

from oci_hook.cli import completion

HERE = ROOT / "packaging"
HOME = "usr/lib/gpu-hook"
CONTROL = """\
Package: gpu-hook
Version: {version}
Architecture: {architecture}
Maintainer: gpu-hook maintainers <maintainers@gpu-hook.invalid>
Installed-Size: {size}
Depends: runc | crun
Suggests: docker.io | docker-ce | containerd | containerd.io | podman | cri-o
Section: admin
Priority: optional
Description: share one NVIDIA GPU among containers by annotations
 Puts an OCI runtime in front of runc, or an OCI hook beside it. Containers that
 ask by annotations get their share of a GPU: device nodes, driver files, and a
 memory limit that holds. No change to images, no device plugin.
"""


def build(out: Path, arch: str) -> Path:
    """OUT/gpu-hook_VERSION_ARCHITECTURE.deb; the same bytes for the same sources and SOURCE_DATE_EPOCH."""
    scripts = {f"DEBIAN/{name}": read(HERE / "deb" / name, 0o755) for name in ("postinst", "prerm", "postrm")}
    conffiles = {"DEBIAN/conffiles": (b"/etc/default/gpu-hook\n", 0o644)}
    return pack(out, arch, CONTROL, contents(arch), {**scripts, **conffiles})


def pack(out: Path, arch: str, control: str, files: Files, own: Files) -> Path:
    """The package that `control` describes, with these files and these of dpkg's own."""
    architecture = ARCHITECTURES[arch]
    size = sum(len(data) for data, _ in files.values())
    control = control.format(version=VERSION, architecture=architecture, size=-(-size // 1024))
    files = {**files, **own, "DEBIAN/control": (control.encode(), 0o644)}
    name = control.partition("\n")[0].removeprefix("Package: ")
    target = out / f"{name}_{VERSION}_{architecture}.deb"
    with tempfile.TemporaryDirectory() as folder:
        lay(Path(folder), files)
        command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", folder, str(target)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch())}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return target


def contents(arch: str) -> Files:
    """All files except dpkg's own."""
    files = below(HOME, tarball.contents(arch))
    for name in ("gpu-hook", "kubectl-gpu_hook"):  # the second is what kubectl takes for `kubectl gpu-hook`
        files[f"usr/bin/{name}"] = link("../lib/gpu-hook/gpu-hook")
    files["etc/default/gpu-hook"] = read(HERE / "deb/default")
    for unit in ("gpu-hook-inventory.service", "gpu-hook-agent.service"):
        files[f"usr/lib/systemd/system/{unit}"] = read(HERE / "systemd" / unit)
    for name, text in man.pages().items():
        files[f"usr/share/man/man{name[-1]}/{name}.gz"] = (gzip.compress(text.encode(), mtime=0), 0o644)
    completions = {
        "bash": "bash-completion/completions/gpu-hook",
        "zsh": "zsh/vendor-completions/_gpu-hook",
        "fish": "fish/vendor_completions.d/gpu-hook.fish",
    }
    for shell, place in completions.items():
        files[f"usr/share/{place}"] = (completion.script(shell).encode(), 0o644)
    files["usr/share/doc/gpu-hook/copyright"] = read(HERE / "deb/copyright")
    top = (ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CHANGELOG", "SECURITY"))
    used = ("docs/**/*.md", "docs/*.svg", "docs/grafana/*", "runtime-config/**/*.*", "packaging/kubernetes/*")
    used += ("packaging/kubernetes-account/*",)
    found = (path for pattern in used for path in sorted(ROOT.glob(pattern)) if path.is_file())
    files |= below("usr/share/doc/gpu-hook", pages(ROOT, (*top, *found)))
    return files
