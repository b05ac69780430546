"""The images of a cluster, as `docker save` writes them: pause, and a probe with a C library and gpu-probe."""

import io
import json
import shutil
import tarfile
import tempfile
from hashlib import sha256
from pathlib import Path

from testbed import REPO, tiny_image
from testbed.cluster.node import PAUSE
from testbed.cluster.programs import CannotRun

PROBE = "your-registry.invalid/gpu-hook/probe:1"
APPLETS = ("date", "hostname", "id", "ip", "kill", "mkdir", "nc", "ps", "seq", "tail", "test", "trap", "wget")


def make(archive: Path) -> None:
    probe = REPO / "build" / tiny_image.ARCH / "sim/gpu-probe"
    if not probe.exists():
        raise CannotRun(f"{probe} is missing; run scripts/build")
    with tempfile.TemporaryDirectory() as scratch:
        root = tiny_image.with_c_library(Path(scratch) / "root")
        shutil.copy(probe, root / "bin/gpu-probe")
        for applet in APPLETS:
            if not (root / "bin" / applet).exists():
                (root / "bin" / applet).symlink_to("busybox")
        (root / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            tar.add(root, ".")
    _save(archive, layer.getvalue(), {PROBE: ["sleep", "1000000"], PAUSE: ["sleep", "1000000"]})


def _save(archive: Path, layer: bytes, images: dict[str, list[str]]) -> None:
    """One layer, and an image of it for each name with that command."""
    files = {"layer.tar": layer}
    manifest = []
    for name, command in images.items():
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/bin:/usr/bin"], "Cmd": command},
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + sha256(layer).hexdigest()]},
        }
        data = json.dumps(config).encode()
        file = sha256(data).hexdigest() + ".json"
        files[file] = data
        manifest.append({"Config": file, "RepoTags": [name], "Layers": ["layer.tar"]})
    files["manifest.json"] = json.dumps(manifest).encode()
    new = archive.with_suffix(".new")
    with tarfile.open(new, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    new.rename(archive)
