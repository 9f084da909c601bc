"""Credentials for the API server: tokens, rotated token files, exec plugins.

The exec protocol is client.authentication.k8s.io, documented at
https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from muster.kube.errors import ConfigError
from muster.kube.objects.struct import KubeStruct, decode
from muster.kube.regularfile import read_regular

TOKEN_FILE_MAX_AGE_S = 60.0
"""A token file is read again after this time. Kubelets rotate tokens long before they expire."""
EXEC_TIMEOUT_S = 60.0
EXEC_API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_EXPIRY_MARGIN_S = 10.0
_TOKEN: Final = re.compile(rb"[ -~]+")


@dataclass(frozen=True)
class ClientCertificate:
    """A certificate and key that a plugin gave, PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


class Credentials(Protocol):
    """Provides the credentials of requests. Implementations never show secrets in their repr."""

    async def authorization(self) -> str:
        """Return the Authorization header, or "" without one. Raises ConfigError if credentials cannot be obtained."""

    def invalidate(self, rejected: str) -> bool:
        """Record that the server answered 401 to the header `rejected`.

        Returns whether another header may now be available.
        """

    def client_certificate(self) -> ClientCertificate | None:
        """Return the client certificate, if these credentials have one."""


class Anonymous:
    """Credentials without a header: for client certificates, or for anonymous requests."""

    async def authorization(self) -> str:
        """Return ""."""
        return ""

    def invalidate(self, rejected: str) -> bool:
        """Return False: there is no other header."""
        return False

    def client_certificate(self) -> ClientCertificate | None:
        """Return None."""
        return None

    def __repr__(self) -> str:
        return "Anonymous()"


class StaticToken(Anonymous):
    """A bearer token that never changes."""

    def __init__(self, token: str) -> None:
        self._header = f"Bearer {token}"

    async def authorization(self) -> str:
        """Return the bearer header."""
        return self._header

    def __repr__(self) -> str:
        return "StaticToken(...)"


class BasicAuth(Anonymous):
    """User name and password, for proxies in front of an API server."""

    def __init__(self, username: str, password: str) -> None:
        self._header = "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()

    async def authorization(self) -> str:
        """Return the basic header."""
        return self._header

    def __repr__(self) -> str:
        return "BasicAuth(...)"


def bearer(content: bytes) -> str:
    """Return the Authorization header with the token that a file has.

    Raises:
        ValueError: the content is empty, or is not a line of printable ASCII characters. The text does not quote it.
    """
    token = content.strip()
    if not token:
        raise ValueError("it is empty")
    if not _TOKEN.fullmatch(token):
        raise ValueError("it is not a token, which has only printable ASCII characters")
    return f"Bearer {token.decode()}"


class TokenFile(Anonymous):
    """A bearer token in a file that is rotated: read again every minute, and after a 401."""

    def __init__(self, path: Path, *, max_age_s: float = TOKEN_FILE_MAX_AGE_S) -> None:
        self._path = path
        self._max_age_s = max_age_s
        self._header = ""
        self._read_at = float("-inf")

    def read(self) -> str:
        """Read the file. Raises ConfigError if it cannot be read, or is not a token."""
        content = read_regular(self._path, "token file")
        try:
            self._header, self._read_at = bearer(content), time.monotonic()
        except ValueError as error:
            raise ConfigError(f"token file {self._path}: {error}") from None
        return self._header

    async def authorization(self) -> str:
        """Return the bearer header. If the file cannot be read, return the last token."""
        if time.monotonic() - self._read_at < self._max_age_s:
            return self._header
        try:
            return self.read()
        except ConfigError:
            if not self._header:
                raise
            return self._header

    def invalidate(self, rejected: str) -> bool:
        """Read the file again. Returns whether it has another token than the rejected one."""
        self._read_at = float("-inf")
        with contextlib.suppress(ConfigError):
            return self.read() != rejected
        return False

    def __repr__(self) -> str:
        return f"TokenFile({str(self._path)!r})"


@dataclass(frozen=True)
class ExecPluginSpec:
    """The command of a credential plugin; `cluster` is passed to it if it asks for provideClusterInfo."""

    api_version: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    install_hint: str = ""
    interactive: bool = False
    cluster: Mapping[str, Any] | None = field(default=None, repr=False)


