"""Finds the cluster to talk to and the credentials for it: kubeconfig files, in-cluster service accounts."""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.kube.connection.credentials import (
    Anonymous,
    BasicAuth,
    Credentials,
    ExecPlugin,
    ExecPluginSpec,
    StaticToken,
    TokenFile,
)
from muster.kube.connection.kubeconfig import is_there, read_kubeconfigs
from muster.kube.connection.kubeconfigentries import ClusterEntry, ContextEntry, ExecEntry, UserEntry, find_entry
from muster.kube.errors import ConfigError

SERVICE_ACCOUNT_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"
SERVICE_ACCOUNT_DIR_VARIABLE = "MUSTER_SERVICE_ACCOUNT_DIR"


@dataclass(frozen=True)
class ClusterConfig:
    """The address of one API server and the credentials for it. Keys and tokens never show in its repr.

    Attributes:
        server: URL, such as `https://10.0.0.1:6443`.
        ca_data: trusted certificate authorities, PEM; empty: those of the system.
        client_certificate: PEM, with `client_key`; empty if the user has none.
        credentials: gives the Authorization header of each request.
        namespace: default namespace of the context.
        context: name of the kubeconfig context, "" when there is none.
        tls_server_name: expected name in the server's certificate, if it differs from the host in `server`.
        proxy_url: HTTP proxy, "" for none.
    """

    server: str
    ca_data: bytes = field(default=b"", repr=False)
    client_certificate: bytes = field(default=b"", repr=False)
    client_key: bytes = field(default=b"", repr=False)
    credentials: Credentials = field(default_factory=Anonymous)
    namespace: str = "default"
    context: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""

    def ssl_context(self, certificate: bytes = b"", key: bytes = b"") -> ssl.SSLContext | None:
        """Make the TLS context with the given or the configured client certificate; None for plain HTTP.

        Raises:
            ConfigError: a certificate or key cannot be read.
        """
        if not self.server.startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cadata=self.ca_data.decode() if self.ca_data else None)
            if self.insecure_skip_tls_verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            certificate, key = (certificate, key) if certificate else (self.client_certificate, self.client_key)
            if certificate:
                _load_cert_chain(context, certificate, key)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"the certificates for {self.server} cannot be used: {error}") from error
        return context


def load_config(kubeconfig: str | os.PathLike[str] | None = None, context: str | None = None) -> ClusterConfig:
    """Find the cluster: `kubeconfig`, else KUBECONFIG, else ~/.kube/config, else the pod's service account.

    Args:
        kubeconfig: path of a kubeconfig file.
        context: context in it; its current one by default.

    Raises:
        ConfigError: no cluster is configured, or the configuration is not valid. The message says what to change.
    """
    if kubeconfig is not None:
        return from_kubeconfig([Path(kubeconfig).expanduser()], context)
    variable = os.environ.get("KUBECONFIG", "")
    if variable:
        present = [path for path in kubeconfig_files() if is_there(path)]
        if not present:
            raise ConfigError(f"KUBECONFIG names no file that exists ({variable}); correct or unset it")
        return from_kubeconfig(present, context)
    default = home_folder() / ".kube" / "config"
    if is_there(default):
        return from_kubeconfig([default], context)
    folder = Path(os.environ.get(SERVICE_ACCOUNT_DIR_VARIABLE, SERVICE_ACCOUNT_DIR))
    if (folder / "token").exists() and context is None:
        return in_cluster(folder)
    raise ConfigError(
        f"no cluster found: set KUBECONFIG, pass --kubeconfig, or create {default}; "
        "'muster up' starts an embedded cluster"
    )


