"""Options about etcd's metrics: addresses and certificate files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from muster.cli.errors import BadInput

if TYPE_CHECKING:
    from muster.doctor.etcd.access import EtcdAccess


def etcd_access(urls: tuple[str, ...], ca: Path | None, certificate: Path | None, key: Path | None) -> EtcdAccess:
    """Read the certificate files. Raises BadInput if an address or a file cannot be used."""
    from muster.doctor.etcd.access import EtcdAccess, base_url
    from muster.kube.errors import ConfigError

    if not urls and (ca or certificate or key):
        raise BadInput("certificates for etcd without its address have no effect", "add --etcd-metrics URL")
    if bool(certificate) != bool(key):
        raise BadInput("a client certificate and its key belong together", "give both --etcd-cert and --etcd-key")
    try:
        access = EtcdAccess(
            tuple(dict.fromkeys(map(base_url, urls))),
            ca.read_bytes() if ca else b"",
            certificate.read_bytes() if certificate else b"",
            key.read_bytes() if key else b"",
        )
        for url in access.urls:
            access.config(url).ssl_context()
    except OSError as error:
        raise BadInput(f"{error.filename}: {error.strerror}", "check the paths of etcd's certificates") from error
    except (ValueError, ConfigError) as error:
        raise BadInput(str(error)) from error
    return access
