"""The image that installs gpu-hook onto the machine on which it runs: a static busybox, the package, and image/install.

It is built without an engine: an archive that is both an OCI layout and an archive for `docker load`.
"""

import gzip
import json
import os
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path

import busybox
import tarball
from interpreter import ARCHITECTURES
from payload import REGISTRY, ROOT, VERSION, Files, archive, below, commit, epoch, link, read

NAME = f"{REGISTRY}/gpu-hook/install:{VERSION}"
APPLETS = ("sh", "chroot", "cp", "env", "grep", "kill", "mkdir", "mv", "printf", "rm", "sed", "sleep", "test")


def build(out: Path, arch: str) -> Path:
    """OUT/gpu-hook-install_VERSION_ARCHITECTURE.tar; the same bytes for the same sources and SOURCE_DATE_EPOCH."""
    layer = archive(contents(arch))
    run = {"Entrypoint": ["/install"], "Env": ["PATH=/bin"], "StopSignal": "SIGTERM"}
    return write(out, NAME, ARCHITECTURES[arch], layer, run, "scripts/package image")


def write(out: Path, name: str, architecture: str, layer: bytes, run: dict[str, object], by: str) -> Path:
    """The archive of an image of one layer. run: what the image says about how it is run. by: the command that built it."""
    packed = gzip.compress(layer, mtime=0)
    made = datetime.fromtimestamp(epoch(), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    says = {"title": name.rpartition(":")[0].partition("/")[2], "version": VERSION, "revision": commit()}
    says |= {"created": made, "licenses": "Apache-2.0", "description": f"gpu-hook, made by {by}"}
    labels = {f"org.opencontainers.image.{key}": text for key, text in says.items() if text}
    config = document(
        {
            "architecture": architecture,
            "os": "linux",
            "created": made,
            "config": {**run, "Labels": labels},
            "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
            "history": [{"created_by": by}],
        }
    )
    kind = "application/vnd.oci.image"
    manifest = document(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": described(f"{kind}.config.v1+json", config),
            "layers": [described(f"{kind}.layer.v1.tar+gzip", packed)],
            "annotations": labels,
        }
    )
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": VERSION}
    entry = {
        **described(f"{kind}.manifest.v1+json", manifest),
        "platform": {"architecture": architecture, "os": "linux"},
        "annotations": names,
    }
    files = {blob(data): (data, 0o644) for data in (packed, config, manifest)}
    files["oci-layout"] = (document({"imageLayoutVersion": "1.0.0"}), 0o644)
    index = {"schemaVersion": 2, "mediaType": f"{kind}.index.v1+json", "manifests": [entry]}
    files["index.json"] = (document(index), 0o644)
    docker = [{"Config": blob(config), "RepoTags": [name], "Layers": [blob(packed)]}]
    files["manifest.json"] = (document(docker), 0o644)
    target = (
        out / f"{name.partition(':')[0].removeprefix(f'{REGISTRY}/').replace('/', '-')}_{VERSION}_{architecture}.tar"
    )
    target.write_bytes(archive(files))
    return target


def contents(arch: str) -> Files:
    files = below("gpu-hook", tarball.contents(arch))
    files["install"] = read(ROOT / "packaging/image/install", 0o755)
    files |= {f"bin/{name}": link("busybox") for name in APPLETS}
    return {**files, **busybox.files(arch, ARCHITECTURES[arch])}


def document(data: object) -> bytes:
    return json.dumps(data, indent=1).encode()


def digest(data: bytes) -> str:
    return f"sha256:{sha256(data).hexdigest()}"


def blob(data: bytes) -> str:
    return os.path.join("blobs", *digest(data).split(":"))


def described(kind: str, data: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": digest(data), "size": len(data)}
