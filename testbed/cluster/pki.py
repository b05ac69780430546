"""Keys and certificates of a cluster, by openssl, and kubeconfig files for them."""

import json
import subprocess
from pathlib import Path

API = "10.99.0.1"  # kube-apiserver's address in the cluster
SERVICE = "10.96.0.1"  # the Service `kubernetes`
NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
ADMIN = "/O=system:masters/CN=admin"


class Keys:
    """The folder with the cluster's authority and what it signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        if not (self.folder / "ca.crt").exists():
            key, certificate = self.pair("ca")
            _openssl(
                *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650"),
                *("-keyout", key, "-out", certificate, "-subj", "/CN=gpu-hook-cluster"),
            )
            _openssl("genrsa", "-out", str(self.folder / "sa.key"), "2048")
        addresses = ",".join([*(f"IP:{a}" for a in (API, SERVICE, "127.0.0.1")), *(f"DNS:{n}" for n in NAMES)])
        self.certificate("apiserver", "/CN=kube-apiserver", addresses)
        self.kubeconfig("admin", ADMIN)
        for name in ("scheduler", "controller-manager"):
            self.kubeconfig(name, f"/CN=system:kube-{name}")

    def pair(self, name: str) -> tuple[str, str]:
        return str(self.folder / f"{name}.key"), str(self.folder / f"{name}.crt")

    def certificate(self, name: str, subject: str, names: str = "") -> None:
        key, certificate = self.pair(name)
        if Path(certificate).exists():
            return
        request = self.folder / f"{name}.csr"
        _openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", str(request), "-subj", subject)
        extensions = self.folder / f"{name}.ext"
        alternatives = f"subjectAltName={names}\n" if names else ""
        extensions.write_text(f"extendedKeyUsage=clientAuth,serverAuth\n{alternatives}")
        ca_key, ca = self.pair("ca")
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", ca, "-CAkey", ca_key, "-CAcreateserial"),
            *("-days", "3650", "-out", certificate, "-extfile", str(extensions)),
        )

    def kubeconfig(self, name: str, subject: str) -> Path:
        """A kubeconfig of that subject: /O=GROUP/CN=USER."""
        path = self.folder / f"{name}.conf"
        if not path.exists():
            self.certificate(name, subject)
            key, certificate = self.pair(name)
            cluster = {"server": f"https://{API}", "certificate-authority": str(self.folder / "ca.crt")}
            user = {"client-certificate": certificate, "client-key": key}
            document = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "cluster", "cluster": cluster}],
                "users": [{"name": name, "user": user}],
                "contexts": [{"name": name, "context": {"cluster": "cluster", "user": name}}],
                "current-context": name,
            }
            path.write_text(json.dumps(document, indent=1) + "\n")
        return path


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"openssl {arguments[0]}: {done.stderr.strip()[-500:]}")
