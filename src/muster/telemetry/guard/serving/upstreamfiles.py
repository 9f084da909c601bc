"""The files of `upstream`: the guard's token for Prometheus, and the certificates of its connections."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muster.kube.connection.authorities import authorities_der
from muster.kube.connection.credentials import bearer
from muster.kube.connection.pki import KeyPair
from muster.kube.connection.servingcertificates import load_pair
from muster.kube.rotatedfiles import RotatedFiles
from muster.telemetry.guard.upstream import UpstreamConfig

READ_S: Final = 2.0
"""How often the files are read. A kubelet replaces a token after 80% of its life, and updates files of a Secret within
about a minute."""
TOKEN: Final = "token"
CERTIFICATES: Final = "certificates"
_TOKEN_FILE: Final = "upstream.tokenFile"
_CA_FILE: Final = "upstream.caFile"
_CERTIFICATE_FILE: Final = "upstream.certificateFile"
_KEY_FILE: Final = "upstream.keyFile"


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of files.

    Attributes:
        problem: whether their content cannot be used, and older content is in use.
        reloads: how often new content came into use.
    """

    problem: bool = False
    reloads: int = 0


class UpstreamFiles:
    """The files of `upstream`, which are read again when they change. Requests use the last good content.

    Args:
        config: the section `upstream`.

    Raises:
        ConfigError: the token or a certificate cannot be used.

    Attributes:
        context: of TLS when the guard starts; None for plain HTTP.
    """

    def __init__(self, config: UpstreamConfig) -> None:
        self._token: RotatedFiles[str] | None = None
        self._certificates: RotatedFiles[ssl.SSLContext] | None = None
        self.context: ssl.SSLContext | None = None
        if config.token_file:
            files = {_TOKEN_FILE: Path(config.token_file)}
            self._token = RotatedFiles(f"the token in {config.token_file}", files, _authorization, READ_S)
        names = {_CA_FILE: config.ca_file, _CERTIFICATE_FILE: config.certificate_file, _KEY_FILE: config.key_file}
        files = {field: Path(name) for field, name in names.items() if name}
        if files:
            self._certificates = RotatedFiles("the certificates of upstream", files, _context, READ_S)
            self.context = self._certificates.value
        elif config.url.startswith("https://"):
            self.context = ssl.create_default_context()

    @property
    def authorization(self) -> str:
        """The Authorization header of the guard; "" without a token."""
        return self._token.value if self._token is not None else ""

    @property
    def state(self) -> Mapping[str, FileState]:
        """State of the files, by `TOKEN` and `CERTIFICATES`."""
        followed = {TOKEN: self._token, CERTIFICATES: self._certificates}
        return {
            kind: FileState(bool(each.problem), each.reloads) if each is not None else FileState()
            for kind, each in followed.items()
        }

    def follow(self, connect: Callable[[ssl.SSLContext], None]) -> list[Coroutine[Any, Any, None]]:
        """Return the work that reads the files again until cancelled.

        Args:
            connect: uses a new context for new connections.
        """
        work = []
        if self._token is not None:
            work.append(self._token.run(lambda _: None))  # each request reads `authorization`
        if self._certificates is not None:
            work.append(self._certificates.run(connect))
        return work


def _authorization(content: Mapping[str, bytes]) -> str:
    return bearer(content[_TOKEN_FILE])


def _context(content: Mapping[str, bytes]) -> ssl.SSLContext:
    """Make the context of connections. Raises ValueError and SSLError."""
    authorities = content.get(_CA_FILE)
    context = ssl.create_default_context(cadata=authorities_der(authorities) if authorities is not None else None)
    if _CERTIFICATE_FILE in content:
        load_pair(context, KeyPair(content[_CERTIFICATE_FILE], content[_KEY_FILE]))
    return context
