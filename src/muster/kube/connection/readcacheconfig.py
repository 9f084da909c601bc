"""The connection to a read cache that stands before the API server of a configuration."""

from __future__ import annotations

import dataclasses
import ipaddress
from pathlib import Path
from urllib.parse import urlsplit

from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.credentials import Anonymous
from muster.kube.errors import ConfigError


def read_cache_config(config: ClusterConfig, url: str, ca_file: Path | None = None) -> ClusterConfig:
    """Return the configuration for requests to a read cache, with the same credentials.

    Args:
        config: the cluster.
        url: address of the cache.
        ca_file: certificate authorities of the cache, PEM. Without it, or while the file is missing: those of the
            cluster. The cache publishes its authorities when it first runs, and until then it is simply away.

    Raises:
        ConfigError: the address or file is not usable, or the credentials are only a client certificate.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise ConfigError(f"--read-cache: {url!r} is not a URL; write it as https://HOST:PORT")
    if parts.scheme == "http" and not _is_this_machine(parts.hostname):
        raise ConfigError(f"--read-cache: {url} would send tokens without TLS to another machine; use https://")
    if config.client_certificate and isinstance(config.credentials, Anonymous):
        raise ConfigError(
            "--read-cache: a read cache cannot pass on a client certificate; use a kubeconfig with a token"
        )
    try:
        ca_data = ca_file.read_bytes() if ca_file is not None else config.ca_data
    except FileNotFoundError:
        ca_data = config.ca_data
    except OSError as error:
        raise ConfigError(f"--read-cache-ca: {ca_file} cannot be read: {error.strerror}") from error
    return dataclasses.replace(config, server=url.rstrip("/"), ca_data=ca_data, tls_server_name="", proxy_url="")


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
