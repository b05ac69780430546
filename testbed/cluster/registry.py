"""A registry in which every name is the probe image, so that manifests with `image: nginx` run without a network.

registry.py IMAGES.tar ADDRESS PORT
"""

import json
import sys
import tarfile
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KIND = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar"
blobs: dict[str, bytes] = {}


def keep(data: bytes, kind: str) -> dict[str, Any]:
    digest = "sha256:" + sha256(data).hexdigest()
    blobs[digest] = data
    return {"mediaType": kind, "size": len(data), "digest": digest}


def load(archive: str) -> str:
    """The digest of the probe image's manifest."""
    with tarfile.open(archive) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    probe = next(entry for entry in json.loads(files["manifest.json"]) if "probe" in entry["RepoTags"][0])
    config, layer = keep(files[probe["Config"]], CONFIG), keep(files["layer.tar"], LAYER)
    manifest = {"schemaVersion": 2, "mediaType": KIND, "config": config, "layers": [layer]}
    digest: str = keep(json.dumps(manifest).encode(), KIND)["digest"]
    return digest


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """/v2/, /v2/NAME/manifests/TAG-OR-DIGEST, /v2/NAME/blobs/DIGEST"""
        *_, kind, reference = ("", *self.path.partition("?")[0].split("/"))
        digest = probe if kind == "manifests" and not reference.startswith("sha256:") else reference
        body = b"{}" if self.path == "/v2/" else blobs.get(digest)
        self.send_response(404 if body is None else 200)
        body = body or b""
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", KIND if kind == "manifests" else "application/octet-stream")
        self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET


probe = load(sys.argv[1])
ThreadingHTTPServer((sys.argv[2], int(sys.argv[3])), Handler).serve_forever()
