"""The state folder: certificates, tokens and the kubeconfig that lets a client in."""

from __future__ import annotations

import base64
import dataclasses
import secrets
from pathlib import Path

from muster.embedded.objects import encode
from muster.kube.connection.pki import CertificateAuthority, KeyPair, new_signing_key
from muster.kube.connection.privatefile import write_private


@dataclasses.dataclass(frozen=True)
class StateDir:
    """The files of the state folder. `open` creates the missing ones."""

    folder: Path
    certificate: Path
    key: Path
    ca: Path
    admin_token: str
    kubelet_token: str
    signing_key: bytes

    @classmethod
    def open(cls, folder: Path, address: str) -> StateDir:
        """Read the folder, and create the files that are missing."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        ca_path, ca_key = folder / "ca.crt", folder / "ca.key"
        if ca_path.exists() and ca_key.exists():
            authority = CertificateAuthority(KeyPair(ca_path.read_bytes(), ca_key.read_bytes()))
        else:
            authority = CertificateAuthority.create("muster-embedded-ca")
            authority.pair.write(ca_path, ca_key)
        certificate, key = folder / "apiserver.crt", folder / "apiserver.key"
        hosts = ["localhost", "127.0.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        authority.issue_server("apiserver", dict.fromkeys([*hosts, address])).write(certificate, key)
        signing = folder / "service-account.key"
        if not signing.exists():
            write_private(signing, new_signing_key()[0])
        return cls(
            folder,
            certificate,
            key,
            ca_path,
            _token(folder / "admin-token"),
            _token(folder / "kubelet-token"),
            signing.read_bytes(),
        )

    @property
    def last_port(self) -> int:
        """The port of the last run; 0 if there was no earlier run."""
        try:
            return int((self.folder / "port").read_text())
        except (OSError, ValueError):
            return 0

    def remember_port(self, port: int) -> None:
        """Store the port for the next run."""
        (self.folder / "port").write_text(f"{port}\n")

    def write_kubeconfig(self, name: str, server: str) -> Path:
        """Write the administrator's kubeconfig; JSON, which is YAML too."""
        context = f"muster-{name}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": context,
            "clusters": [
                {
                    "name": context,
                    "cluster": {
                        "server": server,
                        "certificate-authority-data": base64.b64encode(self.ca.read_bytes()).decode(),
                    },
                }
            ],
            "users": [{"name": context, "user": {"token": self.admin_token}}],
            "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        }
        path = self.folder / "kubeconfig"
        temporary = self.folder / "kubeconfig.tmp"
        write_private(temporary, encode(config) + b"\n")
        temporary.rename(path)
        return path


def _token(path: Path) -> str:
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32).encode())
    return path.read_text().strip()
