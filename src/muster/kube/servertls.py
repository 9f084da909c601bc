"""The server's TLS context: its certificate, and the authorities whose client certificates it asks for."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from muster.kube.connection.authorities import authorities_der
from muster.kube.connection.pki import KeyPair
from muster.kube.connection.servingcertificates import load_pair
from muster.kube.rotatedfiles import RotatedFiles

RELOAD_S: Final = 30.0
"""How often the certificate's files are read; cert-manager and kubelets replace them."""
_CERTIFICATE: Final = "certificate"
_KEY: Final = "key"


class ServerTLS:
    """A TLS context. A certificate in files is loaded again when they change. Open connections stay as they are.

    Nothing can be removed from a context. With an older authority of the same name in it, OpenSSL may verify a
    certificate with the key of that one, and fail. An older certificate whose key has another type would be served
    further. So each handshake gets the newest of several contexts.

    Args:
        files: PEM files with the certificate and its chain, and with the key. None if other code calls `use`
            (SecretCertificate).

    Raises:
        ConfigError: the files cannot be used.

    Attributes:
        context: for the server.
    """

    def __init__(self, files: tuple[Path, Path] | None) -> None:
        self.context = self._newest = _empty_context()
        self.context.sni_callback = self._choose
        self._pair: KeyPair | None = None
        self._authorities = b""
        self._files: RotatedFiles[KeyPair] | None = None
        if files is not None:
            names = dict(zip((_CERTIFICATE, _KEY), files, strict=True))
            self._files = RotatedFiles(f"the certificate in {files[0]}", names, _pair, RELOAD_S)
            self.use(self._files.value)

    def use(self, pair: KeyPair) -> None:
        """Serve new connections with this certificate. Raises ValueError if it cannot be used; the last one stays."""
        self._install(pair, self._authorities)

    def trust(self, pem: bytes) -> None:
        """Ask clients of new connections for a certificate of these authorities only.

        Without any, those of the last call stay: OpenSSL would not ask, and ClientAuthorities decides in any case
        which certificates count.

        Raises:
            ValueError: there is text, but not a certificate in PEM form, or it ends within one.
        """
        if not pem.strip():
            return
        self._install(self._pair, authorities_der(pem))

    def _install(self, pair: KeyPair | None, authorities: bytes) -> None:
        newest = _empty_context()
        if pair is not None:
            load_pair(newest, pair)
        if authorities:
            newest.load_verify_locations(cadata=authorities)
            # OpenSSL takes the certificate and the authorities from the chosen context, and this from the first one.
            self.context.verify_mode = newest.verify_mode = ssl.CERT_OPTIONAL
        self._newest, self._pair, self._authorities = newest, pair, authorities

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._newest

    async def run(self) -> None:
        """Load the files again whenever they change, until cancelled. Files that cannot be used are reported."""
        if self._files is None:
            await asyncio.Event().wait()
        else:
            await self._files.run(self.use)


def _pair(content: Mapping[str, bytes]) -> KeyPair:
    """Return the certificate and its key. Raises ValueError if they cannot be used."""
    pair = KeyPair(content[_CERTIFICATE], content[_KEY])
    load_pair(_empty_context(), pair)
    return pair


def _empty_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