def kubeconfig_files() -> list[Path]:
    """Return the files that KUBECONFIG lists, else ~/.kube/config; they need not exist. Raises ConfigError."""
    try:
        listed = [Path(part).expanduser() for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    except RuntimeError as error:
        raise ConfigError(f"KUBECONFIG cannot be read: {error}") from None
    return listed or [home_folder() / ".kube" / "config"]


def home_folder() -> Path:
    """Return the user's home folder. Raises ConfigError where the user has none."""
    try:
        return Path.home()
    except RuntimeError:
        raise ConfigError("this user has no home folder: set HOME to a folder") from None


def in_cluster(folder: Path | None = None) -> ClusterConfig:
    """Use the service account of the pod this process runs in. Raises ConfigError outside of one."""
    folder = folder or Path(os.environ.get(SERVICE_ACCOUNT_DIR_VARIABLE, SERVICE_ACCOUNT_DIR))
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError("not in a pod: KUBERNETES_SERVICE_HOST is not set; pass a kubeconfig instead")
    token = TokenFile(folder / "token")
    token.read()
    namespace_file, ca_file = folder / "namespace", folder / "ca.crt"
    return ClusterConfig(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        ca_data=_read(ca_file, "the cluster's authority") if ca_file.exists() else b"",
        credentials=token,
        namespace=namespace_file.read_text().strip() if namespace_file.exists() else "default",
    )


def from_kubeconfig(paths: list[Path], context: str | None = None) -> ClusterConfig:
    """Read one or several kubeconfig files. If entries have the same name, the first counts, as in kubectl."""
    where = os.pathsep.join(map(str, paths))
    merged = read_kubeconfigs(paths)
    name = context or merged["current-context"]
    known = sorted(entry["name"] for entry in merged["contexts"])
    if not name:
        raise ConfigError(f"{where} has no current-context; choose one of {_names(known)} with --context")
    if name not in known:
        raise ConfigError(f"context {name!r} is not in {where}; it has {_names(known)}")
    chosen = find_entry(merged["contexts"], name, "context", ContextEntry, where)
    of = f"{where}: context {name!r}"
    cluster = find_entry(merged["clusters"], chosen.cluster, "cluster", ClusterEntry, of)
    user = find_entry(merged["users"], chosen.user, "user", UserEntry, of) if chosen.user else UserEntry()
    certificate = _data_or_file(user.client_certificate_data, user.client_certificate, "client certificate")
    key = _data_or_file(user.client_key_data, user.client_key, "client key")
    if bool(certificate) != bool(key):
        raise ConfigError(f"{where}: the user of context {name!r} needs both a client certificate and a key")
    ca_data = _data_or_file(cluster.certificate_authority_data, cluster.certificate_authority, "certificate authority")
    config = ClusterConfig(
        server=cluster.server.rstrip("/"),
        ca_data=ca_data,
        client_certificate=certificate,
        client_key=key,
        namespace=chosen.namespace or "default",
        context=name,
        insecure_skip_tls_verify=cluster.insecure_skip_tls_verify,
        tls_server_name=cluster.tls_server_name or "",
        proxy_url=cluster.proxy_url or "",
        credentials=_credentials(user, cluster, ca_data, where),
    )
    if not config.server.startswith(("https://", "http://")):
        raise ConfigError(f"{where}: server {config.server!r} must start with https:// or http://")
    return config


def _credentials(user: UserEntry, cluster: ClusterEntry, ca_data: bytes, where: str) -> Credentials:
    if user.token_file:
        return TokenFile(Path(user.token_file))
    if user.token:
        return StaticToken(user.token)
    if user.exec is not None:
        return _plugin(user.exec, cluster, ca_data)
    if user.username and user.password:
        return BasicAuth(user.username, user.password)
    if user.auth_provider:
        raise ConfigError(f"{where}: auth-provider is no longer part of Kubernetes; use an exec credential plugin")
    return Anonymous()


def _plugin(entry: ExecEntry, cluster: ClusterEntry, ca_data: bytes) -> ExecPlugin:
    info: dict[str, Any] | None = None
    if entry.provide_cluster_info:
        info = {"server": cluster.server}
        if ca_data:
            info["certificate-authority-data"] = base64.b64encode(ca_data).decode()
        if cluster.insecure_skip_tls_verify:
            info["insecure-skip-tls-verify"] = True
        for key, value in (("tls-server-name", cluster.tls_server_name), ("proxy-url", cluster.proxy_url)):
            if value:
                info[key] = value
        for extension in cluster.extensions or ():
            if extension.name == "client.authentication.k8s.io/exec":
                info["config"] = extension.extension
    return ExecPlugin(
        ExecPluginSpec(
            api_version=entry.api_version,
            command=entry.command,
            args=entry.args or (),
            env={variable.name: variable.value for variable in entry.env or ()},
            install_hint=entry.install_hint or "",
            interactive=entry.interactive_mode == "Always",
            cluster=info,
        )
    )


def _names(names: list[str]) -> str:
    return ", ".join(names) if names else "no contexts"


def _data_or_file(data: str | None, file: str | None, what: str) -> bytes:
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except ValueError:
            raise ConfigError(f"the {what} in the kubeconfig is not base64") from None
    return _read(Path(file), f"the {what}") if file else b""


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be read: {error.strerror}") from error


def _load_cert_chain(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a certificate and key from memory.

    The ssl module reads files only, so this uses a private temporary file.
    """
    with tempfile.NamedTemporaryFile(prefix="muster-", suffix=".pem") as file:
        file.write(certificate.rstrip() + b"\n" + key)
        file.flush()
        context.load_cert_chain(file.name)
