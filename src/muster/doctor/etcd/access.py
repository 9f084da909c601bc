"""Where etcd's metrics are, and the certificates for them."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from muster.kube.connection.config import ClusterConfig


class EtcdAccess(msgspec.Struct, frozen=True):
    """The user's options about etcd.

    Attributes:
        urls: address of each member that is read, without a path.
        ca: trusted authorities, PEM; empty: those of the system.
        certificate: client certificate, PEM; empty for none.
        key: its key, PEM.
    """

    urls: tuple[str, ...] = ()
    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = b""

    def config(self, url: str) -> ClusterConfig:
        """Return how to connect to one member."""
        return ClusterConfig(url, ca_data=self.ca, client_certificate=self.certificate, client_key=self.key)


def base_url(text: str) -> str:
    """Return an address without the path /metrics. Raises ValueError with what to write."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise ValueError(f"{text!r} is not the address of etcd's metrics: write https://HOST:2379/metrics")
    if parts.path not in ("", "/", "/metrics"):
        raise ValueError(f"{text!r} has the path {parts.path}, and etcd's metrics are at /metrics")
    return f"{parts.scheme}://{parts.netloc}"
