"""Follows the authorities of client certificates, which kube-apiserver publishes in a ConfigMap.

https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/#original-request-username-and-group
describes the ConfigMap. The Role `extension-apiserver-authentication-reader` in kube-system gives the right to read it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from muster.kube.client import Client
from muster.kube.health import Progress
from muster.kube.informer import Informer
from muster.kube.objects.core import ConfigMap
from muster.readcache.access.certificates import ClusterAuthorities

NAMESPACE: Final = "kube-system"
NAME: Final = "extension-apiserver-authentication"
_KEY: Final = "client-ca-file"

log = logging.getLogger(__name__)


class AuthoritiesFollower:
    """Keeps `authorities` equal to the ConfigMap. If a new text cannot be read, the present authorities stay.

    Args:
        client: the API server.
        authorities: gets each change.
        changed: called after each change, for new TLS contexts.
        progress: marked at each sign of life.
    """

    def __init__(
        self,
        client: Client,
        authorities: ClusterAuthorities,
        changed: Callable[[], object],
        progress: Progress | None = None,
    ) -> None:
        self._authorities = authorities
        self._changed = changed
        self._informer = Informer(
            client, ConfigMap, namespace=NAMESPACE, field_selector=f"metadata.name={NAME}", progress=progress
        )
        self._informer.add_handler(self._read)

    async def run(self) -> None:
        """Follow the ConfigMap until cancelled."""
        await self._informer.run()

    def not_ready(self) -> str | None:
        """Return what is missing until client certificates can be verified; None if nothing is."""
        if self._informer.has_synced:
            return None
        return f"ConfigMap {NAMESPACE}/{NAME} was not read yet: {self._informer.last_error or 'no answer so far'}"

    async def wait_synced(self, timeout_s: float) -> None:
        """Wait until the authorities are known, or it is known that there are none. Raises TimeoutError."""
        await self._informer.wait_synced(timeout_s)

    def _read(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        pem = new.data.get(_KEY, "") if new is not None else ""
        try:
            changed = self._authorities.replace(pem.encode())
        except ValueError as error:
            log.warning("ConfigMap %s/%s: %s cannot be read: %s", NAMESPACE, NAME, _KEY, error)
            return
        if changed:
            log.info("client certificates: the authorities in ConfigMap %s/%s changed", NAMESPACE, NAME)
            self._changed()