class _ExecStatus(KubeStruct):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(KubeStruct):
    api_version: str = ""
    kind: str = ""
    status: _ExecStatus | None = None


class ExecPlugin:
    """Runs a plugin for a token or certificate, and caches the answer until it expires or the server rejects it."""

    def __init__(self, spec: ExecPluginSpec, *, timeout_s: float = EXEC_TIMEOUT_S) -> None:
        self._spec = spec
        self._timeout_s = timeout_s
        self._header: str | None = None
        self._certificate: ClientCertificate | None = None
        self._expires_at: float | None = None
        self._lock: asyncio.Lock | None = None

    async def authorization(self) -> str:
        """Return the bearer header, or "" for a certificate. Runs the plugin if there is no valid answer."""
        if self._fresh():
            return self._header or ""
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if not self._fresh():
                self._take(await self._run())
        return self._header or ""

    def invalidate(self, rejected: str) -> bool:
        """Run the plugin again at the next request, unless it has run since the rejected answer."""
        if self._header == rejected:
            self._header = None
        return True

    def client_certificate(self) -> ClientCertificate | None:
        """Return the last certificate of the plugin."""
        return self._certificate

    def __repr__(self) -> str:
        return f"ExecPlugin({self._spec.command!r})"

    def _fresh(self) -> bool:
        return self._header is not None and (
            self._expires_at is None or time.time() < self._expires_at - _EXPIRY_MARGIN_S
        )

    def _take(self, status: _ExecStatus) -> None:
        self._header = f"Bearer {status.token}" if status.token else ""
        self._certificate = (
            ClientCertificate(status.client_certificate_data.encode(), status.client_key_data.encode())
            if status.client_certificate_data and status.client_key_data
            else None
        )
        self._expires_at = status.expiration_timestamp.timestamp() if status.expiration_timestamp else None

    async def _run(self) -> _ExecStatus:
        spec = self._spec
        if spec.api_version not in EXEC_API_VERSIONS:
            raise ConfigError(
                f"credential plugin {spec.command!r} uses {spec.api_version!r}; update it to one of {EXEC_API_VERSIONS}"
            )
        if spec.interactive:
            raise ConfigError(f"credential plugin {spec.command!r} needs a terminal (interactiveMode: Always)")
        info: dict[str, Any] = {"interactive": False}
        if spec.cluster is not None:
            info["cluster"] = dict(spec.cluster)
        document = {"apiVersion": spec.api_version, "kind": "ExecCredential", "spec": info}
        environment = {**os.environ, **spec.env, "KUBERNETES_EXEC_INFO": json.dumps(document)}
        try:
            process = await asyncio.create_subprocess_exec(
                spec.command,
                *spec.args,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            hint = f"\n{spec.install_hint.strip()}" if spec.install_hint else ""
            raise ConfigError(f"credential plugin {spec.command!r} cannot be run: {error.strerror}{hint}") from error
        try:
            async with asyncio.timeout(self._timeout_s):
                output, errors = await process.communicate()
        except TimeoutError:
            raise ConfigError(
                f"credential plugin {spec.command!r} did not answer within {self._timeout_s:.0f} s"
            ) from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                await process.wait()
        if process.returncode:
            said = errors.decode("utf-8", "replace").strip()[-2000:]
            raise ConfigError(f"credential plugin {spec.command!r} failed with exit code {process.returncode}: {said}")
        return self._parse(output)

    def _parse(self, output: bytes) -> _ExecStatus:
        command = self._spec.command
        try:
            answer = decode(output, _ExecCredential)
        except msgspec.DecodeError:  # the error's text could contain the token
            raise ConfigError(f"credential plugin {command!r} did not print an ExecCredential") from None
        if answer.kind != "ExecCredential" or answer.api_version != self._spec.api_version:
            raise ConfigError(
                f"credential plugin {command!r} printed {answer.api_version} {answer.kind}, "
                f"not {self._spec.api_version} ExecCredential"
            )
        status = answer.status
        if status is None or not (status.token or (status.client_certificate_data and status.client_key_data)):
            raise ConfigError(
                f"credential plugin {command!r} gave neither a token nor a client certificate with its key"
            )
        return status
